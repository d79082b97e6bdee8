"""Hosts of a hub: which server processes they share, and isolation between them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from portico.server.results.settings import RESULTS_CAPABILITY
from portico_gateway.hub.daemon import ControlRequest, Hub
from support.hub_hosts import SERVER, TIMEOUT_SECONDS, Host, attached_host, connect, greeting, parse
from support.paths import ROOT

SHARED = "[server.server]\nshared = true\n"


async def test_host_sees_the_server_behind_the_hub(hub: Hub) -> None:
    async with attached_host("claude") as host:
        tools = (await host.request("tools/list"))["result"]["tools"]
        assert [tool["name"] for tool in tools][:3] == ["read_result", "about", "roots"]
        assert await host.call("echo", text="hello") == "hello"
        about = await host.call("about")
        # The server sees the host itself, not the hub.
        assert about["client"]["clientInfo"]["name"] == "claude"
        assert set(about["client"]["capabilities"]) >= {"roots", "elicitation", "sampling"}
        again = await host.request("initialize")
        assert "error" in again


async def test_initialize_returns_the_servers_name_and_instructions(hub: Hub) -> None:
    reader, writer = await connect()
    writer.write(json.dumps(greeting()).encode() + b"\n")
    assert await reader.readline() == b"ok\n"
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    writer.write(json.dumps({"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": params}).encode() + b"\n")
    line = await asyncio.wait_for(reader.readline(), TIMEOUT_SECONDS)
    head, _, body = line.partition(b" ")
    # The line belongs to the state of the session: a bridge sends it again to another hub.
    assert head == b"1!"
    result = json.loads(body)["result"]
    assert result["serverInfo"]["name"] == "handshake-server"
    assert result["instructions"] == "Use these tools."
    writer.close()


async def test_each_host_has_its_own_process(hub: Hub) -> None:
    async with attached_host("one") as item, attached_host("two") as two:
        assert (await item.call("about"))["pid"] != (await two.call("about"))["pid"]
        await item.call("remember", text="secret of one")
        assert await two.call("remember", text="two") == ["two"]


async def test_process_ends_with_its_host(hub: Hub) -> None:
    async with attached_host() as host:
        pid = (await host.call("about"))["pid"]
    await wait_until(lambda: not is_running(pid))


async def test_hosts_share_a_stateless_server(hub: Hub, hub_directory: Path) -> None:
    (hub_directory / "hub.toml").write_text(SHARED)
    async with attached_host("one") as item, attached_host("two", {}) as two:
        first, second = await item.call("about"), await two.call("about")
        assert first["pid"] == second["pid"]
        # A shared process cannot ask one of its hosts, so it sees a client without features.
        assert first["client"]["capabilities"] == {"experimental": RESULTS_CAPABILITY}
        assert first["client"]["clientInfo"]["name"] not in ("one", "two")


@pytest.mark.parametrize(
    "difference",
    [
        {"environment": {"TOKEN": "other"}, "variables": ("TOKEN",)},
        {"cwd": "/tmp"},
        {"names": ("other",)},
        {"command": (*SERVER, "--verbose")},
        {"command": (SERVER[0], "-I", SERVER[1])},
        {"command": ("/usr/bin/env", *SERVER)},
    ],
    ids=["environment", "directory", "name", "arguments", "options", "command"],
)
async def test_hosts_with_different_settings_share_no_process(
    hub: Hub, hub_directory: Path, difference: dict[str, Any]
) -> None:
    (hub_directory / "hub.toml").write_text(SHARED + "[server.other]\nshared = true\n")
    same: dict[str, Any] = {"environment": {"TOKEN": "mine"}, "variables": ("TOKEN",)}
    async with attached_host(**same) as item, attached_host(**{**same, **difference}) as two:
        assert (await item.call("about"))["pid"] != (await two.call("about"))["pid"]


async def test_equal_servers_are_not_shared_without_a_declaration(hub: Hub, hub_directory: Path) -> None:
    (hub_directory / "hub.toml").write_text("[server.server]\nshared = false\n[server.other]\nshared = true\n")
    async with attached_host("one") as item, attached_host("two") as two:
        assert (await item.call("about"))["pid"] != (await two.call("about"))["pid"]


async def test_shared_server_gets_only_the_variables_of_its_configuration(hub: Hub, hub_directory: Path) -> None:
    (hub_directory / "hub.toml").write_text(SHARED)
    environment = {"TOKEN": "mine", "OTHER": "a secret of the host"}
    async with attached_host(environment=environment, variables=("TOKEN",)) as host:
        about = await host.call("about")
        assert (about["token"], about["other"]) == ("mine", None)


async def test_server_of_one_host_gets_its_environment_and_directory(hub: Hub, tmp_path: Path) -> None:
    async with attached_host(environment={"OTHER": "inherited"}, cwd=tmp_path) as host:
        about = await host.call("about")
        assert (about["other"], about["cwd"]) == ("inherited", str(tmp_path))


async def test_roots_elicitation_and_sampling_reach_the_host(hub: Hub) -> None:
    async with attached_host("one") as host:
        assert await host.call("roots") == {"roots": [{"uri": "file:///one"}]}
        assert (await host.call("elicit", text="sure?"))["content"] == {"by": "one"}
        assert (await host.call("sample", text="hi"))["model"] == "one"
        host.send({"method": "notifications/roots/list_changed"})

        async def changed() -> bool:
            return bool((await host.call("about"))["roots_changes"])

        await wait_until(changed)


async def test_concurrent_questions_need_no_second_process(hub: Hub) -> None:
    async with attached_host("one") as host:
        pid = (await host.call("about"))["pid"]
        host.answering.clear()
        calls = [host.start_call("elicit", text=f"question {number}") for number in range(4)]
        await wait_until(lambda: len(host.asked) == 4)
        host.answering.set()
        for call in calls:
            assert parse(await asyncio.wait_for(call, TIMEOUT_SECONDS))["content"] == {"by": "one"}
        assert (await host.call("about"))["pid"] == pid


async def test_calls_that_start_the_server_do_not_wait_for_each_other(hub: Hub, tmp_path: Path) -> None:
    async with attached_host() as host:
        await host.request("tools/list")
    async with attached_host() as host:
        gate = tmp_path / "gate"
        long = host.start_call("wait", file=str(gate))
        assert await host.call("echo", text="short") == "short"
        gate.touch()
        await asyncio.wait_for(long, TIMEOUT_SECONDS)


async def test_cancelled_call_is_reported_as_done(hub: Hub, tmp_path: Path) -> None:
    async with attached_host() as host:
        host.start_call("wait", file=str(tmp_path / "never"))
        number = host._last_id
        host.send({"method": "notifications/cancelled", "params": {"requestId": number}})
        await host.request("ping")
        # initialize, initialized, the call, the cancellation, ping: a bridge does not retain any of them.
        host.send({"method": "notifications/cancelled", "params": {"requestId": 999}})
        numbers = {1, 2, 3, 4, 5, 6}
        await wait_until(lambda: {int(line.partition(b" ")[0].strip(b"!\n") or 0) for line in host.received} >= numbers)


async def test_hosts_of_a_shared_server_cancel_only_their_own_calls(
    hub: Hub, hub_directory: Path, tmp_path: Path
) -> None:
    (hub_directory / "hub.toml").write_text(SHARED)
    async with attached_host("one") as item, attached_host("two") as two:
        assert (await item.call("about"))["pid"] == (await two.call("about"))["pid"]
        gate = tmp_path / "gate"
        calls = [host.start_call("wait", file=str(gate)) for host in (item, two)]
        # Both hosts number their requests alike.
        assert item._last_id == two._last_id
        await asyncio.gather(item.call("echo", text="started"), two.call("echo", text="started"))
        item.send({"method": "notifications/cancelled", "params": {"requestId": two._last_id - 1}})
        await item.request("ping")
        gate.touch()
        assert parse(await asyncio.wait_for(calls[1], TIMEOUT_SECONDS)) == (await two.call("about"))["pid"]
        assert not calls[0].done()
        calls[0].cancel()


@pytest.mark.parametrize("seed", [1, 2])
async def test_two_hosts_never_see_each_other(hub: Hub, hub_directory: Path, seed: int) -> None:
    """Random concurrent calls of two hosts, at servers that they share and servers that they do not share."""
    (hub_directory / "hub.toml").write_text("[server.shared]\nshared = true\n")
    chance = random.Random(seed)
    names = ("alpha", "beta")
    async with (
        attached_host("alpha") as alpha,
        attached_host("beta") as beta,
        attached_host("alpha", names=("shared",)) as shared_alpha,
        attached_host("beta", names=("shared",)) as shared_beta,
    ):
        own = {"alpha": alpha, "beta": beta}
        shared = {"alpha": shared_alpha, "beta": shared_beta}

        async def act(name: str) -> None:
            action = chance.choice(["roots", "elicit", "sample", "remember", "echo", "shared echo"])
            text = f"text of {name}"
            if action == "shared echo":
                assert await shared[name].call("echo", text=text) == text
                return
            host: Host = own[name]
            response = await host.call(action, **({} if action == "roots" else {"text": text}))
            other = names[1 - names.index(name)]
            assert name in json.dumps(response)
            assert other not in json.dumps(response)

        await asyncio.gather(*(act(chance.choice(names)) for _ in range(60)))
    for name, host in [*own.items(), *shared.items()]:
        other = names[1 - names.index(name)].encode()
        assert not any(other in line for line in host.received)


async def test_hosts_with_a_shared_server_do_not_see_each_others_tasks(hub: Hub, hub_directory: Path) -> None:
    source = hub_directory.parent / "tasks.py"
    source.write_text(
        "from portico import Server\n"
        "server = Server('tasks')\n"
        "@server.tool(task='optional')\n"
        "async def slow(text: str) -> str:\n"
        "    return text\n"
        "server.run()\n"
    )
    (hub_directory / "hub.toml").write_text(SHARED)
    command = (SERVER[0], str(source))
    version = {"version": "2025-11-25", "command": command}
    async with attached_host("one", **version) as item, attached_host("two", **version) as two:
        params = {"name": "slow", "arguments": {"text": "of one"}, "task": {}}
        response = await item.request("tools/call", params)
        task = response["result"]["task"]["taskId"]
        assert (await item.request("tasks/get", {"taskId": task}))["result"]["taskId"] == task
        assert "error" in await two.request("tasks/get", {"taskId": task})
        assert "error" in await two.request("tasks/result", {"taskId": task})
        listed = await two.request("tasks/list")
        assert not listed.get("result", {}).get("tasks")


# Failures


async def test_killed_server_is_restarted_and_only_its_calls_are_lost(hub: Hub, tmp_path: Path) -> None:
    async with attached_host() as host:
        pid = (await host.call("about"))["pid"]
        lost = [host.start_call("wait", file=str(tmp_path / "never")) for _ in range(20)]
        await host.call("echo", text="they have started")
        os.kill(pid, signal.SIGKILL)
        for call in lost:
            assert parse(await asyncio.wait_for(call, TIMEOUT_SECONDS)).startswith("error")
        # Twenty lost calls are one failure: the next call is not rejected.
        about = await host.call("about")
        assert about["pid"] != pid


async def test_upgrade_moves_new_calls_and_lets_running_calls_end(hub: Hub, tmp_path: Path) -> None:
    async with attached_host() as host:
        pid = (await host.call("about"))["pid"]
        gate = tmp_path / "gate"
        running = host.start_call("wait", file=str(gate))
        await host.call("echo", text="it has started")
        result = await hub.control(ControlRequest(1, "upgrade", ["server"]))
        assert result == {"replaced": ["server"], "problems": []}
        assert (await host.call("about"))["pid"] != pid
        assert is_running(pid)
        gate.touch()
        assert parse(await asyncio.wait_for(running, TIMEOUT_SECONDS)) == pid
        await wait_until(lambda: not is_running(pid))


@pytest.mark.parametrize("shared", [False, True])
async def test_upgrades_under_load_lose_no_call(hub: Hub, hub_directory: Path, shared: bool) -> None:
    (hub_directory / "hub.toml").write_text(f"[server.server]\nshared = {str(shared).lower()}\n")
    ended = asyncio.Event()

    async def work(host: Host, name: str) -> set[int]:
        pids = set()
        while not ended.is_set():
            text = f"text of {name}"
            assert await host.call("echo", text=text) == text
            pids.add((await host.call("about"))["pid"])
        return pids

    async with attached_host("one") as item, attached_host("two") as two, attached_host("three") as three:
        working = [asyncio.create_task(work(host, f"host {at}")) for at, host in enumerate((item, two, three))]
        for _ in range(3):
            await asyncio.gather(*(host.call("echo", text="progress") for host in (item, two, three)))
            result = await hub.control(ControlRequest(1, "upgrade", ["server"]))
            assert not result["problems"]
        await asyncio.gather(*(host.call("echo", text="progress") for host in (item, two, three)))
        ended.set()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            pids = await asyncio.gather(*working)
        assert all(len(used) >= 2 for used in pids)
        assert (pids[0] & pids[1] != set()) == shared


async def test_failed_upgrade_keeps_the_old_process(hub: Hub, tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    shutil.copy(SERVER[1], program)
    command = (SERVER[0], str(program))
    async with attached_host(command=command) as host:
        pid = (await host.call("about"))["pid"]
        program.write_text("raise SystemExit('broken')")
        result = await hub.control(ControlRequest(1, "upgrade"))
        assert "broken" in result["problems"][0]
        assert (await host.call("about"))["pid"] == pid


async def test_restart_of_a_server_starts_it_with_the_next_call(hub: Hub) -> None:
    async with attached_host() as host:
        pid = (await host.call("about"))["pid"]
        await hub.control(ControlRequest(1, "restart", ["server"]))
        await wait_until(lambda: not is_running(pid))
        assert (await host.call("about"))["pid"] != pid


async def test_idle_server_stops_and_starts_again(hub: Hub, hub_directory: Path) -> None:
    (hub_directory / "hub.toml").write_text("[server.server]\nidle_timeout = 0.01\n")
    async with attached_host() as host:
        pid = (await host.call("about"))["pid"]
        await asyncio.sleep(0.02)
        await hub._run_maintenance()
        await wait_until(lambda: not is_running(pid))
        # The lists are served without a process.
        assert (await host.request("tools/list"))["result"]["tools"]
        assert not list(next(iter(hub.sessions.values())).processes())
        assert (await host.call("about"))["pid"] != pid


@pytest.mark.parametrize("shared", ["true", "false"])
async def test_results_are_shortened_once_and_read_by_their_host(hub: Hub, hub_directory: Path, shared: str) -> None:
    (hub_directory / "hub.toml").write_text(f"[server.server]\nshared = {shared}\nmax_result_tokens = 1000\n")
    async with attached_host() as host:
        names = [tool["name"] for tool in (await host.request("tools/list"))["result"]["tools"]]
        assert [name for name in names if "read_result" in name] == ["read_result"]
        result = (await host.request("tools/call", {"name": "echo", "arguments": {"text": "word " * 20_000}}))["result"]
        assert len(str(result)) < 10_000
        id = re.search(r"result://([\w-]+)", str(result))
        assert id is not None
        rest = await host.request("tools/call", {"name": "read_result", "arguments": {"id": id[1], "offset": 50_000}})
        assert "word word" in str(rest["result"]["content"]) and not rest["result"].get("isError")


@pytest.mark.parametrize("shared", ["true", "false"])
async def test_results_of_a_server_with_a_budget_are_read_at_the_hub(
    hub: Hub, hub_directory: Path, shared: str
) -> None:
    (hub_directory / "hub.toml").write_text(f"[server.server]\nshared = {shared}\nmax_result_tokens = 1000\n")
    command = (sys.executable, "-m", "portico", "serve", f"{ROOT / 'tests/peers/server.py'}:bounded")
    async with attached_host(command=command) as host:
        names = [tool["name"] for tool in (await host.request("tools/list"))["result"]["tools"]]
        assert names.count("read_result") == 1
        params = {"name": "long_text", "arguments": {"size": 100_000}}
        result = (await host.request("tools/call", params))["result"]
        assert len(str(result)) < 10_000
        id = re.search(r"result://([\w-]+)", str(result))
        assert id is not None
        rest = await host.request("tools/call", {"name": "read_result", "arguments": {"id": id[1], "offset": 99_980}})
        assert rest["result"]["content"][0]["text"] == "A line of the text.\n"


async def test_hub_setting_turns_the_result_budget_off(hub: Hub, hub_directory: Path) -> None:
    (hub_directory / "hub.toml").write_text("[server.server]\nmax_result_tokens = 0\n")
    async with attached_host() as host:
        result = (await host.request("tools/call", {"name": "echo", "arguments": {"text": "word " * 40_000}}))["result"]
        assert len(str(result)) > 200_000


async def test_known_server_is_started_by_its_first_call(hub: Hub) -> None:
    async with attached_host("first") as host:
        await host.request("tools/list")
    async with attached_host("second") as host:
        assert (await host.request("tools/list"))["result"]["tools"]
        gateway = next(iter(hub.sessions.values()))
        assert not list(gateway.processes())
        await host.call("echo", text="now")
        assert len(list(gateway.processes())) == 1


async def test_responses_of_batches_have_the_number_of_their_line(hub: Hub) -> None:
    """By these numbers a bridge knows which requests are lost when the hub ends."""
    async with attached_host(version="2025-03-26") as host:
        notification = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
        ping = {"jsonrpc": "2.0", "id": "p", "method": "ping"}
        lines = [[notification], [ping], [notification, {**ping, "id": "q"}], [{**ping, "method": "nothing"}]]
        # Lines 1 to 3, with the handshake.
        await host.request("ping")
        done = len(host.received)
        for line in lines:
            host.send_line(line)
        await host.request("ping")
        heads = [line.partition(b" ")[0].strip() for line in host.received[done:]]
        assert sorted(heads) == [b"4", b"5", b"6", b"7", b"8"]
        assert host.received[done] == b"4\n"


async def test_server_that_does_not_start_fails_the_handshake(hub: Hub) -> None:
    with pytest.raises(AssertionError, match="cannot start"):
        async with attached_host(environment={"FAIL_TO_START": "1"}):
            pass


async def wait_until(condition: Any) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            result = condition()
            if await result if asyncio.iscoroutine(result) else result:
                return
            await asyncio.sleep(0.005)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# Hostile hosts and servers


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"garbage\n",
        b"[" * 100_000 + b"\n",
        b'{"protocol": 99}\n',
        b'{"protocol": 1, "control": "erase"}\n',
        b'{"protocol": 1, "names": ["x"], "unknown": 1}\n',
        json.dumps(greeting(names=())).encode() + b"\n",
        json.dumps(greeting(names=("a", "a"))).encode() + b"\n",
        json.dumps(greeting(names=("unknown",), command=None)).encode() + b"\n",
        json.dumps({**greeting(), "environment": {"A": 1}}).encode() + b"\n",
    ],
    ids=["empty", "garbage", "deep", "version", "command", "member", "no name", "twice", "unknown", "environment"],
)
async def test_invalid_greeting_is_rejected(hub: Hub, line: bytes) -> None:
    reader, writer = await connect()
    writer.write(line)
    answer = await asyncio.wait_for(reader.read(), TIMEOUT_SECONDS)
    assert not answer.startswith(b"ok")
    assert answer.count(b"\n") <= 1
    writer.close()
    async with attached_host() as host:
        assert await host.call("echo", text="the others are served") == "the others are served"


@pytest.mark.broken_frames("a hostile host")
async def test_invalid_messages_of_a_host_affect_only_itself(hub: Hub) -> None:
    async with attached_host("good") as good:
        reader, writer = await connect()
        writer.write(json.dumps(greeting()).encode() + b"\n")
        assert await reader.readline() == b"ok\n"
        writer.write(b'garbage\n{"jsonrpc":"2.0","id":{},"method":"x"}\n' + b"[" * 5000 + b"\n\x00\xff\n")
        for _ in range(4):
            head, _, body = (await asyncio.wait_for(reader.readline(), TIMEOUT_SECONDS)).partition(b" ")
            assert int(head) > 0
            assert json.loads(body)["error"]
        writer.close()
        assert await good.call("echo", text="hi") == "hi"


@pytest.mark.parametrize(
    "text",
    [
        "not JSON",
        '{"jsonrpc":"2.0","id":99999,"result":{}}',
        '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}',
        '1! {"jsonrpc":"2.0","id":1,"result":{}}',
        "stop",
        "end 0",
    ],
)
async def test_output_of_a_server_cannot_forge_messages_of_the_hub(hub: Hub, text: str) -> None:
    async with attached_host() as host:
        assert await host.call("garbage", text=text) == "sent"
        assert await host.call("echo", text=f"line\n{text}\u2028{text}") == f"line\n{text}\u2028{text}"
        for line in host.received:
            head = line.partition(b" ")[0].strip(b"!\n")
            assert not head or head.isdigit()


async def test_each_batch_has_the_number_of_its_line(hub: Hub) -> None:
    reader, writer = await connect()

    def send(message: Any) -> None:
        writer.write(json.dumps(message).encode() + b"\n")

    async def read_numbers(count: int) -> list[tuple[bytes, Any]]:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            lines = [(await reader.readline()).partition(b" ") for _ in range(count)]
        return [(number.rstrip(), json.loads(body) if body else None) for number, _, body in lines]

    params = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    send(greeting())
    assert await reader.readline() == b"ok\n"
    send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
    send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    await read_numbers(2)
    # A batch of notifications has no response, and must not wait for one forever.
    for _ in range(3):
        send([{"jsonrpc": "2.0", "method": "notifications/unknown"}] * 2)
    assert await read_numbers(3) == [(b"3", None), (b"4", None), (b"5", None)]
    echoes = [
        {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": id}}}
        for id in ("a", "b")
    ]
    send(echoes)
    [(number, answers)] = await read_numbers(1)
    assert number == b"6" and {answer["id"] for answer in answers} == {"a", "b"}
    # Cancelled requests are missing in the response.
    wait = {"name": "wait", "arguments": {"file": "/nonexistent"}}
    send([{**echoes[0], "id": "c"}, {"jsonrpc": "2.0", "id": "d", "method": "tools/call", "params": wait}])
    send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "d"}})
    send({"jsonrpc": "2.0", "id": "e", "method": "ping"})
    received = await read_numbers(3)
    assert sorted(number for number, _ in received) == [b"7", b"8", b"9"]
    writer.close()
