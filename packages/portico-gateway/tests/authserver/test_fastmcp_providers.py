"""FastMCP's login providers as presets of `[auth.proxy]`."""

from __future__ import annotations

from portico import Server
from portico.compat.fastmcp import login_providers


def test_parameters_for_the_login_page_reach_the_proxy() -> None:
    provider = login_providers.GoogleProvider(
        client_id="id",
        client_secret="secret",
        base_url="https://mcp.example",
        extra_authorize_params={"prompt": "consent"},
        audience="orders",
        allow=["anna@example.com"],
    )
    server = Server("orders")
    resource_server = provider.create_resource_server(server)
    assert server.auth is resource_server
