"""Where the bytes of snapshots are: one port, several stores. See `port`."""
