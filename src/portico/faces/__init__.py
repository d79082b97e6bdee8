"""Faces: the same server with a few tools in front of many."""
