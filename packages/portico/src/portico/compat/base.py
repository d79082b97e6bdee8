"""Shared base of the FastMCP and SDK servers: transport and option names, middleware functions, extensions and token
verifiers next to `auth`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from inspect import iscoroutinefunction, isfunction, ismethod
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec

from portico.compat.unsupported import UnsupportedFeature, pop_unsupported
from portico.protocol.errors import UsageError
from portico.server.components.validation import ANY_METHOD, CacheHint
from portico.server.registry.registration import ComponentDefaults
from portico.server.server import Server, configure_log_level

if TYPE_CHECKING:
    from portico.compat.mcp_sdk.settings import RequestStateSecurity
    from portico.server.context.request_state import RequestStateSealer
    from portico.transports.http_server.asgi import AsgiApplication

# HTTP options that have another name in Portico.
_HTTP_OPTION_NAMES = {
    "streamable_http_path": "path",
    "stateless_http": "stateless",
    "max_request_body_size": "max_body_size",
}
HTTP_UNSUPPORTED = {
    # Portico responds with JSON unless notifications or requests precede the response.
    "json_response": UnsupportedFeature("use True or False", accepted=(None, True, False)),
    "event_store": UnsupportedFeature("Portico stores the events of a stream itself; omit it"),
    "retry_interval": UnsupportedFeature("Portico sets the reconnection interval itself; omit it"),
    "uvicorn_config": UnsupportedFeature(
        "use the options of Server.run: host, port, workers, ssl_certfile, ssl_keyfile, shutdown_timeout",
        accepted=(None, {}),
    ),
    "sockets": UnsupportedFeature("use fd= with the number of an open socket"),
    "middleware": UnsupportedFeature(
        "use http_app(middleware=…) and run that application on an ASGI server", (None, [], ())
    ),
    "path_prefix": UnsupportedFeature("use path=", accepted=(None, "", "/")),
    "mount_path": UnsupportedFeature("mount the application of http_app() at that path", accepted=(None, "", "/")),
    "sse_path": UnsupportedFeature("the path is /sse", accepted=(None, "/sse")),
    "message_path": UnsupportedFeature("the path is /messages", accepted=(None, "/messages", "/messages/")),
}
# Transport options that the first major version of the SDK accepts in the server's constructor.
TRANSPORT_OPTIONS = frozenset(
    {"host", "port", "stateless_http", "json_response", "streamable_http_path", "sse_path", "message_path",
     "mount_path", "transport_security"}
)  # fmt: skip
# Server options that are part of `ComponentDefaults` in Portico.
_DEFAULTS_OPTIONS = {
    "strict_input_validation": "strict_arguments",
    "structured_output": "structured_output",
    "resource_security": "resource_security",
}


def translate_http_options(of: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Translate options of `run("http")` and `http_app()` to their names in Portico.

    Raises UsageError for options that Portico does not support.
    """
    translated = dict(options)
    # Options without an equivalent raise instead of being ignored: a server that silently drops,
    # for example, an event store looks ported but is not.
    pop_unsupported(of, translated, HTTP_UNSUPPORTED)
    protection: dict[str, Any] = {}
    security = translated.pop("transport_security", None)
    if security is not None:
        from portico.compat.mcp_sdk import settings

        protection |= settings.TransportSecuritySettings(
            bool(getattr(security, "enable_dns_rebinding_protection", True)),
            list(getattr(security, "allowed_hosts", ())),
            list(getattr(security, "allowed_origins", ())),
        ).http_options()
    if translated.pop("host_origin_protection", None) is False:
        protection["allowed_hosts"] = ["*"]
    # Explicit lists win over both objects: `allowed_hosts` next to a disabled protection must not become "any host".
    translated = protection | translated
    for name, ours in _HTTP_OPTION_NAMES.items():
        if name in translated:
            translated[ours] = translated.pop(name)
    # FastMCP's spelling of the default.
    if translated.get("session_idle_timeout") == "auto":
        del translated["session_idle_timeout"]
    return {name: value for name, value in translated.items() if value is not None}


