"""Fixtures: an authorization server in front of npm's oidc-provider, and a browser that fills in its forms."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from portico_gateway import Gateway
from support.access_control import login_provider, standing_face
from support.node import NotInstalled

TIMEOUT_SECONDS = 60.0
REDIRECT_URI = "http://127.0.0.1:9/callback"


@pytest.fixture(scope="session")
def login_issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a login without registration and client metadata documents: one client, ours."""
    try:
        with login_provider(tmp_path_factory.mktemp("oidc")) as issuer:
            yield issuer
    except NotInstalled as why:
        if os.environ.get("CI"):
            pytest.fail(f"oidc-provider cannot be installed: {why}", pytrace=False)
        pytest.skip(f"oidc-provider cannot be installed: {why}")


Stand = Callable[..., Any]


@pytest.fixture(autouse=True)
def data_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTICO_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("PORTICO_STORE", raising=False)
    monkeypatch.delenv("PORTICO_ENCRYPTION_KEYS", raising=False)


@pytest.fixture(autouse=True)
def patient_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the first list wait for upstream processes, which start slowly on a busy machine."""
    monkeypatch.setattr(Gateway, "first_list_seconds", 30.0)


@pytest.fixture
def stand(login_issuer: str) -> Stand:
    """Serve a face with these settings, for as long as the block lasts."""
    return partial(standing_face, login_issuer)
