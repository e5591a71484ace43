"""Where records live: the streams port and its implementations."""
