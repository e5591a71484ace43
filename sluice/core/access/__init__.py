"""Access rules: which clients may send which requests.

* `browsers`: which requests of web browsers are accepted.
* `credentials`: text without the credentials of the URLs in it.
* `networks`: addresses and networks of clients.
* `roles`: the roles that a principal may have.
* `tokens`: the format of tokens, their validity, and the limit of wrong attempts.
"""
