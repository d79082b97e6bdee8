"""Fixtures of the HTTP client tests: local servers and TLS certificates."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from portico.transports import version_discovery
from portico.transports.event_loop import new_event_loop
from support.scripted import Endpoint, Script, Site, at_site


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], Any]]:
    """Run socket tests on both event loops, the rest on asyncio's."""
    if item.path.name in ("test_connection.py", "test_pool.py"):
        return {"asyncio": asyncio.new_event_loop, "uvloop": new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """Clear the cache of server generations: ports are reused."""
    version_discovery._modern_by_target.clear()
    yield
    version_discovery._modern_by_target.clear()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail if an error was logged."""
    yield
    errors = [item for item in caplog.get_records("call") if item.levelno >= logging.ERROR]
    assert not errors, "\n".join(logging.Formatter().format(item) for item in errors[:3])


@pytest.fixture
async def listen() -> AsyncIterator[Callable[..., Any]]:
    """`await listen(script)` runs it for each connection."""
    open: list[Any] = []

    async def start(script: Script, **options: Any) -> Site:
        context = at_site(script, **options)
        site = await context.__aenter__()
        open.append(context)
        return site

    yield start
    for context in open:
        await context.__aexit__(None, None, None)


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Any]]:
    """`await serve(Endpoint(…))` listens on a free port of this machine."""
    started: list[Endpoint] = []

    async def start(endpoint: Endpoint | None = None, **options: Any) -> Endpoint:
        endpoint = endpoint or Endpoint()
        await endpoint.site.start(**options)
        started.append(endpoint)
        return endpoint

    yield start
    for endpoint in started:
        await endpoint.site.stop()
        assert not endpoint.site.failures, endpoint.site.failures


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Create a self-signed certificate for `localhost` and this machine's addresses, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    names = "subjectAltName=DNS:localhost,DNS:server.test,IP:127.0.0.1"
    options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1", "-subj", "/CN=test"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([openssl, "req", "-x509", *options, "-addext", names, *files], check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture
def tls_server(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


@pytest.fixture
def tls_client(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate[0]))
