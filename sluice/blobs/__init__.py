"""Blob stores: where the bytes of snapshots are kept.

`port.BlobStore` is the interface and states its contract. `filesystem`, `s3` and `memory` implement it. `retrying`, `limited`, `timeouts`
and `counted` wrap any of them, each adding one property. `locations.open_blob_store` opens the store that a URL names.
"""
