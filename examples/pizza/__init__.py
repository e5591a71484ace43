"""The pizza example: the rushes of the stations of a kitchen, as sessions over its sales of 2015."""
