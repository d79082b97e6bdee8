"""The bridge and the daemon as processes: start, end, restart, and what another user could do."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from portico.rpc.channel import MAX_IN_FLIGHT_REQUESTS
from portico_gateway.cli.hub import send_command
from portico_gateway.hub import bridge, location
from portico_gateway.hub.location import HubError
from support.hub_hosts import ALL_CAPABILITIES, SERVER, TIMEOUT_SECONDS

PORTICO = [sys.executable, "-m", "portico"]


# Hosts of a test that failed are closed by its fixture.
OPEN: list[BridgedHost] = []


class BridgedHost:
    """A host that starts `portico connect` and exchanges messages with it."""

    def __init__(self, *words: str, command: tuple[str, ...] | None = SERVER, version: str = "2025-06-18") -> None:
        words = words or ("server",)
        inline = () if command is None else ("--", *command)
        OPEN.append(self)
        self.process = subprocess.Popen(
            [*PORTICO, "connect", *words, *inline],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._last_id = 0
        self._buffer = b""
        self.version = version

    def initialize(self) -> dict[str, Any]:
        client = {"name": "host", "version": "1"}
        params = {"protocolVersion": self.version, "capabilities": ALL_CAPABILITIES, "clientInfo": client}
        response = self.request("initialize", params)
        self.send({"method": "notifications/initialized"})
        return response

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def start(self, method: str, params: dict[str, Any] | None = None) -> int:
        self._last_id += 1
        self.send({"id": self._last_id, "method": method, "params": params or {}})
        return self._last_id

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while b"\n" not in self._buffer:
            assert select.select([self.process.stdout], [], [], TIMEOUT_SECONDS)[0], "no message"
            data = os.read(self.process.stdout.fileno(), 1 << 20)
            assert data, self.process.stderr and self.process.stderr.read().decode()
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return dict(json.loads(line))

    def wait(self, id: int) -> dict[str, Any]:
        while (message := self.read()).get("id") != id or "method" in message:
            pass
        return message

    def request(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        return self.wait(self.start(method, params))

    def call(self, tool: str, **arguments: Any) -> Any:
        response = self.request("tools/call", {"name": tool, "arguments": arguments})
        return json.loads(response["result"]["content"][0]["text"])

    def close(self) -> int:
        assert self.process.stdin is not None
        OPEN.remove(self)
        self.process.stdin.close()
        status = self.process.wait(TIMEOUT_SECONDS)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return status


@pytest.fixture
def daemon(hub_directory: Path) -> Iterator[Path]:
    """Stop the daemon that the test's bridges started."""
    yield hub_directory
    for host in list(OPEN):
        host.close()
    if hub_directory.exists():
        directory = location.open_directory()
        try:
            send_command(directory, "stop", [])
            end = time.monotonic() + TIMEOUT_SECONDS
            while location.is_running(directory):
                assert time.monotonic() < end
                time.sleep(0.01)
        finally:
            os.close(directory)


def hub_status() -> dict[str, Any]:
    directory = location.open_directory()
    try:
        return dict(send_command(directory, "status", []))
    finally:
        os.close(directory)


