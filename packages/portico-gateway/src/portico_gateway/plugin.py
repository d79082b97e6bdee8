"""Plugin hooks that the SDK calls when the gateway package is installed (`portico.plugins`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from portico._lazy import load_module
from portico.protocol.errors import UsageError
from portico.server.policy.settings import AccessSection

if TYPE_CHECKING:
    from portico.auth.resource_server import ResourceServer
    from portico.auth.settings import AuthSectionSettings, LoginServer
    from portico.auth.verifiers.base import Verifier
    from portico.server.registry.service import Service
    from portico.server.server import Server
    from portico_gateway.authserver.server import AuthorizationServer
    from portico_gateway.gateway.gateway import Gateway


def load_gateway(path: str, *, audited: bool = True) -> Gateway:
    """Load a gateway from a gateway.toml or an mcp.json file. Raises UsageError for an mcp.json without servers."""
    from portico_gateway.gateway.gateway import Gateway

    gateway = Gateway.load(path, audited=audited)
    # Only at the start: a file may lose its last server while the gateway runs, and get another one later.
    if path.endswith(".json") and not gateway.status():
        raise UsageError(f"{path} has no enabled servers; `portico install json -- TARGET` prints an entry")
    return gateway


def load_gateway_for_client(path: str) -> Gateway:
    """Load a gateway from a file for a client in the same process.

    The local client is the operator, so it receives the reason why an upstream is unavailable.
    """
    gateway = load_gateway(path)
    gateway.serve_operator()
    return gateway


def make_proxy(about: dict[str, Any], entry: dict[str, Any]) -> Gateway:
    """Return a gateway with one upstream whose component names are not prefixed."""
    from portico_gateway.gateway.gateway import Gateway

    # A bridge to one server has its components and no others, so it shortens no results.
    gateway = Gateway(**about, max_result_tokens=0)
    gateway.add_upstream("upstream", entry, prefix="")
    return gateway


def console_views(server: Server) -> list[Service]:
    """Return the services that the console attaches to a server: upstreams, audit log and policy."""
    from portico_gateway.console_views import console_views

    return console_views(server)


def get_login_provider(name: str) -> Any:
    """Return FastMCP's login provider with this name.

    Raises AttributeError for an unknown name, because it is called from a module's `__getattr__`.
    """
    from portico_gateway.authserver.fastmcp_providers import PROVIDERS

    try:
        return PROVIDERS[name]
    except KeyError:
        raise AttributeError(f"portico.compat.fastmcp has no login provider {name!r}") from None


def add_login(server: Server, settings: AuthSectionSettings, home: str, audience: str) -> LoginServer | None:
    """Add the pages of `[auth.proxy]` or `[auth.login]` to a server.

    Return the login server for `[auth.proxy]`; None for `[auth.login]`, which issues no tokens.
    """
    from portico_gateway.authserver import settings as login_settings

    if settings.proxy is None:
        assert settings.login is not None
        login_settings.install_login(server, settings.login, home, settings.claims.subject)
        return None
    proxy = login_settings.parse_proxy_settings(settings.proxy)
    return _ProxyLogin(
        login_settings.install_authorization_server(
            server, proxy, home, audience, audience_only=settings.audience is not None
        )
    )


class _ProxyLogin:
    """Login server for `[auth.proxy]`, backed by the authorization server in this process."""

    def __init__(self, authorization_server: AuthorizationServer) -> None:
        self._authorization_server = authorization_server

    @property
    def verifier(self) -> Verifier:
        from portico_gateway.authserver.token_verifier import LocalTokenVerifier

        return LocalTokenVerifier(self._authorization_server)

    @property
    def default_scopes(self) -> tuple[str, ...]:
        return tuple(self._authorization_server.settings.effective_default_scopes)

    def connect(self, auth: ResourceServer) -> None:
        from portico_gateway.authserver.token_verifier import is_revoked

        self._authorization_server.on_revoked = partial(auth.revoke, partial(is_revoked, self._authorization_server))


_RULES, _POLICY_TESTS_MODULE = "portico_gateway.policy.settings", "portico_gateway.policy.policy_tests"


def access_sections() -> dict[str, AccessSection]:
    """Return the `[[rule]]`, `[[require]]`, `[[limit]]`, `[[policy_test]]` and `[audit]` sections by name."""

    def load_empty_tables() -> Any:
        return load_module(_RULES).EMPTY_TABLES

    return {
        "rule": AccessSection(
            _import_on_call(_RULES, "parse_rules"), _import_on_call(_RULES, "apply_rules"), load_empty_tables
        ),
        "require": AccessSection(
            _import_on_call(_RULES, "parse_requirements"),
            _import_on_call(_RULES, "apply_requirements"),
            load_empty_tables,
        ),
        "limit": AccessSection(
            _import_on_call(_RULES, "parse_limits"), _import_on_call(_RULES, "apply_limits"), load_empty_tables
        ),
        "policy_test": AccessSection(
            _import_on_call(_POLICY_TESTS_MODULE, "parse_policy_tests"),
            _import_on_call(_POLICY_TESTS_MODULE, "ignore_policy_tests"),
            load_empty_tables,
        ),
        "audit": AccessSection(
            _import_on_call("portico_gateway.audit.settings", "parse_audit_settings"),
            _import_on_call("portico_gateway.audit.hook", "install_audit"),
        ),
    }


def _import_on_call(module: str, function: str) -> Callable[..., Any]:
    """Return a function that imports its module on the first call, so that unused sections cost no start-up time."""
    return lambda *arguments: getattr(load_module(module), function)(*arguments)
