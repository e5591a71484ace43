"""Files that platforms replace while a process uses them.

`versions` tells whether a file has changed since it was read. `certificates` loads a certificate and its key, which are two files.
"""
