"""Providers: components that a server does not own, from mounted servers, directories and OpenAPI documents."""

from portico._lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__)
