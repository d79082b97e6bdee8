"""Typed clients, written from what tools promise. Names and words are the server's: none of them becomes code."""