def test_bridges_that_start_together_use_one_hub(daemon: Path) -> None:
    hosts = [BridgedHost() for _ in range(4)]
    threads = [threading.Thread(target=host.initialize) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
    assert [host.call("echo", text="hi") for host in hosts] == ["hi"] * 4
    assert hub_status()["sessions"] == 4
    for name in (location.SOCKET_NAME, location.LOG_NAME, location.STORE_NAME):
        assert not (daemon / name).stat().st_mode & 0o077
    # The last message of a host may come together with its end.
    last = hosts[0].start("tools/call", {"name": "echo", "arguments": {"text": "bye"}})
    assert hosts[0].process.stdin is not None
    hosts[0].process.stdin.close()
    assert "result" in hosts[0].wait(last)
    assert [host.close() for host in hosts] == [0] * 4


def test_session_continues_after_the_hub_was_killed(daemon: Path, tmp_path: Path) -> None:
    host = BridgedHost()
    host.initialize()
    before = host.call("about")
    hub = hub_status()["pid"]
    lost = host.start("tools/call", {"name": "wait", "arguments": {"file": str(tmp_path / "never")}})
    host.call("echo", text="it has started")
    os.kill(hub, signal.SIGKILL)
    # The call may have run, so it is not repeated. Everything else goes on.
    assert "may have run" in host.wait(lost)["error"]["message"]
    assert [tool["name"] for tool in host.request("tools/list")["result"]["tools"]]
    after = host.call("about")
    assert after["pid"] != before["pid"]
    # The new server has seen the handshake of the host, which has noticed nothing.
    assert after["client"] == before["client"]
    assert hub_status()["pid"] != hub
    with pytest.raises(ProcessLookupError):
        while True:
            os.kill(before["pid"], 0)
            time.sleep(0.005)
    host.close()


def test_killed_hub_under_load_loses_only_calls_in_flight(daemon: Path) -> None:
    """Six hosts call while the hub is killed twice. A call either returns its own result or was in flight."""
    hosts = [BridgedHost() for _ in range(6)]
    results: list[list[str]] = [[] for _ in hosts]
    ended = threading.Event()
    failures: list[BaseException] = []

    def work(host: BridgedHost, outcomes: list[str]) -> None:
        try:
            host.initialize()
            while not ended.is_set():
                text = f"call {len(outcomes)} of {id(host)}"
                response = host.request("tools/call", {"name": "echo", "arguments": {"text": text}})
                if "error" in response:
                    assert "may have run" in response["error"]["message"]
                    outcomes.append("lost")
                else:
                    assert json.loads(response["result"]["content"][0]["text"]) == text
                    outcomes.append("ok")
        except BaseException as failure:
            failures.append(failure)

    def wait_for_calls() -> None:
        before = [outcomes.count("ok") for outcomes in results]
        end = time.monotonic() + TIMEOUT_SECONDS
        while any(outcomes.count("ok") < count + 3 for outcomes, count in zip(results, before, strict=True)):
            assert not failures and time.monotonic() < end, failures
            time.sleep(0.005)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(hosts, results, strict=True)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            wait_for_calls()
            os.kill(hub_status()["pid"], signal.SIGKILL)
        wait_for_calls()
    finally:
        ended.set()
        for thread in threads:
            thread.join(TIMEOUT_SECONDS)
    assert not failures
    # A host sends one call at a time, so it loses at most one with each kill.
    assert all(outcomes.count("lost") <= 2 for outcomes in results)
    assert [host.close() for host in hosts] == [0] * 6


def test_stopped_hub_is_started_by_the_next_message(daemon: Path) -> None:
    host = BridgedHost()
    host.initialize()
    directory = location.open_directory()
    try:
        send_command(directory, "stop", [])
        end = time.monotonic() + TIMEOUT_SECONDS
        while location.is_running(directory):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert location.connect(directory) is None
    finally:
        os.close(directory)
    assert host.call("echo", text="again") == "again"
    host.close()


def test_restart_of_the_hub_lets_calls_end(daemon: Path, tmp_path: Path) -> None:
    host = BridgedHost()
    host.initialize()
    gate = tmp_path / "gate"
    running = host.start("tools/call", {"name": "wait", "arguments": {"file": str(gate)}})
    host.call("echo", text="it has started")
    hub = hub_status()["pid"]
    directory = location.open_directory()
    try:
        send_command(directory, "restart", [])
    finally:
        os.close(directory)
    # Sent while the old hub drains; it is processed by the next one.
    late = host.start("tools/call", {"name": "echo", "arguments": {"text": "late"}})
    gate.touch()
    answers = {message["id"]: message for message in (host.read(), host.read())}
    assert "result" in answers[running]
    assert "result" in answers[late]
    assert host.call("echo", text="again") == "again"
    assert hub_status()["pid"] != hub
    host.close()


def test_killed_bridge_ends_its_server(daemon: Path) -> None:
    host = BridgedHost()
    host.initialize()
    server = host.call("about")["pid"]
    host.process.kill()
    host.close()
    end = time.monotonic() + TIMEOUT_SECONDS
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < end:
            os.kill(server, 0)
            time.sleep(0.005)


def test_hub_works_with_a_full_disk(daemon: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log and the cached lists cannot be written; the servers do not notice."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    # Started by a process that cannot write to any file; the limit is inherited.
    code = "from portico_gateway.hub import location; d=location.open_directory(); location.connect_or_start(d)"
    subprocess.run([sys.executable, "-c", code], preexec_fn=limit, check=True, timeout=TIMEOUT_SECONDS)
    host = BridgedHost()
    host.initialize()
    assert host.call("echo", text="hi") == "hi"
    server = host.call("about")["pid"]
    os.kill(server, signal.SIGKILL)
    end = time.monotonic() + TIMEOUT_SECONDS
    # A call that is written before the hub notices the end of the server is lost.
    while server in hub_status()["servers"][0]["processes"]:
        assert time.monotonic() < end
    assert host.call("echo", text="again") == "again"
    assert (daemon / location.LOG_NAME).stat().st_size == 0
    host.close()


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_host_that_does_not_read_blocks_only_itself_and_loses_nothing(daemon: Path) -> None:
    text, count = "word " * 8_000, MAX_IN_FLIGHT_REQUESTS
    slow, other = BridgedHost(), BridgedHost("other")
    slow.initialize()
    other.initialize()
    line = {"method": "tools/call", "params": {"name": "echo", "arguments": {"text": text}}}

    def write() -> None:
        for number in range(count):
            slow.send({"id": f"n{number}", **line})

    # 40 MB in each direction; the writer is blocked until the host reads.
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    writer.join(3)
    assert writer.is_alive()
    assert other.call("echo", text="hi") == "hi"
    # Limits of the buffers: 1 MB in the bridge, and in the hub the requests and responses that are in flight.
    assert resident_mb(slow.process.pid) < 30
    assert resident_mb(hub_status()["pid"]) < 150
    received = set()
    while len(received) < count:
        message = slow.read()
        if "id" in message and "method" not in message:
            assert message["result"]["content"][0]["text"][1:-1] == text
            received.add(message["id"])
    writer.join(TIMEOUT_SECONDS)
    assert received == {f"n{number}" for number in range(count)}
    slow.close()
    other.close()


STUBBORN = """
import json, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = {}
        if message["method"] == "initialize":
            info = {"name": "stubborn", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        if message["method"] == "tools/list":
            result = {"tools": [{"name": "x", "inputSchema": {"type": "object"}}]}
        if message["method"] == "tools/call":
            result = {"content": [{"type": "text", "text": "1"}]}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize("action", ["stop", "restart", "upgrade", "host ends"])
def test_server_that_does_not_exit_is_killed(daemon: Path, action: str) -> None:
    host = BridgedHost(command=(sys.executable, "-c", STUBBORN))
    host.initialize()
    assert host.call("x") == 1
    [server] = hub_status()["servers"][0]["processes"]
    if action == "host ends":
        host.close()
    else:
        directory = location.open_directory()
        try:
            send_command(directory, action, [] if action == "stop" else ["server"])
        finally:
            os.close(directory)
    end = time.monotonic() + TIMEOUT_SECONDS
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < end:
            os.kill(server, 0)
            time.sleep(0.02)
    if action != "host ends":
        # The next message starts whatever it needs.
        assert host.call("x") == 1
        host.close()


def test_files_of_a_killed_hub_do_not_stop_the_next_one(daemon: Path) -> None:
    host = BridgedHost()
    host.initialize()
    hub = hub_status()["pid"]
    os.kill(hub, signal.SIGKILL)
    os.kill(host.process.pid, signal.SIGKILL)
    host.close()
    assert (daemon / location.SOCKET_NAME).is_socket() and (daemon / location.LOCK_NAME).exists()
    # A killed bridge may have left this one, too.
    (daemon / location.START_LOCK_NAME).touch(0o600)
    following = BridgedHost()
    following.initialize()
    assert following.call("echo", text="hi") == "hi"
    assert hub_status()["pid"] != hub
    following.close()


def test_results_that_cannot_be_stored_on_a_full_disk_are_shortened(daemon: Path) -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0));"
        "from portico_gateway.hub import location; d=location.open_directory(); location.connect_or_start(d)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=TIMEOUT_SECONDS)
    host = BridgedHost()
    host.initialize()
    arguments = {"name": "echo", "arguments": {"text": "word " * 100_000}}
    result = host.request("tools/call", arguments)["result"]
    assert len(json.dumps(result)) < 150_000
    assert "could not be stored" in result["content"][-1]["text"]
    assert host.call("echo", text="hi") == "hi"
    host.close()


def test_large_messages_pass(daemon: Path) -> None:
    host = BridgedHost()
    host.initialize()
    text = "x" * 3_000_000
    # The hub shortens the result, and has stored it.
    response = host.request("tools/call", {"name": "echo", "arguments": {"text": text}})
    short = response["result"]["content"][0]["text"]
    assert 1000 < len(short) < 100_000 and text.startswith(short[1:1000])
    # Above the limit of every stdio server of this package; the session goes on.
    host.send({"id": 77, "method": "ping", "params": {"text": "x" * bridge.MAX_MESSAGE_BYTES}})
    refusal = host.read()
    assert refusal["id"] is None
    assert "must not exceed" in refusal["error"]["message"]
    assert host.call("echo", text="small") == "small"
    host.close()


def test_bridge_loads_nothing_of_the_sdk(daemon: Path) -> None:
    code = (
        "import sys; sys.argv = ['portico', 'connect', '--unknown']\n"
        "from portico.cli.entry import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(' '.join(sorted(name for name in sys.modules if name.startswith('portico'))))\n"
        "print(any(name in sys.modules for name in ('json', 'asyncio', 'msgspec', 'argparse', 'subprocess')))"
    )
    result = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    modules, heavy = result.stdout.splitlines()
    assert set(modules.split()) <= {
        "portico",
        "portico._lazy",
        "portico.cli",
        "portico.cli.entry",
        "portico_gateway",
        "portico_gateway.hub",
        "portico_gateway.hub.bridge",
        "portico_gateway.hub.location",
    }
    assert heavy == "False"


def test_bridge_stays_below_20_mb(daemon: Path) -> None:
    host = BridgedHost()
    host.initialize()
    for _ in range(100):
        host.call("echo", text="x" * 1000)
    status = Path(f"/proc/{host.process.pid}/status").read_text()
    assert int(status.partition("VmRSS:")[2].split()[0]) < 20_000
    host.close()


def test_errors_of_a_bridge_control_no_terminal(hub_directory: Path) -> None:
    words = [sys.executable, "-m", "portico", "connect", "--x\x1b[2J\x9b1A\nforged\u202e"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert "forged" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.strip().isprintable()


# Who may connect


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_directory_that_others_can_enter_is_rejected(hub_directory: Path, mode: int) -> None:
    hub_directory.mkdir()
    hub_directory.chmod(mode)
    with pytest.raises(HubError, match="mode 700"):
        location.open_directory()


def test_directory_of_another_user_is_rejected(hub_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_directory.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(HubError, match="owned by this user"):
        location.open_directory()


def test_link_instead_of_the_directory_is_rejected(hub_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    hub_directory.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HubError, match="not a link"):
        location.open_directory()


@pytest.mark.parametrize("kind", ["file", "link", "open socket"])
def test_socket_that_is_not_the_hubs_is_rejected(hub_directory: Path, tmp_path: Path, kind: str) -> None:
    import socket

    directory = location.open_directory()
    path = hub_directory / location.SOCKET_NAME
    with socket.socket(socket.AF_UNIX) as other:
        if kind == "file":
            path.write_text("")
        elif kind == "link":
            path.symlink_to(tmp_path / "elsewhere.sock")
        else:
            other.bind(location.socket_path(directory))
            path.chmod(0o666)
        with pytest.raises(HubError, match="must be a socket"):
            location.connect(directory)
    os.close(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
def test_process_of_another_user_cannot_connect(daemon: Path, tmp_path: Path) -> None:
    host = BridgedHost()
    host.initialize()
    # Even if the directory were open, the credentials of the peer are checked.
    daemon.chmod(0o755)
    (daemon / location.SOCKET_NAME).chmod(0o666)
    for parent in daemon.parents:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    code = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.settimeout(30)\n"
        "s.connect(sys.argv[1]); s.sendall(b'{}\\n'); print(s.recv(100))"
    )
    words = [sys.executable, "-c", code, str(daemon / location.SOCKET_NAME)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert "ok" not in result.stdout
    assert result.stdout.strip() in ("b''", "") and "protocol" not in result.stdout
    daemon.chmod(0o700)
    (daemon / location.SOCKET_NAME).chmod(0o600)
    host.close()


@pytest.mark.parametrize("action", ["upgrade", "restart", "logs"])
def test_an_unknown_server_is_an_error_without_a_hub(action: str) -> None:
    done = subprocess.run([*PORTICO, "hub", action, "typo"], capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 2 and "no host uses the server 'typo'" in done.stderr


@pytest.mark.parametrize("name", [location.LOCK_NAME, location.START_LOCK_NAME, location.LOG_NAME])
def test_links_in_the_directory_are_refused(hub_directory: Path, tmp_path: Path, name: str) -> None:
    hub_directory.mkdir(mode=0o700)
    (hub_directory / name).symlink_to(tmp_path / "elsewhere")
    done = subprocess.run([*PORTICO, "hub", "start"], capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 3 and f"cannot open {hub_directory / name}" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "elsewhere").exists()
