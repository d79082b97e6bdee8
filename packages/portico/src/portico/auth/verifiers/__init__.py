"""Token verifiers: async functions from the credentials of a request to a Principal.

Verifiers fetch only through the fetcher in the credentials; no module here opens a connection.
"""
