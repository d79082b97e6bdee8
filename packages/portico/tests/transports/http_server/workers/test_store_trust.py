"""Write access to the store or its events does not make a worker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import stat
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from portico.auth.principal import Principal
from portico.protocol.errors import UsageError
from portico.server.registry import replication
from portico.server.server import Server
from portico.store.database import Database
from portico.store.keys import SigningKeys
from portico.transports.http_server.bind_address import BindAddress
from portico.transports.http_server.headers import Headers
from portico.transports.http_server.messages import HttpRequest
from portico.transports.http_server.workers.reverse_proxy import build_forward_head
from portico.transports.http_server.workers.signing import ForwardClaims, ForwardSigner
from portico.transports.http_server.workers.socket_dir import WorkerSocketDir, default_socket_dir
from portico.transports.http_server.workers.store import open_worker_store
from support.worker_processes import SERVER, HttpConnection, Session, free_port

TIMEOUT_SECONDS = 30.0
WHO = """
from portico import Context


@server.tool
def who(ctx: Context) -> str:
    return str(getattr(ctx.principal, "id", None))


@server.declare
def extra() -> int:
    return 1


def unlisted() -> int:
    return 2


@server.tool
def grow() -> int:
    server.add(extra, replicate=True)
    return os.getpid()
"""


async def change(url: str, sql: str, *values: Any) -> int:
    async with Database(url, max_connections=1) as database:
        return await database.write(lambda tx: tx.execute(sql, values))


async def real_keys(store: str) -> SigningKeys:
    """The keys of a fleet, as one of its workers has them."""
    rows = await open_worker_store(store, "f" * 16, "many", SigningKeys([b"k" * 32]))
    try:
        return SigningKeys(await rows.load_signing_keys("many"))
    finally:
        await rows.close()


def forwarded(keys: SigningKeys, worker: str, path: str, message: Any, **about: Any) -> bytes:
    """A whole request that claims to be sent on."""
    fields = {b"content-type": b"application/json", b"accept": b"application/json, text/event-stream"}
    fields |= {b"host": b"127.0.0.1", b"mcp-protocol-version": b"2026-07-28"}
    if isinstance(message, dict):
        fields |= {b"mcp-method": message["method"].encode(), b"mcp-name": message["params"]["name"].encode()}
    request = HttpRequest("POST", path, "", Headers(fields.items()), json.dumps(message).encode())
    envelope = ForwardClaims(to=worker, peer="127.0.0.1", **about)
    return build_forward_head(request, ForwardSigner(keys).sign(envelope, request)) + request.body


async def answer_of(connected: Any, data: bytes) -> bytes:
    reader, writer = connected
    writer.write(data)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        answer: bytes = await reader.read()
    writer.close()
    return answer


async def workers_of(store: str) -> list[str]:
    async with Database(store, max_connections=1) as database:
        return await database.read(lambda tx: tx.fetch_all(str, "select id from portico_worker order by id"))


def folder_in(temporary: Path) -> WorkerSocketDir:
    """Where the workers have their sockets."""
    [found] = temporary.glob(f"portico-{os.getuid()}-*")
    folder = WorkerSocketDir(str(found), "f" * 16)
    folder.open()
    return folder


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    return HttpConnection.stand_alone("tools/call", {"name": tool, "arguments": arguments})["message"]


async def test_requests_are_sent_on_to_the_internal_socket_alone(serve: Any, server_file: Path, tmp_path: Path) -> None:
    """Even whoever knows the key is nobody at the address of the clients."""
    await asyncio.to_thread(server_file.write_text, SERVER + WHO)
    store = str(tmp_path / "store.db")
    fleet = await serve("--workers", "1", env={"PORTICO_STORE": store, "TMPDIR": str(tmp_path)})
    keys, [worker] = await real_keys(store), await workers_of(store)
    ada = Principal("ada")
    public = await asyncio.open_connection("127.0.0.1", fleet.port)
    answer = await answer_of(public, forwarded(keys, worker, "/mcp", call("who"), principal=ada))
    assert answer.startswith(b"HTTP/1.1 403 ")
    folder = folder_in(tmp_path)
    inner = await asyncio.open_unix_connection(folder.request_socket_path(worker))
    assert b"ada" in await answer_of(inner, forwarded(keys, worker, "/mcp", call("who"), principal=ada))
    # What is in the row is not the key.
    with closing(sqlite3.connect(store)) as database:
        [(secret,)] = database.execute("select secret from portico_fleet_key").fetchall()
    for guess in (bytes.fromhex(secret), secret.encode()):
        inner = await asyncio.open_unix_connection(folder.request_socket_path(worker))
        data = forwarded(SigningKeys([guess]), worker, "/mcp", call("who"), principal=ada)
        assert (await answer_of(inner, data)).startswith(b"HTTP/1.1 403 ")
    # The internal socket takes nothing else.
    for path in ("/mcp", "/healthz", "/metrics"):
        inner = await asyncio.open_unix_connection(folder.request_socket_path(worker))
        plain = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()
        assert (await answer_of(inner, plain)).startswith(b"HTTP/1.1 403 ")
    folder.close()


async def test_no_other_worker_vouches_for_a_visitor_of_the_console(serve: Any, tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    await serve("--workers", "1", "--console", "local", env={"PORTICO_STORE": store, "TMPDIR": str(tmp_path)})
    keys, [worker] = await real_keys(store), await workers_of(store)
    folder = folder_in(tmp_path)
    for principal in (None, Principal("ada"), Principal("owner", issuer="portico console")):
        inner = await asyncio.open_unix_connection(folder.request_socket_path(worker))
        data = forwarded(keys, worker, "/console/mcp", call("about"), principal=principal)
        assert (await answer_of(inner, data)).startswith(b"HTTP/1.1 401 ")
    folder.close()


async def test_machines_send_requests_to_a_port_that_clients_do_not_use(
    serve: Any, server_file: Path, postgres_url: str, tmp_path: Path
) -> None:
    await asyncio.to_thread(server_file.write_text, SERVER + WHO)
    fleet = await serve("--workers", "2", "--console", "local", env={"PORTICO_STORE": postgres_url})
    keys, workers = await real_keys(postgres_url), await workers_of(postgres_url)
    async with Database(postgres_url, max_connections=1) as database:
        addresses = await database.read(lambda tx: tx.fetch_all(str, "select address from portico_worker"))
    [address] = set(addresses)
    host, _, port = address.rpartition(":")
    assert int(port) != fleet.port
    for worker in workers:
        connected = await asyncio.open_connection(host, int(port))
        data = forwarded(keys, worker, "/mcp", call("who"), principal=Principal("ada"))
        assert b"ada" in await answer_of(connected, data)
        public = await asyncio.open_connection("127.0.0.1", fleet.port)
        data = forwarded(keys, worker, "/mcp", call("who"), principal=Principal("ada"))
        assert (await answer_of(public, data)).startswith(b"HTTP/1.1 403 ")
        # Pages are not sent on between machines at all.
        connected = await asyncio.open_connection(host, int(port))
        data = forwarded(keys, worker, "/console/mcp", call("about"))
        assert (await answer_of(connected, data)).startswith(b"HTTP/1.1 403 ")


async def test_forwarded_request_is_accepted_once_by_all_workers_together(
    serve: Any, server_file: Path, postgres_url: str
) -> None:
    # Workers share the internal address: a copy of a request reaches another worker, which relays it to the first.
    await asyncio.to_thread(server_file.write_text, SERVER + WHO)
    await serve("--workers", "3", env={"PORTICO_STORE": postgres_url})
    keys, workers = await real_keys(postgres_url), await workers_of(postgres_url)
    async with Database(postgres_url, max_connections=1) as database:
        [address] = set(await database.read(lambda tx: tx.fetch_all(str, "select address from portico_worker")))
    host, _, port = address.rpartition(":")
    for worker in workers:
        data = forwarded(keys, worker, "/mcp", call("who"), principal=Principal("ada"))
        answers = [await answer_of(await asyncio.open_connection(host, int(port)), data) for _ in range(24)]
        assert sum(b"ada" in answer for answer in answers) == 1


def test_internal_port_is_not_that_of_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    place = BindAddress(host="127.0.0.1", port=free_port())
    [[public]] = place.open_sockets()
    with public:
        monkeypatch.setenv("PORTICO_ADVERTISED_ADDRESS", f"127.0.0.1:{place.port}")
        with pytest.raises(UsageError, match="is used by clients"):
            place.open_internal(public)
        monkeypatch.setenv("PORTICO_ADVERTISED_ADDRESS", "https://127.0.0.1:9")
        with pytest.raises(UsageError, match="requires a certificate"):
            place.open_internal(public)
        monkeypatch.setenv("PORTICO_ADVERTISED_ADDRESS", "here")
        with pytest.raises(UsageError, match="must be host:port"):
            place.open_internal(public)


@pytest.mark.parametrize(
    "sql",
    [
        'update portico_session set memo = replace(memo, \'{"facts"\', \'{"principal":{"id":"root"},"facts"\')',
        "update portico_session set path = '/other'",
        "update portico_session set signature = null",
        "update portico_session set signature = (select max(signature) from portico_worker)",
    ],
)
async def test_session_with_tampered_row_is_not_taken_over(serve: Any, tmp_path: Path, sql: str) -> None:
    store = str(tmp_path / "store.db")
    fleet = await serve("--workers", "2", env={"PORTICO_STORE": store, "TMPDIR": str(tmp_path)})
    changed = await Session(fleet.port).begin()
    owner = (await changed.call("pid")).value
    assert await change(store, sql) == 1
    kept = await Session(fleet.port).begin()
    while (await kept.call("pid")).value != owner:
        kept = await Session(fleet.port).begin()
    os.kill(owner, signal.SIGKILL)
    await fleet.wait_until(lambda: owner not in fleet.workers() and len(fleet.workers()) == 2)
    assert (await changed.call("pid")).status == 404
    assert (await kept.call("pid")).status == 200


async def test_changed_address_is_not_sent_to(postgres_url: str) -> None:
    signing = SigningKeys([b"k" * 32])
    ours, theirs = [await open_worker_store(postgres_url, worker * 16, "s", signing) for worker in "ab"]
    try:
        await theirs.renew_lease("10.0.0.2:8001")
        match = await ours.find_worker("b" * 16)
        assert match is not None and match.address == "10.0.0.2:8001"
        await change(postgres_url, "update portico_worker set address = '203.0.113.9:80'")
        match = await ours.find_worker("b" * 16)
        assert match is not None and match.lives and match.address is None
    finally:
        await ours.close()
        await theirs.close()


@pytest.mark.parametrize(
    "name", ["subprocess:getoutput", "os:system", "builtins:eval", "subprocess.getoutput", "getoutput", "unlisted", ""]
)
def test_authentic_change_resolves_no_name_that_was_not_declared(name: str) -> None:
    # A worker whose key is known to an attacker must not become a way to run code in the others.
    server = Server("many", version="1")
    server.declare(_extra)
    for method in (replication.COMPONENT_ADDED, replication.COMPONENT_REMOVED):
        replication.apply_remote_change(server, method, name)
    assert not server.registry.by_name
    replication.apply_remote_change(server, replication.COMPONENT_ADDED, replication.declared_name(_extra))
    assert len(server.registry.by_name) == 1


def _extra() -> int:
    return 1


def unlisted() -> int:
    return 2


async def test_only_declared_components_are_added_and_only_by_workers(
    serve: Any, server_file: Path, postgres_url: str
) -> None:
    await asyncio.to_thread(server_file.write_text, SERVER + WHO)
    fleet = await serve("--workers", "2", env={"PORTICO_STORE": postgres_url})
    names = ("subprocess:getoutput", "os:system", "builtins:eval", "server:unlisted", "unlisted", "extra")
    line = await HttpConnection.to(fleet.port)

    async def tools() -> set[str]:
        answer = await line.request_stateless("tools/list")
        return {tool["name"] for tool in answer.json["result"]["tools"]}

    before = await tools()
    for name in names:
        result = json.dumps(["many", "x", "portico/added", name])
        packet = json.dumps(["stranger", [["portico changes", result]], 1, 0.0])
        await asyncio.to_thread(_notify, postgres_url, packet)
        # And as a row, for workers that are started later.
        row = "insert into portico_run_time_change (id, server, method, name, made_at) values (?, 'many', ?, ?, 0)"
        await change(postgres_url, row, f"stranger {name}", "portico/added", name)
    gone = min(fleet.workers())
    os.kill(gone, signal.SIGKILL)
    await fleet.wait_until(lambda: gone not in fleet.workers() and len(fleet.workers()) == 2)
    seen = set()
    while seen != fleet.workers():
        await line.close()
        line = await HttpConnection.to(fleet.port)
        seen.add((await line.call("pid")).value)
        assert await tools() == before
    # A worker adds it in all of them.
    await line.call("grow")

    async def all_have_it() -> bool:
        return "extra" in await tools()

    for _ in range(8):
        await line.close()
        line = await HttpConnection.to(fleet.port)
        await fleet.wait_until(all_have_it)
    await line.close()


def _notify(url: str, payload: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("select pg_notify('portico', %s)", [payload])


def test_components_must_be_declared_before_the_server_runs() -> None:
    server = Server("one")

    def tool() -> int:
        return 1

    with pytest.raises(UsageError, match="declare"):
        server.add(tool, replicate=True)
    with pytest.raises(UsageError, match="declare"):
        server.remove("tool", replicate=True)
    assert server.declare(tool) is tool
    server.add(tool, replicate=True)
    server.remove("tool", replicate=True)
    same = partial(tool)
    same.__name__ = "tool"  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="another component"):
        server.declare(same)
    server.subscriptions.broadcast_hook = lambda method, name: None
    with pytest.raises(UsageError, match="before the server runs"):
        server.declare(tool)


async def test_processes_without_a_key_share_no_sessions(
    serve: Any, postgres_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PORTICO_ENCRYPTION_KEYS")
    env = {"PORTICO_STORE": postgres_url, "TMPDIR": str(tmp_path)}
    alone, workers = await serve(env=env), await serve("--workers", "2", env=env)
    for fleet in (alone, workers):
        await fleet.wait_until(
            lambda fleet=fleet: any("PORTICO_ENCRYPTION_KEYS is not set" in text for text in fleet.log)
        )
    # Workers of one supervisor have a key of their own.
    session = await Session(workers.port).begin()
    assert len({(await session.call("pid")).value for _ in range(8)}) == 1
    session.port = alone.port
    assert (await session.call("pid")).status == 404


# The folder of the sockets


def test_folder_of_another_user_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary, data = tmp_path / "tmp", tmp_path / "data"
    temporary.mkdir()
    data.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("PORTICO_DATA", str(data))
    first = Path(default_socket_dir("store", "server"))
    assert first.parent == temporary and stat.S_IMODE(first.stat().st_mode) == 0o700
    assert default_socket_dir("store", "server") == str(first)
    # Others can write to it; a link of somebody else's; a file; a folder of another user.
    first.chmod(0o777)
    assert Path(default_socket_dir("store", "server")).parent == data
    first.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    first.symlink_to(tmp_path / "elsewhere")
    assert Path(default_socket_dir("store", "server")).parent == data
    first.unlink()
    first.touch()
    assert Path(default_socket_dir("store", "server")).parent == data
    first.unlink()
    if os.geteuid() == 0:
        first.mkdir(mode=0o700)
        os.chown(first, 65534, 65534)
        assert Path(default_socket_dir("store", "server")).parent == data
        first.rmdir()
    # Nowhere is a place for it: then there is a new one each time.
    for parent in (temporary, data):
        (parent / first.name).mkdir(exist_ok=True)
        (parent / first.name).chmod(0o755)
    names = {default_socket_dir("store", "server") for _ in range(2)}
    assert len(names) == 2
    assert all(stat.S_IMODE(os.stat(item).st_mode) == 0o700 for item in names)
    # Workers of one supervisor still find each other.
    supervisor = tmp_path / "supervisor"
    supervisor.mkdir(mode=0o700)
    assert {default_socket_dir("store", "server", fallback=str(supervisor)) for _ in range(2)} == {str(supervisor)}


def test_occupied_folder_does_not_separate_workers_before_the_data_directory_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary, data = tmp_path / "tmp", tmp_path / "new" / "data"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("PORTICO_DATA", str(data))
    Path(default_socket_dir("store", "server")).chmod(0o777)
    assert {Path(default_socket_dir("store", "server")).parent for _ in range(2)} == {data}
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_folder_is_in_the_runtime_directory_where_that_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert Path(default_socket_dir("store", "server")).parent == runtime
    runtime.chmod(0o755)
    assert Path(default_socket_dir("store", "server")).parent == tmp_path
