"""The commands that start the coordinator or change its database: `sluice coordinator`, `sluice db` and `sluice rebuild`.
`sluice/cli/main.py` registers them.
"""
