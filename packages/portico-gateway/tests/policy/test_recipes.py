"""The recipes of the guide are files of examples/, quoted verbatim, and can be served."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from portico import Server
from portico.server.policy import settings as access_settings
from portico_gateway import Gateway
from support.paths import ROOT

PAGES = ("protect-with-oauth", "run-behind-nginx", "control-access", "authenticate-to-upstreams")
GUIDE = "\n".join((ROOT / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8") for page in PAGES)
LOGINS = [f"{name}_CLIENT_{part}" for name in ("GITHUB", "ENTRA") for part in ("ID", "SECRET")]
SECRETS = [*LOGINS, "EXCHANGE_SECRET", "CRM_KEY"]


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "a secret of the test")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".config" / "portico").mkdir(parents=True)
    (tmp_path / ".config" / "portico" / "keycloak").write_text("a secret of the test")


@pytest.mark.parametrize("name", ["github_login", "company_login", "accounts"])
def test_recipe_is_quoted_unchanged(name: str) -> None:
    text = (ROOT / "examples" / f"{name}.toml").read_text(encoding="utf-8")
    quoted = "\n".join(line for line in text.splitlines() if not line.startswith("#")).strip()
    assert f"```toml\n{quoted}\n```" in GUIDE


@pytest.mark.parametrize("name", ["github_login", "company_login"])
def test_login_can_be_put_on_any_server(name: str) -> None:
    text = tomllib.loads((ROOT / "examples" / f"{name}.toml").read_text(encoding="utf-8"))
    server = Server("notes")
    access_settings.apply(server, access_settings.read(text))
    assert server.auth is not None and server.auth.authorization_servers == ["https://mcp.acme.example"]
    assert ("GET", "/authorize") in {(route.method, route.path) for route in server.custom_routes}


def test_accounts_can_be_put_behind_a_gateway() -> None:
    gateway = Gateway.load(ROOT / "examples" / "accounts.toml")
    assert [status_item["alias"] for status_item in gateway.status()] == ["tracker", "search", "crm"]
    assert gateway.account_connector is not None
    assert "tracker_connect_account" in gateway.registry.tools
