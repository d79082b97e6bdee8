"""Conversations that are written down, and played again as a server."""
