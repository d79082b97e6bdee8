"""The fixtures, markers and options of the plugin.

pytest imports this in every project: nothing is loaded before a test asks for it, and the names of the fixtures begin
with `portico_`, because many projects have a `client` and a `server` of their own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from portico._lazy import LazyModule

if TYPE_CHECKING:
    from portico.client import client as client_module
    from portico.client import sync_client
    from portico.client.client import Client
    from portico.client.sync_client import SyncClient
    from portico.protocol import versions
    from portico.testing import snapshots, transcript
    from portico.testing.recording import replay
    from portico.testing.snapshots import ContractSnapshot
    from portico.testing.transcript import Transcript
    from portico.transports import importer
else:
    client_module = LazyModule("portico.client.client")
    sync_client = LazyModule("portico.client.sync_client")
    replay = LazyModule("portico.testing.recording.replay")
    snapshots = LazyModule("portico.testing.snapshots")
    transcript = LazyModule("portico.testing.transcript")
    importer = LazyModule("portico.transports.importer")
    versions = LazyModule("portico.protocol.versions")

UPDATE = "--update-snapshots"
SERVER = "portico_server"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(SERVER, "the server that portico_client talks to: path/to/file.py:object or module:object")
    try:
        parser.getgroup("portico").addoption(
            UPDATE, action="store_true", default=False, help="write the snapshots of contracts anew"
        )
    except ValueError:
        pass  # another plugin has the same option: then it is meant for both


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "revision(*dates): portico_client speaks each of these; none: every revision")
    config.addinivalue_line("markers", "recording(path): portico_server is what `portico record` has written there")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("revision")
    if marker is None or "portico_revision" not in metafunc.fixturenames:
        return
    known = versions.REVISIONS
    wanted = marker.args or known
    if unknown := [one for one in wanted if one not in known]:
        raise pytest.UsageError(f"there is no revision {unknown[0]!r}; there are {', '.join(known)}")
    metafunc.parametrize("portico_revision", wanted, indirect=True)


@pytest.fixture
def portico_revision(request: pytest.FixtureRequest) -> str | None:
    """The revision that the client speaks: one of those of `@pytest.mark.revision`, or None for the newest."""
    return getattr(request, "param", None)


@pytest.fixture
def portico_server(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Any:
    """What the client talks to. A project that has one server says so in its settings, or overrides this fixture."""
    marker = request.node.get_closest_marker("recording")
    if marker is not None:
        return replay.Replay.load(request.path.parent / marker.args[0])
    said = pytestconfig.getini(SERVER)
    if not said:
        pytest.fail(
            "which server? Say portico_server = path/to/file.py:object in the settings of pytest, override the fixture "
            "portico_server, or mark the test with @pytest.mark.recording(path)",
            pytrace=False,
        )
    file, mark, name = said.partition(".py")
    path = pytestconfig.rootpath / f"{file}.py"
    return importer.load(f"{path}{name}" if mark and path.exists() else said)


@pytest.fixture
def portico_options() -> dict[str, Any]:
    """More options of the client, such as `elicitation_handler`. To be overridden."""
    return {}


@pytest.fixture
def portico_transcript() -> Transcript:
    """Every message between the client and the server of this test."""
    return transcript.Transcript()


@pytest.fixture
def _portico_given(
    portico_revision: str | None, portico_options: dict[str, Any], portico_transcript: Transcript
) -> dict[str, Any]:
    return {"revision": portico_revision, "trace": portico_transcript.note, **portico_options}


async def _portico_client(portico_server: Any, _portico_given: dict[str, Any]) -> AsyncIterator[Client]:
    """An open Client of the server, at the revision that the test is marked with."""
    async with client_module.Client(portico_server, **_portico_given) as client:
        yield client


def _without_loop() -> None:
    pytest.fail(
        "portico_client is for async tests, which need pytest-asyncio: install portico[testing]; portico_sync_client "
        "works without it",
        pytrace=False,
    )


portico_client: Any
if importlib.util.find_spec("pytest_asyncio") is not None:
    import pytest_asyncio

    portico_client = pytest_asyncio.fixture(_portico_client, name="portico_client")
else:
    portico_client = pytest.fixture(_without_loop, name="portico_client")


@pytest.fixture
def portico_sync_client(portico_server: Any, _portico_given: dict[str, Any]) -> Iterator[SyncClient]:
    """The same for tests that are no coroutines."""
    with sync_client.SyncClient(portico_server, **_portico_given) as client:
        yield client


@pytest.fixture
def portico_contract(
    request: pytest.FixtureRequest, portico_server: Any, pytestconfig: pytest.Config
) -> ContractSnapshot:
    """What the server promises now, to be compared with what it promised when the snapshot was made."""
    folder = request.path.parent / "__snapshots__"
    # The snapshot is of the server, not of one run of a test: it has no revision in its name.
    name = f"{request.path.stem}.{getattr(request.node, 'originalname', None) or request.node.name}.json"
    return snapshots.ContractSnapshot(portico_server, Path(folder, name), update=bool(pytestconfig.getoption(UPDATE)))
