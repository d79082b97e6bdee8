"""Generators of typed clients. Names and texts of a server are escaped: none of them becomes code."""
