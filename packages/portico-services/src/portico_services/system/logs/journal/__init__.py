"""Reader of systemd journal files without libsystemd, journalctl or journald."""
