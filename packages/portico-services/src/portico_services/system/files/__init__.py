"""Files: what is there, what is in it, where something is."""
