"""Fixtures, markers and options of the pytest plugin.

pytest imports this module in every project, so nothing is loaded before a test uses it. Fixture names begin with
`portico_`, because many projects have their own `client` and `server` fixtures.
"""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from portico.client.client import Client
    from portico.client.sync_client import SyncClient
    from portico.testing.snapshots import ContractSnapshot
    from portico.testing.transcript import Transcript

UPDATE_OPTION = "--update-snapshots"
SERVER_INI = "portico_server"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(SERVER_INI, "the server that portico_client connects to: path/to/file.py:object or module:object")
    try:
        parser.getgroup("portico").addoption(
            UPDATE_OPTION, action="store_true", default=False, help="write the contract snapshots again"
        )
    except ValueError:
        pass  # another plugin defines the same option; it then applies to both


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "protocol_version(*versions): run the test with portico_client at each of these protocol versions; without "
        "arguments, at all of them",
    )
    config.addinivalue_line("markers", "recording(path): make portico_server replay this recording of `portico record`")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("protocol_version")
    # Tests without the client are not repeated per version.
    if marker is None or "portico_protocol_version" not in metafunc.fixturenames:
        return
    from portico.protocol import versions

    supported = versions.SUPPORTED_PROTOCOL_VERSIONS
    protocol_versions = marker.args or supported
    if unknown := [item for item in protocol_versions if item not in supported]:
        raise pytest.UsageError(f"unknown protocol version {unknown[0]!r} (expected one of {', '.join(supported)})")
    metafunc.parametrize("portico_protocol_version", protocol_versions, indirect=True)


@pytest.fixture
def portico_protocol_version(request: pytest.FixtureRequest) -> str | None:
    """Return the client's protocol version: one of `@pytest.mark.protocol_version`, or None for the newest."""
    return getattr(request, "param", None)


@pytest.fixture
def portico_server(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Any:
    """Return the server under test. Configure it in the pytest settings, or override this fixture."""
    marker = request.node.get_closest_marker("recording")
    if marker is not None:
        from portico.testing.recording import replay

        return replay.ReplayHandler.load(request.path.parent / marker.args[0])
    ini_value = pytestconfig.getini(SERVER_INI)
    if not ini_value:
        pytest.fail(
            "no server is configured: set portico_server = path/to/file.py:object in the pytest settings, "
            "override the fixture portico_server, or mark the test with @pytest.mark.recording(path)",
            pytrace=False,
        )
    # Relative to the pytest root, because tests may run in another directory.
    file, mark, name = ini_value.partition(".py")
    path = pytestconfig.rootpath / f"{file}.py"
    from portico.transports import importer

    return importer.import_server(f"{path}{name}" if mark and path.exists() else ini_value)


@pytest.fixture
def portico_client_options() -> dict[str, Any]:
    """Return further options of the client, such as `elicitation_handler`. Override this fixture to set them."""
    return {}


@pytest.fixture
def portico_transcript() -> Transcript:
    """Return the transcript of all messages between the client and the server of this test."""
    from portico.testing import transcript

    return transcript.Transcript()


@pytest.fixture
def _client_options(
    portico_protocol_version: str | None, portico_client_options: dict[str, Any], portico_transcript: Transcript
) -> dict[str, Any]:
    return {
        "protocol_version": portico_protocol_version,
        "on_message_bytes": portico_transcript.record,
        **portico_client_options,
    }


async def _portico_client(portico_server: Any, _client_options: dict[str, Any]) -> AsyncIterator[Client]:
    """Open a Client of the server at the protocol version of the test."""
    from portico.client import client as client_module

    async with client_module.Client(portico_server, **_client_options) as client:
        yield client


def _without_loop() -> None:
    pytest.fail(
        "portico_client is for async tests, which need pytest-asyncio: install portico[testing], or use "
        "portico_sync_client",
        pytrace=False,
    )


# Defined either way, so that a missing plugin is explained instead of "fixture not found".
portico_client: Any
if importlib.util.find_spec("pytest_asyncio") is not None:
    import pytest_asyncio

    portico_client = pytest_asyncio.fixture(_portico_client, name="portico_client")
else:
    portico_client = pytest.fixture(_without_loop, name="portico_client")


@pytest.fixture
def portico_sync_client(portico_server: Any, _client_options: dict[str, Any]) -> Iterator[SyncClient]:
    """Open a SyncClient of the server, for tests that are not coroutines."""
    from portico.client import sync_client

    with sync_client.SyncClient(portico_server, **_client_options) as client:
        yield client


@pytest.fixture
def portico_contract(
    request: pytest.FixtureRequest, portico_server: Any, pytestconfig: pytest.Config
) -> ContractSnapshot:
    """Return the contract snapshot of the server, for comparison with its current contract."""
    # Next to the test, so that reviews show both together.
    folder = request.path.parent / "__snapshots__"
    # The snapshot belongs to the server, not to one run of a test, so its name has no protocol version.
    name = f"{request.path.stem}.{getattr(request.node, 'originalname', None) or request.node.name}.json"
    from portico.testing import snapshots

    return snapshots.ContractSnapshot(
        portico_server, Path(folder, name), update=bool(pytestconfig.getoption(UPDATE_OPTION))
    )
