"""The authorization-server face: for identity providers that know neither registration nor client id documents.

Clients see an authorization server of their kind (2026-07-28, authorization); behind it the person logs in where they
always do. Nothing here waits or opens anything: requests become decisions, decisions become rows and documents.
"""
