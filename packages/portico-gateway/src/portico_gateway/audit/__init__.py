"""The audit: one record a call, which those whom it records can neither bend nor cut.

`records` says what is kept of a call, `chain` binds each record to the one before, `checkpoints` sign what all chains
have come to, `writer` collects and writes, `verify` finds the first record that is not what was written.
"""
