"""A face in front of a real login: npm's oidc-provider, and a browser that fills in its forms."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from access_desk import Standing, free_port, served

import oidc
from node import NotInstalled
from portico import Server
from portico.access import settings as access_settings

PATIENCE = 60.0
REDIRECT_URI = "http://127.0.0.1:9/callback"


@pytest.fixture(scope="session")
def login_issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A login that knows neither registration nor documents: one client, ours."""
    client = {
        "client_id": "portico",
        "client_secret": "known to both",
        "application_type": "native",
        "token_endpoint_auth_method": "client_secret_basic",
        "redirect_uris": ["http://127.0.0.1/callback", "http://127.0.0.1/connect/callback"],
    }
    accounts = {
        "anna": {
            "preferred_username": "anna",
            "name": "Anna A.",
            "email": "anna@example.com",
            "email_verified": True,
            "groups": ["ops"],
        },
        "mallory": {"preferred_username": "mallory", "email": "anna@example.com", "email_verified": False},
    }
    try:
        with oidc.provider(tmp_path_factory.mktemp("oidc"), clients=[client], accounts=accounts) as issuer:
            yield issuer
    except NotInstalled as why:
        if os.environ.get("CI"):
            pytest.fail(f"oidc-provider cannot be installed: {why}", pytrace=False)
        pytest.skip(f"oidc-provider cannot be installed: {why}")


Stand = Callable[..., Any]


@pytest.fixture
def stand(login_issuer: str) -> Stand:
    """Serve a face with these settings, for as long as the block lasts."""

    @asynccontextmanager
    async def standing(
        store: str | None = None, server: Server | None = None, auth: dict[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[Standing]:
        issuer = f"http://127.0.0.1:{free_port()}"
        server = server or Server("desk", store=store)
        proxy = {
            "provider": "oidc",
            "issuer": login_issuer,
            "client_id": "portico",
            "client_secret": "known to both",
            "scopes": {"notes:read": "read your notes", "notes:write": "write your notes"},
            "default_scopes": ["notes:read"],
            **options,
        }
        said = {"auth": {"public_url": issuer, "proxy": proxy, **(auth or {})}}
        access_settings.apply(server, access_settings.read(said))
        async with served(server, urlsplit(issuer).port or 0):
            yield Standing(server, issuer)

    return standing
