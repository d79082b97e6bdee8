"""Middleware with FastMCP's names and options."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from portico.compat.unsupported import UnsupportedFeature, reject_options
from portico.protocol.errors import UsageError
from portico.server import middleware as native

CallNext = native.CallNext
RateLimitingMiddleware = native.RateLimitingMiddleware


class MiddlewareContext(native.MiddlewareContext, frozen=True):
    """A request in the form that middleware receives."""

    @property
    def fastmcp_context(self) -> Any:
        """Return the Context of the request."""
        return self.context


class Middleware(native.Middleware):
    """Middleware with one method per kind of request, which receives FastMCP's MiddlewareContext."""

    context_class = MiddlewareContext


_PAYLOADS = "write a Middleware with on_request, which sees context.message"
_LOGGING_UNSUPPORTED = {
    "include_payloads": UnsupportedFeature(_PAYLOADS, accepted=(None, False)),
    "include_payload_length": UnsupportedFeature(_PAYLOADS, accepted=(None, False)),
    "estimate_payload_tokens": UnsupportedFeature(_PAYLOADS, accepted=(None, False)),
    # Options for payloads, which are not logged.
    "max_payload_length": UnsupportedFeature(_PAYLOADS, accepted=(None, 1000)),
    "payload_serializer": UnsupportedFeature(_PAYLOADS),
    "methods": UnsupportedFeature("filter the log records with a logging.Filter"),
}


class LoggingMiddleware(native.LoggingMiddleware):
    """Logs one line per request."""

    def __init__(
        self, *, logger: logging.Logger | None = None, log_level: int = logging.INFO, **unsupported: Any
    ) -> None:
        reject_options(type(self).__name__, unsupported, _LOGGING_UNSUPPORTED)
        super().__init__(logger, log_level)


class StructuredLoggingMiddleware(LoggingMiddleware):
    """Logs one line per request. Use `portico serve --log-format json` for structured output."""


class TimingMiddleware(native.LoggingMiddleware):
    """Logs one line per request, with its duration."""


class DetailedTimingMiddleware(TimingMiddleware):
    """Logs one line per request, with its duration."""


class PingMiddleware(Middleware):
    """Does nothing: the transports keep connections alive themselves."""

    def __init__(self, interval_ms: int = 30_000) -> None: ...


_RETRY_UNSUPPORTED = {
    "max_delay": UnsupportedFeature("use fewer retries or a shorter base_delay", accepted=(None, 60.0)),
    "backoff_multiplier": UnsupportedFeature("the delay doubles with each attempt", accepted=(None, 2.0)),
    "logger": UnsupportedFeature("use LoggingMiddleware inside of it"),
}


class RetryMiddleware(native.RetryMiddleware):
    """Retries tools that fail with a connection error or a timeout."""

    def __init__(
        self,
        max_retries: int = 3,
        base_delay: float = 1.0,
        retry_exceptions: tuple[type[Exception], ...] = (ConnectionError, TimeoutError),
        **unsupported: Any,
    ) -> None:
        reject_options("RetryMiddleware", unsupported, _RETRY_UNSUPPORTED)
        super().__init__(max_retries, base_delay, retry_exceptions)


_LISTS_CACHED = "lists are cached by the server; clients cache them with FastMCP(cache_ttl=…)"
_CACHING_UNSUPPORTED = {
    "cache_storage": UnsupportedFeature("results are cached in memory"),
    "list_tools_settings": UnsupportedFeature(_LISTS_CACHED),
    "list_resources_settings": UnsupportedFeature(_LISTS_CACHED),
    "list_prompts_settings": UnsupportedFeature(_LISTS_CACHED),
    "read_resource_settings": UnsupportedFeature("clients cache resources with FastMCP(cache_ttl=…)"),
    "get_prompt_settings": UnsupportedFeature("prompts are not cached"),
    "max_item_size": UnsupportedFeature("omit it: results of any size are cached", accepted=(None, 1024 * 1024)),
}


class ResponseCachingMiddleware(native.ResponseCachingMiddleware):
    """Caches the results of read-only tools, which are named in `call_tool_settings["included_tools"]`.

    FastMCP caches the results of all tools by default. Portico cannot know which tools are read-only.
    """

    def __init__(self, *, call_tool_settings: Mapping[str, Any] | None = None, **unsupported: Any) -> None:
        reject_options("ResponseCachingMiddleware", unsupported, _CACHING_UNSUPPORTED)
        settings = dict(call_tool_settings or {})
        # Without a list nothing is cached: caching a tool that writes would drop calls.
        tools, seconds = settings.pop("included_tools", None) or (), settings.pop("ttl", 3600.0)
        enabled = settings.pop("enabled", True)
        if settings.pop("excluded_tools", None):
            raise UsageError(
                "ResponseCachingMiddleware: excluded_tools is not supported; list the cached tools in included_tools"
            )
        if settings:
            raise UsageError(
                f"ResponseCachingMiddleware: unknown option {next(iter(settings))!r} in call_tool_settings"
            )
        super().__init__(tools if enabled is not False else (), seconds)


_LIMITING_UNSUPPORTED = {
    "truncation_suffix": UnsupportedFeature("the text ends with the number of omitted characters"),
    "tools": UnsupportedFeature("write a Middleware with on_call_tool"),
}


class ResponseLimitingMiddleware(native.ResponseLimitingMiddleware):
    """Truncates long results."""

    def __init__(self, *, max_size: int = 1_000_000, **unsupported: Any) -> None:
        reject_options("ResponseLimitingMiddleware", unsupported, _LIMITING_UNSUPPORTED)
        super().__init__(max_size)


_ERRORS_UNSUPPORTED = {
    "logger": UnsupportedFeature("errors are logged by portico.server"),
    # Both apply to every server.
    "include_traceback": UnsupportedFeature(
        "tracebacks are in the log of portico.server", accepted=(None, True, False)
    ),
    "transform_errors": UnsupportedFeature("unexpected errors are never sent to clients", accepted=(None, True)),
}


class ErrorHandlingMiddleware(native.ErrorHandlingMiddleware):
    """Reports unexpected errors to a callback."""

    def __init__(
        self, *, error_callback: Callable[[Exception, native.MiddlewareContext], Any] | None = None, **unsupported: Any
    ) -> None:
        reject_options("ErrorHandlingMiddleware", unsupported, _ERRORS_UNSUPPORTED)
        super().__init__(error_callback)
