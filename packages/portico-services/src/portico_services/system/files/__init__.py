"""File access: metadata, content and search."""
