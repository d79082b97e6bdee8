"""A gateway for Model Context Protocol servers: one endpoint, with OAuth, policy and audit."""

from portico._lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__)
