"""The audit of a server: one record for each call, written to a store and to sinks.

`hook` notes calls, `events` makes records of them, `writer` chains, signs and writes the records, `store` holds and
verifies them, and `retention` removes old ones. The records, the hash chain and the checkpoints are in `portico.audit`.
"""
