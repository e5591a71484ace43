"""Blob stores: storage for the bytes of snapshots.

`port.BlobStore` is the interface and states its contract. `filesystem` and `s3` implement it. `retrying`, `limited`, `timeouts` and
`counted` wrap either of them, each adding one property; `wrapper` is their base. `locations` opens the store that a URL names.
"""
