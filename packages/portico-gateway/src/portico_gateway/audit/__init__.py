"""Audit log of a server: one record for each call, written to a store and to sinks.

`hook` receives completed calls, `events` encodes them as records, `writer` chains, signs and writes the records,
`store` holds and verifies them, and `retention` removes old ones. Records, hash chain and checkpoints are defined in
`portico.audit`.
"""
