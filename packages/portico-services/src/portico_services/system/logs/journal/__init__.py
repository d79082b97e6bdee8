"""The journal of systemd, read from its files: no library, no program, no daemon."""
