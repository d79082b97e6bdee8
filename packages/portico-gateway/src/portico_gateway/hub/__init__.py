"""The hub: a per-user daemon that runs the stdio servers of all local hosts, and the bridge that hosts start."""
