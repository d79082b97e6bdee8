"""Public API for extensions: services, middleware, gateways, transports.

`portico` has the names for servers and clients, `portico.types` the protocol types, `portico.errors` the exceptions,
`portico.search` tool search and text analysis, `portico.jsonschema` JSON Schema, `portico.screening` detection of
secrets and personal data, `portico.audit` audit logs. Each name is imported on first use.
"""

from portico._lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__)
