"""Registry hives, read from their files: no library, no Windows."""