class CompatServer(Server):
    """A Server that accepts the options of another project."""

    # Constructor options that Portico does not support.
    unsupported: ClassVar[Mapping[str, UnsupportedFeature]] = {}
    # The listening address, unless `run` overrides it.
    http_defaults: Mapping[str, Any] = {}

    def __init__(self, name: str | None, instructions: str | None, **options: Any) -> None:
        of = type(self).__name__
        pop_unsupported(of, options, self.unsupported)
        # The SDK's first version configures the transport in the constructor. The values are
        # remembered and used by `run`.
        http_defaults = {key: options.pop(key) for key in tuple(options) if key in TRANSPORT_OPTIONS}
        components = [item for key in ("tools", "resources") for item in options.pop(key, None) or ()]
        extensions: Sequence[Any] = options.pop("extensions", None) or ()
        experimental = options.pop("experimental_capabilities", None)
        log_level = options.pop("log_level", None)
        if log_level is not None:
            configure_log_level(log_level)
        providers: Sequence[Any] = options.pop("providers", None) or ()
        transforms: Sequence[Any] = options.pop("transforms", None) or ()
        self._state_security: RequestStateSecurity | None = options.pop("request_state_security", None)
        super().__init__(name or self.default_name, instructions, **self._translate_options(options))
        for provider in providers:
            self.add_provider(provider)
        for transform in transforms:
            self.add_transform(transform)
        self.http_defaults = http_defaults
        if experimental:
            self.capabilities = msgspec.structs.replace(self.capabilities, experimental=experimental)
        for extension in extensions:
            self.add_extension(extension)
        for component in components:
            self.add(component)

    default_name: ClassVar[str] = "server"

    def _translate_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Translate constructor options to their names in Portico. Any of them may be None."""
        # None is a value for resource_security: it disables the checks.
        defaults = {
            ours: options.pop(name)
            for name, ours in _DEFAULTS_OPTIONS.items()
            if options.get(name) is not None or (name == "resource_security" and name in options)
        }
        if defaults:
            options["component_defaults"] = ComponentDefaults(**defaults)
        seconds, hints = options.pop("cache_ttl", None), options.pop("cache_hints", None)
        if seconds is not None or hints:
            default = {} if seconds is None else {ANY_METHOD: CacheHint(round(1000 * seconds))}
            options["cache"] = {**default, **(hints or {})}
        # FastMCP accepts `version=1.0`; the protocol requires a string.
        if type(options.get("version")) in (int, float):
            options["version"] = str(options["version"])
        auth, verifier = options.pop("auth", None), options.pop("token_verifier", None)
        if auth is not None or verifier is not None:
            options["auth"] = _translate_auth(auth, verifier)
        return {name: value for name, value in options.items() if value is not None}

    @cached_property
    def state_sealer(self) -> RequestStateSealer:
        return super().state_sealer if self._state_security is None else self._state_security.create_sealer(self.name)

    def add_extension(self, extension: Any) -> None:
        """Add an extension: an object with an `identifier`."""
        from portico.compat.mcp_sdk import extension as extension_module

        self.add(extension_module.ExtensionService(extension))

    def _to_handler_middleware(self, middleware: Any) -> Any:
        """Return a function from Handler to Handler. `async def middleware(ctx, call_next)` is adapted."""
        # The number of parameters tells the two kinds apart: ours takes a Handler, theirs a context
        # and `call_next`.
        called = middleware if isfunction(middleware) or ismethod(middleware) else type(middleware).__call__
        parameters = 2 if called is middleware else 3
        if iscoroutinefunction(called) and called.__code__.co_argcount == parameters + ismethod(called):
            from portico.compat.mcp_sdk import extension as extension_module

            return extension_module.FunctionMiddleware(middleware, self)
        return super()._to_handler_middleware(middleware)

    # Running

    def _translate_run(
        self, of: str, transport: str | None, options: dict[str, Any], show_banner: bool | None
    ) -> tuple[Any, dict[str, Any]]:
        log_level = options.pop("log_level", None)
        if log_level is not None:
            configure_log_level(log_level)
        if transport not in ("http", "streamable-http", "streamable_http", "sse"):
            return transport or "stdio", options
        translated = translate_http_options(of, {**self.http_defaults, **options})
        if show_banner is False:
            translated["show_banner"] = False
        return "http", {"sse": True, **translated} if transport == "sse" else translated

    def run(self, transport: str | None = None, show_banner: bool | None = None, **options: Any) -> None:
        """Serve over stdio, or over HTTP with "http", "streamable-http" or "sse"."""
        transport, options = self._translate_run("run", transport, options, show_banner)
        super().run(cast("Any", transport), **options)

    async def run_async(self, transport: str | None = None, show_banner: bool | None = None, **options: Any) -> None:
        """Serve in a running event loop."""
        transport, options = self._translate_run("run_async", transport, options, show_banner)
        await super().run_async(cast("Any", transport), **options)

    async def run_stdio_async(self, show_banner: bool | None = None, **options: Any) -> None:
        await self.run_async("stdio", show_banner, **options)

    def _create_app(self, of: str, transport: str, options: Mapping[str, Any]) -> AsgiApplication:
        """Return an ASGI application; the ASGI server that runs it determines the address."""
        if transport not in ("http", "streamable-http", "streamable_http", "sse"):
            raise UsageError(f"{of}: transport must be 'http', 'streamable-http' or 'sse', got {transport!r}")
        translated = translate_http_options(of, {**self.http_defaults, **options})
        # The ASGI server binds the address, so it has no meaning here.
        located = {name: value for name, value in translated.items() if name not in ("host", "port")}
        return super().http_app(**({"sse": True} if transport == "sse" else {}), **located)  # type: ignore[arg-type]


def _translate_auth(auth: Any, verifier: Any) -> Any:
    from portico.auth import resource_server as resource_module

    if verifier is None and (isinstance(auth, str | resource_module.ResourceServer) or callable(auth)):
        return auth
    from portico.compat.mcp_sdk import auth as auth_module

    return auth_module.CompatAuth(auth, verifier)


class MiddlewareList:
    """The `server.middleware` list, which supports append and extend."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def append(self, middleware: Any) -> None:
        self._server.add_middleware(middleware)

    def extend(self, middleware: Iterable[Any]) -> None:
        for item in middleware:
            self.append(item)
