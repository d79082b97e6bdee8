"""From the credentials of a request to a Principal.

A verifier is an async function. Whatever it has to fetch it fetches by what the credentials bring, so that nothing in
this folder opens a connection.
"""
