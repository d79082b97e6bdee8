"""Live Python through a client, with workers in the real sandbox."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from portico import Client, Server, UsageError
from portico.auth.principal import Principal
from portico.protocol.errors import ProtocolError
from portico.protocol.versions import HANDSHAKE_VERSIONS, LATEST_PROTOCOL_VERSION
from portico_services.livepython import LivePython, attach, service
from portico_services.livepython.sandbox.forked_worker import ForkedWorkerFactory
from portico_services.livepython.sandbox.limits import MIB, SandboxLimits
from portico_services.livepython.sandbox.syscalls import SandboxUnavailable
from support.live_python import REVISION, jail_only, wait_until

Begin = Callable[..., Any]


@jail_only
@pytest.mark.parametrize("revision", [LATEST_PROTOCOL_VERSION, *HANDSHAKE_VERSIONS])
async def test_three_and_four_are_seven_on_every_revision(revision: str) -> None:
    server = Server("live", version="1")
    server.add(LivePython())
    async with Client(server, protocol_version=revision) as client:
        result = await client.call_tool("evaluate", {"expression": "3 + 4"})
        assert [block.text for block in result.content] == ["7"]
        failed = await client.call_tool("evaluate", {"expression": "nothing"}, raise_on_error=False)
        assert failed.is_error
        assert failed.text.startswith("Error: NameError: name 'nothing' is not defined")


@jail_only
async def test_result_contains_output_value_and_structured_data(talk: Begin) -> None:
    live = await talk()
    result = await live.run("print('one'); import sys; print('two', file=sys.stderr); {'a': 1}")
    assert [block.text for block in result.content] == ["one\ntwo\n", "{'a': 1}"]
    assert result.structured == {"session": "main", "type": "dict", "output": "one\ntwo\n", "value": {"a": 1}}
    assert await live.text("x = 1") == "(no value)"
    assert await live.text("None") == "None"
    assert await live.text("print('only')") == "only\n"
    assert (await live.run("object()")).structured.keys() == {"session", "type"}


@jail_only
async def test_failure_includes_the_output_printed_before(talk: Begin) -> None:
    live = await talk()
    result = await live.run("print('so far'); 1/0")
    assert result.is_error
    assert [block.text.splitlines()[0] for block in result.content] == [
        "so far",
        "Error: ZeroDivisionError: division by zero",
    ]


@jail_only
async def test_pictures_are_images(talk: Begin) -> None:
    live = await talk()
    png = b"\x89PNG\r\n\x1a\n" + b"x" * 100
    result = await live.run(f"class A:\n  def _repr_png_(self): return {png!r}\n  def __repr__(self): return 'A'\nA()")
    assert [block.text for block in result.content[:-1]] == ["A"]
    assert result.content[-1].mime_type == "image/png"


@jail_only
async def test_output_beyond_the_bound_is_counted(talk: Begin) -> None:
    live = await talk(max_output_bytes=1000)
    text = await live.text("print('x' * 5000)")
    assert text == "x" * 1000 + "\n[… 4,001 more bytes]"


@jail_only
async def test_sessions_have_names_of_their_own(talk: Begin) -> None:
    live = await talk()
    await live.run("x = 1", session="a")
    assert "NameError" in await live.text("x", session="b")
    assert await live.text("x", session="a") == "1"
    listed = (await live.call("list_sessions")).structured["result"]
    assert [(item["name"], item["evaluations"], item["busy"]) for item in listed] == [("a", 2, False), ("b", 1, False)]
    assert "was reset" in (await live.call("reset_session", session="a")).text
    assert "NameError" in await live.text("x", session="a")
    assert "did not exist" in (await live.call("reset_session", session="never")).text


@jail_only
async def test_sessions_are_private_to_their_principal() -> None:
    server = Server("live", version="1")
    server.add(LivePython())
    async with (
        Client(server, principal=Principal("ada")) as ada,
        Client(server, principal=Principal("bob")) as bob,
    ):
        await ada.call_tool("evaluate", {"expression": "x = 'hers'"})
        seen = await bob.call_tool("evaluate", {"expression": "x"}, raise_on_error=False)
        assert "NameError" in seen.text
        assert (await bob.call_tool("reset_session", {"session": "other"})).text.startswith(
            "Session 'other' did not exist"
        )
        await bob.call_tool("reset_session", {})
        assert (await ada.call_tool("evaluate", {"expression": "x"})).text == "'hers'"


@jail_only
@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 65, "é", "a\n"])
async def test_session_with_an_odd_name_is_rejected(talk: Begin, name: str) -> None:
    live = await talk()
    result = await live.run("1", session=name)
    assert result.is_error
    assert "A session name must be" in result.text


@jail_only
async def test_session_limit_evicts_the_oldest_idle_session(talk: Begin) -> None:
    live = await talk(max_sessions=2, idle_timeout=1000)
    await live.run("x = 1", session="a")
    await live.run("1", session="b")
    assert "The limit of 2 sessions is reached" in await live.text("1", session="c")
    live.live._client.interpreters.idle_timeout = 0
    assert await live.text("1", session="c") == "1"
    assert {item["name"] for item in (await live.call("list_sessions")).structured["result"]} == {"b", "c"}


@jail_only
async def test_code_that_can_be_stopped_keeps_its_names(talk: Begin) -> None:
    live = await talk()
    await live.run("x = 5")
    result = await live.run("print('begun')\nwhile True:\n    pass", timeout=0.2)
    assert result.is_error
    printed, notification = (block.text for block in result.content)
    assert printed == "begun\n"
    assert notification.splitlines()[0] == (
        "Error: It did not finish within 0.2 s and was stopped. The session 'main' still has its names."
    )
    # Where it was.
    assert "  line " in notification
    assert await live.text("x") == "5"


@jail_only
async def test_uninterruptible_code_is_ended_and_the_session_reports_it(talk: Begin) -> None:
    live = await talk()
    await live.run("x = 5")
    result = await live.text("import itertools; any(itertools.repeat(0))", timeout=0.2)
    assert result == (
        "Error: It was ended, because it did not stop within 0.2 s. "
        "The session 'main' continues in another process, with its names."
    )
    assert await live.text("x") == "5"


@jail_only
async def test_killed_worker_is_replaced_and_the_session_reports_it(talk: Begin) -> None:
    live = await talk()
    pid = (await live.run("import os; os.getpid()")).structured["value"]
    os.kill(pid, 9)
    await wait_until(lambda: live.live._client.interpreters._sessions[None, "main"].worker.has_ended)
    result = await live.run("3 + 4")
    note, value = (block.text for block in result.content)
    assert note.startswith("Session 'main' was restarted and lost its names: the system killed it")
    assert value == "7"
    assert await live.text("3 + 4") == "7"


@jail_only
async def test_loss_of_a_worker_is_reported_with_the_next_evaluation(talk: Begin) -> None:
    live = await talk()
    pid = (await live.run("import os; os.getpid()")).structured["value"]
    os.kill(pid, 9)
    await wait_until(lambda: live.live._client.interpreters._sessions[None, "main"].worker.has_ended)
    assert not (await live.call("list_classes", package="__main__")).is_error
    assert "was restarted and lost its names" in (await live.run("1")).content[0].text


@jail_only
async def test_calls_waiting_for_a_reset_session_run_in_the_next_one(talk: Begin) -> None:
    live = await talk()
    pids = []
    running = asyncio.ensure_future(live.run("x = 1\nwhile True: pass", timeout=30))
    await wait_until(lambda: any(session.busy for session in live.live._client.interpreters.sessions(None)))
    waiting = [asyncio.ensure_future(live.run("import os; os.getpid()")) for _ in range(3)]
    await live.client.ping()
    await live.call("reset_session")
    assert "was reset" in (await running).text
    pids = [(await session).structured["value"] for session in waiting]
    assert len(set(pids)) == 1
    assert (await live.run("import os; os.getpid()")).structured["value"] == pids[0]


@jail_only
async def test_calls_are_serialized_per_session(talk: Begin) -> None:
    live = await talk()
    await live.run("x = 0")
    slow = asyncio.ensure_future(live.run("import time; time.sleep(0.3); x += 1; x"))
    await live.client.ping()
    then = asyncio.ensure_future(live.run("x += 1; x"))
    assert await live.text("1", session="other") == "1"
    assert not then.done()
    assert [(await item).text for item in (slow, then)] == ["1", "2"]


@jail_only
async def test_timeout_has_bounds(talk: Begin) -> None:
    live = await talk(max_timeout=5)
    assert "at most 5 s" in await live.text("1", timeout=6)
    assert (await live.run("1", timeout=0)).is_error
    assert (await live.run("1", timeout=-1)).is_error


@jail_only
async def test_memory_and_thread_limits_apply(talk: Begin) -> None:
    live = await talk(memory_bytes=128 * MIB)
    assert "MemoryError" in await live.text("x = bytearray(200 * 2**20)")
    assert await live.text("x = bytearray(20 * 2**20); len(x)") == "20971520"
    assert "can't start new thread" in await live.text("import threading; threading.Thread(target=print).start()")


@jail_only
async def test_processor_time_is_bounded_over_the_life_of_a_session(talk: Begin) -> None:
    live = await talk(cpu_seconds=1)
    text = await live.text("while True: pass", timeout=30)
    assert "it used up its CPU time" in text


@jail_only
async def test_preloaded_modules_and_readable_paths_are_available(talk: Begin, tmp_path: Any) -> None:
    (tmp_path / "data.txt").write_text("hello")
    live = await talk(preload=["colorsys"], readable_paths=[str(tmp_path)])
    assert await live.text("import sys; 'colorsys' in sys.modules") == "True"
    assert await live.text(f"open({str(tmp_path / 'data.txt')!r}).read()") == "'hello'"
    assert "Permission denied" in await live.text(f"open({str(tmp_path / 'new')!r}, 'w')")


@jail_only
async def test_common_operations_work_in_the_sandbox(talk: Begin) -> None:
    live = await talk()
    for code, expected in [
        ("import sqlite3; c = sqlite3.connect('a.db'); c.execute('create table t(x)'); c.commit(); 1", "1"),
        ("open('a', 'w').write('x'); import shutil; shutil.copy2('a', 'b'); open('b').read()", "'x'"),
        ("import tempfile; f = tempfile.NamedTemporaryFile(); f.write(b'x')", "1"),
        ("import pathlib; sorted(p.name for p in pathlib.Path().iterdir() if p.suffix == '.db')", "['a.db']"),
        ("import asyncio; await asyncio.wait_for(asyncio.sleep(0, 5), 1)", "5"),
        ("import random, uuid, secrets; len({random.random(), uuid.uuid4(), secrets.token_hex()})", "3"),
        ("import decimal, datetime, csv, hashlib, zlib; hashlib.sha256(b'').hexdigest()[:4]", "'e3b0'"),
        ("import msgspec; msgspec.json.decode(b'[1]')", "[1]"),
        ("import os; os.path.basename(os.getcwd()) == os.path.basename(os.environ['HOME'])", "True"),
        ("import signal, os; signal.signal(signal.SIGUSR1, lambda *a: None); os.kill(os.getpid(), 10)", "None"),
    ]:
        assert await live.text(code) == expected, code


@jail_only
async def test_two_sessions_do_not_draw_the_same_numbers(talk: Begin) -> None:
    live = await talk()
    code = "import random; random.random()"
    assert await live.text(code, session="a") != await live.text(code, session="b")


# Looking, reading, asking


@jail_only
async def test_tools_answer_with_data_that_fits_their_schemas(talk: Begin) -> None:
    live = await talk()
    await live.run("class A:\n    def hello(self): return 'hi'\na = A()")
    for name, arguments, words in [
        ("system_info", {}, "in a Linux sandbox"),
        ("list_packages", {"pattern": "json"}, "standard"),
        ("list_classes", {"package": "__main__"}, '"A"'),
        ("class_details", {"className": "A"}, '"superclass":"object"'),
        ("method_source", {"className": "A", "selector": "hello"}, "def hello(self)"),
        ("search_methods", {"pattern": "hello"}, '"className":"A"'),
        ("inspect_object", {"expression": "a"}, '"type":"A"'),
        ("references_to", {"name": "A"}, "a = A()"),
    ]:
        result = await live.call(name, **arguments)
        assert not result.is_error, result.text
        assert words in result.text
        assert result.structured


@jail_only
async def test_names_with_lone_surrogates_are_listed(talk: Begin) -> None:
    live = await talk()
    await live.run("A = type('A', (), {'x\\ud800': 1, 'f\\ud800': lambda self: 1})")
    result = await live.call("class_details", className="A")
    assert result.structured["methods"][0]["name"] == "f?"
    assert await live.text("3 + 4") == "7"


@jail_only
async def test_unknown_class_error_suggests_the_nearest_name(talk: Begin) -> None:
    live = await talk()
    await live.run("class Account: pass")
    assert "Did you mean Account?" in (await live.call("class_details", className="Acount")).text
    assert (await live.call("list_classes", package="no_such")).is_error


@jail_only
async def test_resources_are_read_and_unknown_ones_are_not_found(talk: Begin) -> None:
    live = await talk()
    client = live.client
    await live.run("class A:\n    def hello(self): return 'hi'")
    [version] = await client.read_resource("python://system/version")
    assert version.text == "Python " + ".".join(map(str, sys.version_info[:3]))
    assert "in a Linux sandbox" in (await client.read_resource("python://system/info"))[0].text
    assert "in a Linux sandbox" in (await client.read_resource("python://system/summary"))[0].text
    assert '"json"' in (await client.read_resource("python://packages"))[0].text
    assert '"superclass":"object"' in (await client.read_resource("python://class/A"))[0].text
    [source] = await client.read_resource("python://method/A/hello")
    assert source.text == "def hello(self): return 'hi'"
    assert source.mime_type == "text/x-python"
    assert "JSONDecoder" in (await client.read_resource("python://package/json"))[0].text
    for uri in ("python://class/Nothing", "python://method/A/nothing", "python://package/no_such"):
        with pytest.raises(ProtocolError, match="not found"):
            await client.read_resource(uri)
    templates = {resource_template.uri_template for resource_template in await client.list_resource_templates()}
    assert templates == {
        "python://class/{className}",
        "python://method/{className}/{selector}",
        "python://package/{packageName}",
    }


@jail_only
async def test_prompts_are_listed_and_validate_their_arguments(talk: Begin) -> None:
    client = (await talk()).client
    listed = {item.name: item for item in await client.list_prompts()}
    assert set(listed) == {"review-class", "refactor-method", "document-class", "generate-tests", "system-overview"}
    required = {item.name: item.required for item in listed["review-class"].arguments}
    assert required == {"className": True, "focus": False}
    response = await client.get_prompt("review-class", {"className": "Account", "focus": "names"})
    assert response.description == "Code review for Account"
    assert [item.role for item in response.messages] == ["user"]
    assert response.messages[0].content.text.startswith("Please review the class Account. Focus on names.")
    response = await client.get_prompt("refactor-method", {"className": "Account", "selector": "pay"})
    assert [item.role for item in response.messages] == ["user", "assistant", "user"]
    for name, arguments in [
        ("document-class", {"className": "A"}),
        ("generate-tests", {"className": "A"}),
        ("system-overview", {}),
    ]:
        assert (await client.get_prompt(name, arguments)).messages
    with pytest.raises(ProtocolError) as missing:
        await client.get_prompt("review-class", {})
    assert missing.value.code == -32602


@jail_only
async def test_names_are_completed(connect: Callable[..., Any]) -> None:
    server = Server("live", version="1")
    live = LivePython()
    server.add(live)
    async with server.lifespan():
        wire = connect(server)
        await wire.initialize(REVISION)
        code = {"expression": "class Account:\n    def pay(self): pass"}
        await wire.request("tools/call", {"name": "evaluate", "arguments": code})

        async def complete(ref: dict[str, str], argument: str, value: str, **given: str) -> list[str]:
            params = {"ref": ref, "argument": {"name": argument, "value": value}, "context": {"arguments": given}}
            return (await wire.request("completion/complete", params))["result"]["completion"]["values"]

        review, method = (
            {"type": "ref/prompt", "name": "review-class"},
            {"type": "ref/resource", "uri": "python://method/{className}/{selector}"},
        )
        assert (await complete(review, "className", "Acc"))[0] == "Account"
        assert await complete(method, "selector", "p", className="Account") == ["pay"]
        assert await complete(method, "selector", "p", className="Nothing") == []
        every = {"ref": review, "argument": {"name": "className", "value": ""}}
        response = (await wire.request("completion/complete", every))["result"]["completion"]
        assert (len(response["values"]), response["hasMore"]) == (100, True)
        assert response["total"] > 100
        package = {"type": "ref/resource", "uri": "python://package/{packageName}"}
        assert "json" in await complete(package, "packageName", "jso")
        # Nobody who types waits for what is running.
        slow = {"name": "evaluate", "arguments": {"expression": "import time; time.sleep(0.3)"}}
        wire.send({"jsonrpc": "2.0", "id": "slow", "method": "tools/call", "params": slow})
        await wait_until(lambda: any(session.busy for session in live._client.interpreters.sessions(None)))
        assert await complete(review, "className", "Acc") == []
        assert "result" in await wire.response("slow")


@jail_only
async def test_resource_that_hangs_is_an_error_and_not_for_ever(talk: Begin) -> None:
    live = await talk(timeout=0.2)
    code = "class B:\n  def __repr__(self):\n    while True: pass\nclass A:\n  def f(self, x=B()): pass"
    await live.run(code, timeout=5)
    assert "did not finish within 0.2 s" in (await live.call("class_details", className="A")).text
    with pytest.raises(ProtocolError, match="did not finish"):
        await live.client.read_resource("python://class/A")
    assert await live.text("3 + 4") == "7"


# How it is kept


async def test_missing_sandbox_prevents_the_service_unless_disabled_explicitly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "portico_services.livepython.session_pool.unavailable_reason", lambda limits: "there is no Landlock here"
    )
    with pytest.raises(UsageError, match=r"there is no Landlock here\. Set sandbox to 'wasm', or to 'none'"):
        LivePython()
    assert LivePython(sandbox="none").mode.startswith("UNSAFE")
    assert LivePython(sandbox="wasm").mode == "in WebAssembly"


def test_settings_that_make_no_sense_are_rejected() -> None:
    with pytest.raises(UsageError, match="sandbox: expected one of linux, wasm, none, got 'jail'"):
        LivePython(sandbox="jail")
    with pytest.raises(UsageError, match="64 MiB"):
        LivePython(memory_bytes=MIB)


@jail_only
async def test_sandbox_failure_at_startup_prevents_the_server_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(self: ForkedWorkerFactory) -> None:
        raise SandboxUnavailable("landlock_restrict_self: Operation not permitted")

    monkeypatch.setattr(ForkedWorkerFactory, "start", refuse)
    server = Server("live", version="1")
    server.add(LivePython())
    with pytest.raises(UsageError, match="live Python cannot start: landlock_restrict_self"):
        async with Client(server):
            pass


@jail_only
@pytest.mark.parametrize("python", ["/no/such/python", "/bin/true"])
async def test_unusable_python_prevents_the_server_from_starting(python: str) -> None:
    server = Server("live", version="1")
    server.add(LivePython(python=python))
    with pytest.raises(UsageError, match="live Python cannot start"):
        async with Client(server):
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="the processes that code is copied from are Linux's")
async def test_unsandboxed_session_is_reported_as_unsafe_and_ends_its_children(talk: Begin) -> None:
    live = await talk(sandbox="none")
    assert "UNSAFE" in (await live.call("system_info")).text
    assert await live.text("open('/etc/hostname').read() and 1") == "1"
    code = "import subprocess; p = subprocess.Popen(['sleep', '1000']); p.pid"
    child = (await live.run(code)).structured["value"]
    assert str(child) in os.listdir("/proc")
    await live.call("reset_session")
    await wait_until(lambda: str(child) not in os.listdir("/proc"))


@jail_only
async def test_nothing_is_left_when_the_server_ends() -> None:
    server, live = Server("live", version="1"), LivePython()
    server.add(live)
    async with Client(server) as client:
        for session in ("a", "b"):
            code = "import os; open('file', 'w'); [os.getpid(), os.getppid(), os.getcwd()]"
            result = await client.call_tool("evaluate", {"expression": code, "session": session})
            pid, parent, home = result.structured["value"]
    left = set(os.listdir("/proc"))
    assert not {str(pid), str(parent)} & left
    await wait_until(lambda: not os.access(os.path.dirname(home), os.F_OK))


@jail_only
async def test_service_that_is_added_later_begins_with_its_first_call() -> None:
    server = Server("live", version="1")
    live = LivePython()
    async with Client(server) as client:
        server.add(live)
        assert (await client.read_resource("python://system/version"))[0].text.startswith("Python 3.")
        assert (await client.call_tool("evaluate", {"expression": "3 + 4"})).text == "7"
    await live._client.interpreters.close()
    with pytest.raises(SandboxUnavailable, match="was shut down"):
        await live._client.interpreters.ready()


@jail_only
async def test_two_servers_can_run_one_after_the_other_with_one_service() -> None:
    server = Server("live", version="1")
    server.add(LivePython())
    for _ in range(2):
        async with Client(server) as client:
            assert "NameError" in (await client.call_tool("evaluate", {"expression": "x"}, raise_on_error=False)).text
            await client.call_tool("evaluate", {"expression": "x = 1"})


def test_public_names_are_importable() -> None:
    assert attach is not None
    assert service.LivePython is LivePython
    assert LivePython().local_only
    assert not LivePython(allow_remote=True).local_only
    assert SandboxLimits().max_threads == 0


def test_wasm_sandbox_is_available_without_linux_features() -> None:
    """As on Windows: no rlimits, few signals, no way to copy a process."""
    program = """
import asyncio, os, shutil, signal, socket, sys
sys.modules["resource"] = None
for name in ("SIGKILL", "SIGSTOP", "SIGCONT", "SIGXCPU", "SIGBUS", "SIGSYS", "pidfd_send_signal"):
    delattr(signal, name)
for name in ("send_fds", "recv_fds"):
    delattr(socket, name)
for name in ("fork", "setsid", "nice"):
    delattr(os, name)
sys.platform = "win32"
from portico_services.livepython import LivePython
from portico import UsageError
LivePython(sandbox="wasm")
try:
    LivePython()
except UsageError as reason:
    print(reason)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert "this is win32. Set sandbox to 'wasm'" in done.stdout, done.stderr
