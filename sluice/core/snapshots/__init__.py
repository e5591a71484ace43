"""Rules about snapshots: how a checkpoint directory is stored in a blob store.

* `snapshot`: the index and the blobs to which it refers; `indexjson`: its format; `fingerprint`: checksums
* `retention`: which snapshots are retained, and which blobs are garbage
* `degraded`, `lost`: blob stores without a snapshot of a stage, and blobs that a blob store has lost
"""
