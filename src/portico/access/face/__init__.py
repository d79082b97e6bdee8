"""The authorization-server face at work: its pages, its store, the login behind it."""
