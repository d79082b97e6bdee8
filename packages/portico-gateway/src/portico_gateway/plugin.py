"""What the SDK asks of the gateway where it is installed (`portico.plugins`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from portico._lazy import load_module
from portico.server.policy.settings import AccessSection

if TYPE_CHECKING:
    from portico.auth.resource_server import ResourceServer
    from portico.auth.settings import AuthorizationSettings, LoginServer
    from portico.auth.verifiers.base import Verifier
    from portico.server.registry.service import Service
    from portico.server.server import Server
    from portico_gateway.authserver.server import Face
    from portico_gateway.gateway.gateway import Gateway


def load_gateway(path: str) -> Gateway:
    """Return the gateway of a gateway.toml or an mcp.json."""
    from portico_gateway.gateway.gateway import Gateway

    return Gateway.load(path)


def load_gateway_for_client(path: str) -> Gateway:
    """Return the gateway of a file for a client in this process, which is told why an upstream is missing."""
    gateway = load_gateway(path)
    gateway.serve_operator()
    return gateway


def make_proxy(about: dict[str, Any], entry: dict[str, Any]) -> Gateway:
    """Return a gateway with one upstream, whose names stay as they are."""
    from portico_gateway.gateway.gateway import Gateway

    gateway = Gateway(**about)
    gateway.add("upstream", entry, prefix="")
    return gateway


def console_views(server: Server) -> list[Service]:
    """Return the services that the console attaches for a server: its upstreams, its audit, its rules."""
    from portico_gateway.console_views import console_views

    return console_views(server)


def get_login_provider(name: str) -> Any:
    """Return FastMCP's login provider of this name. Raises AttributeError if there is none."""
    from portico_gateway.authserver.fastmcp_providers import PROVIDERS

    try:
        return PROVIDERS[name]
    except KeyError:
        raise AttributeError(f"portico.compat.fastmcp has no login provider {name!r}") from None


def add_login(server: Server, settings: AuthorizationSettings, home: str, audience: str) -> LoginServer | None:
    """Add the pages of `[auth.proxy]` or `[auth.login]` to a server."""
    from portico_gateway.authserver import settings as login_settings

    if settings.proxy is None:
        assert settings.login is not None
        login_settings.let_connect(server, settings.login, home, settings.claims.id)
        return None
    proxy = login_settings.read(settings.proxy)
    return _ProxyLogin(login_settings.put_on(server, proxy, home, audience, only=settings.audience is not None))


class _ProxyLogin:
    def __init__(self, face: Face) -> None:
        self._face = face

    @property
    def verifier(self) -> Verifier:
        from portico_gateway.authserver.token_verifier import FaceVerifier

        return FaceVerifier(self._face)

    @property
    def default_scopes(self) -> tuple[str, ...]:
        return tuple(self._face.settings.defaults)

    def connect(self, auth: ResourceServer) -> None:
        from portico_gateway.authserver.token_verifier import is_revoked

        self._face.on_revoked = partial(auth.revoke, partial(is_revoked, self._face))


_RULES, _EXPECTATIONS = "portico_gateway.policy.settings", "portico_gateway.policy.policy_tests"


def access_sections() -> dict[str, AccessSection]:
    """Return the sections of a file about rules, limits and audit, by their names."""

    def none() -> Any:
        return load_module(_RULES).NO_TABLES

    return {
        "rule": AccessSection(_later(_RULES, "read_rules"), _later(_RULES, "apply_rules"), none),
        "require": AccessSection(_later(_RULES, "read_requirements"), _later(_RULES, "apply_requirements"), none),
        "limit": AccessSection(_later(_RULES, "read_limits"), _later(_RULES, "apply_limits"), none),
        "expect": AccessSection(
            _later(_EXPECTATIONS, "read_expectations"), _later(_EXPECTATIONS, "apply_expectations"), none
        ),
        "audit": AccessSection(
            _later("portico_gateway.audit.settings", "read"), _later("portico_gateway.audit.hook", "apply")
        ),
    }


def _later(module: str, function: str) -> Callable[..., Any]:
    """Return a function that is imported with its first call."""
    return lambda *given: getattr(load_module(module), function)(*given)
