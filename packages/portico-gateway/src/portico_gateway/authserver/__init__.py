"""OAuth authorization server for identity providers without dynamic registration or client ID metadata documents.

MCP clients see an authorization server that meets the specification (2026-07-28, Authorization); users log in at their
existing identity provider. The protocol functions in this package do no I/O: they turn requests into decisions, and
decisions into rows and documents.
"""
