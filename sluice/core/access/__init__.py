"""Who may send which requests: rules only.

* `browsers`: which requests of web browsers are served.
* `credentials`: text without the credentials of the URLs in it.
* `networks`: addresses and networks of clients.
* `roles`: the roles that a principal may have.
* `tokens`: the form of tokens, how long they are valid, and how often wrong ones may be tried.
"""
