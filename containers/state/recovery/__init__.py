"""Recovery: makes a stage's checkpoint available on the disk of the container that acquires its task.

`decision` is the rule: resume the local checkpoint, restore a snapshot, start fresh, or refuse. `prepare` carries the decision out, with
`restore_plan` (what to link and what to fetch) and `restore`.
"""
