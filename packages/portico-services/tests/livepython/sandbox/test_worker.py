"""The server side of a misbehaving worker, without a process."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

from portico_services.livepython.sandbox import worker as workers
from portico_services.livepython.sandbox.framing import encode_frame
from portico_services.livepython.sandbox.limits import MAX_REPLY_BYTES, SandboxLimits
from portico_services.livepython.sandbox.worker import UNSOLICITED_REPLY, PythonWorker, WorkerEnded, WorkerReply

TIMEOUT_SECONDS = 10.0


class Puppet:
    """The ends of a worker, with strings."""

    output_in_messages = True

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.orders: list[str] = []
        self.closed = False
        self.unread = b""
        self.exit: int | None = None
        self.too_much: str | None = None
        self.can_be_interrupted = self.can_be_rescued = True
        self.asked = asyncio.Event()
        self.got = {order: asyncio.Event() for order in ("suspend", "resume", "interrupt", "request_rescue", "kill")}

    def listen(self, hear: Callable[[bytes], None], print: Callable[[bytes], None], end: Callable[[], None]) -> None:
        self.hear, self.print, self.end = hear, print, end

    def send(self, data: bytes) -> None:
        self.sent.append(json.loads(data[4:]))
        self.asked.set()

    def drain(self, most: int) -> bytes:
        data, self.unread = self.unread[:most], self.unread[most:]
        return data

    def _order(self, name: str) -> None:
        self.orders.append(name)
        self.got[name].set()

    def suspend(self) -> None:
        self._order("suspend")

    def resume(self) -> None:
        self._order("resume")

    def request_rescue(self) -> bool:
        self._order("request_rescue")
        return self.can_be_rescued

    def interrupt(self) -> bool:
        self._order("interrupt")
        return self.can_be_interrupted

    def kill(self) -> None:
        self._order("kill")

    async def status(self) -> int | None:
        return self.exit

    def limit_exceeded(self, limits: SandboxLimits) -> str | None:
        return self.too_much

    def close(self) -> None:
        self.closed = True

    def say(self, **message: Any) -> None:
        self.hear(encode_frame(json.dumps(message).encode()))


@pytest.fixture
async def puppet() -> Puppet:
    return Puppet()


@pytest.fixture
async def worker(puppet: Puppet) -> PythonWorker:
    worker = PythonWorker(puppet, SandboxLimits(max_output_bytes=100, output_kill_bytes=1000))
    puppet.say(id=0, result={"landlock": 7})
    await worker.ready()
    puppet.orders.clear()
    return worker


async def asked(worker: PythonWorker, puppet: Puppet, seconds: float = TIMEOUT_SECONDS) -> asyncio.Task[WorkerReply]:
    puppet.asked.clear()
    task = asyncio.ensure_future(worker.request("evaluate", {"expression": "1"}, seconds))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await puppet.asked.wait()
    return task


async def ended(task: asyncio.Task[WorkerReply]) -> WorkerEnded:
    with pytest.raises(WorkerEnded) as caught:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await task
    return caught.value


async def test_request_is_answered_and_the_worker_is_suspended_around_it(worker: PythonWorker, puppet: Puppet) -> None:
    task = await asked(worker, puppet)
    assert puppet.sent == [{"id": 1, "op": "evaluate", "arguments": {"expression": "1"}}]
    puppet.print(b"some ")
    puppet.unread = b"more"
    puppet.say(id=1, result={"text": "1"})
    answer = await task
    assert (bytes(answer.result), answer.output) == (b'{"text": "1"}', "some more")
    assert puppet.orders == ["resume", "suspend"]
    assert not worker.has_ended


async def test_sandbox_rejection_is_the_reason_the_worker_ended() -> None:
    puppet = Puppet()
    worker = PythonWorker(puppet, SandboxLimits())
    puppet.say(id=0, refusal="no Landlock")
    with pytest.raises(WorkerEnded, match="no Landlock"):
        await worker.ready()
    assert puppet.closed


@pytest.mark.parametrize(
    "bytes_said",
    [
        encode_frame(b'{"id":2,"result":{}}'),
        encode_frame(b'{"id":0,"result":{}}'),
        encode_frame(b"{"),
        encode_frame(b"[]"),
        encode_frame(b'{"id":"1"}'),
        encode_frame(b'{"id":1,"refusal":5}'),
        encode_frame(b"\xff\xfe"),
        encode_frame(b"[" * 100_000),
        encode_frame(b'{"id":1,"refusal":"' + b"x" * 100_000 + b'"}'),
        (MAX_REPLY_BYTES + 1).to_bytes(4, "big"),
        b"\xff\xff\xff\xff",
    ],
    ids=range(11),
)
async def test_unsolicited_message_ends_the_worker(worker: PythonWorker, puppet: Puppet, bytes_said: bytes) -> None:
    task = await asked(worker, puppet)
    puppet.hear(bytes_said)
    assert (await ended(task)).reason == UNSOLICITED_REPLY
    assert puppet.orders[-1] == "kill"
    assert puppet.closed


async def test_extra_data_after_a_reply_ends_the_worker(worker: PythonWorker, puppet: Puppet) -> None:
    task = await asked(worker, puppet)
    puppet.hear(encode_frame(b'{"id":1,"result":{}}') + b"\0")
    assert bytes((await task).result) == b"{}"
    assert worker.reason == UNSOLICITED_REPLY


async def test_second_reply_ends_the_worker(worker: PythonWorker, puppet: Puppet) -> None:
    task = await asked(worker, puppet)
    puppet.hear(encode_frame(b'{"id":1,"result":{}}') * 2)
    await task
    assert worker.reason == UNSOLICITED_REPLY


async def test_message_between_requests_ends_the_worker(worker: PythonWorker, puppet: Puppet) -> None:
    puppet.say(id=1, result={})
    assert worker.reason == UNSOLICITED_REPLY
    with pytest.raises(WorkerEnded):
        await worker.request("evaluate", {}, 1)


async def test_fragmented_reply_is_accepted(worker: PythonWorker, puppet: Puppet) -> None:
    task = await asked(worker, puppet)
    for byte in encode_frame(b'{"id":1,"result":{}}'):
        puppet.hear(bytes([byte]))
    assert bytes((await task).result) == b"{}"


async def test_output_is_truncated_at_the_limit_and_the_rest_is_counted(worker: PythonWorker, puppet: Puppet) -> None:
    task = await asked(worker, puppet)
    puppet.print(b"x" * 90)
    puppet.print(b"y" * 90)
    puppet.say(id=1, output="z" * 20)
    puppet.say(id=1, result={})
    answer = await task
    assert answer.output == "x" * 90 + "y" * 10
    assert answer.dropped == 100


async def test_output_message_ends_a_worker_with_a_separate_output_pipe(worker: PythonWorker, puppet: Puppet) -> None:
    puppet.output_in_messages = False
    task = await asked(worker, puppet)
    puppet.say(id=1, output="")
    assert (await ended(task)).reason == UNSOLICITED_REPLY


async def test_flood_of_output_is_the_end(worker: PythonWorker, puppet: Puppet) -> None:
    task = await asked(worker, puppet)
    puppet.print(b"x" * 2000)
    end = await ended(task)
    assert "printed more than" in end.reason
    assert end.answer.output == "x" * 100


async def test_undecodable_output_is_replaced(worker: PythonWorker, puppet: Puppet) -> None:
    task = await asked(worker, puppet)
    puppet.print(b"\xff\xfea")
    puppet.say(id=1, result={})
    assert (await task).output == "\ufffd\ufffda"


async def test_time_that_is_up_is_reported_first_and_enforced_then(
    worker: PythonWorker, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "INTERRUPT_GRACE_SECONDS", 0.01)
    end = await ended(await asked(worker, puppet, 0.01))
    assert "did not stop within 0.01 s" in end.reason
    assert puppet.orders == ["resume", "interrupt", "kill"]


async def test_uninterruptible_worker_is_killed(worker: PythonWorker, puppet: Puppet) -> None:
    puppet.can_be_interrupted = False
    assert "did not stop" in (await ended(await asked(worker, puppet, 0.01))).reason
    assert puppet.orders == ["resume", "interrupt", "kill"]


async def test_late_reply_is_accepted(worker: PythonWorker, puppet: Puppet) -> None:
    task = await asked(worker, puppet, 0.01)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await puppet.got["interrupt"].wait()
    puppet.say(id=1, result={"text": "1"})
    answer = await task
    assert (bytes(answer.result), answer.interrupted) == (b'{"text": "1"}', False)


async def test_no_interrupt_is_sent_after_the_answer(
    worker: PythonWorker, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "INTERRUPT_GRACE_SECONDS", 0.01)
    task = await asked(worker, puppet, 0.001)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await puppet.got["interrupt"].wait()
    puppet.say(id=1, refusal="KeyboardInterrupt")
    await task
    puppet.orders.clear()
    task = await asked(worker, puppet)
    await asyncio.sleep(0.05)
    puppet.say(id=2, result={})
    await task
    assert puppet.orders == ["resume", "suspend"]


async def test_code_that_stops_when_interrupted_keeps_its_worker(worker: PythonWorker, puppet: Puppet) -> None:
    task = await asked(worker, puppet, 0.01)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await puppet.got["interrupt"].wait()
    puppet.say(id=1, refusal="KeyboardInterrupt")
    assert (await task).interrupted
    assert not worker.has_ended


async def cancelled(task: asyncio.Task[WorkerReply]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelled_call_is_interrupted_and_awaited(worker: PythonWorker, puppet: Puppet) -> None:
    await cancelled(await asked(worker, puppet))
    assert puppet.orders == ["resume", "interrupt"]
    assert worker.busy
    settling = asyncio.ensure_future(worker.wait_idle())
    puppet.say(id=1, refusal="KeyboardInterrupt")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await settling
    assert not worker.busy
    assert not worker.has_ended
    task = await asked(worker, puppet)
    puppet.say(id=2, result={})
    assert not (await task).interrupted
    assert puppet.orders == ["resume", "interrupt", "suspend", "resume", "suspend"]


async def test_cancelled_call_that_does_not_stop_is_killed(
    worker: PythonWorker, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "INTERRUPT_GRACE_SECONDS", 0.01)
    await cancelled(await asked(worker, puppet))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await worker.wait_idle()
    assert worker.reason == "it was cancelled and did not stop"
    assert puppet.orders == ["resume", "interrupt", "kill"]


async def test_waiting_for_a_cancelled_call_can_be_cancelled(worker: PythonWorker, puppet: Puppet) -> None:
    await cancelled(await asked(worker, puppet))
    await cancelled(asyncio.ensure_future(worker.wait_idle()))  # type: ignore[arg-type]
    puppet.say(id=1, result={})
    assert not worker.busy
    assert not worker.has_ended


@pytest.mark.parametrize(
    "status, reason",
    [
        (0, "status 0"),
        (3, "status 3"),
        (70, "interpreter crashed"),
        (-11, "segmentation fault"),
        (-9, "memory ran out"),
        (-24, "CPU time"),
        (-40, "signal 40"),
        (None, "closed its channel"),
    ],
)
async def test_how_it_ended_is_reported(worker: PythonWorker, puppet: Puppet, status: int | None, reason: str) -> None:
    task = await asked(worker, puppet)
    puppet.exit, puppet.unread = status, b"last words"
    puppet.end()
    end = await ended(task)
    assert reason in end.reason
    assert end.answer.output == "last words"


async def test_worker_over_its_limit_is_ended(
    worker: PythonWorker, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "USAGE_CHECK_SECONDS", 0)
    task = await asked(worker, puppet)
    puppet.too_much = "it wrote too much"
    assert (await ended(task)).reason == "it wrote too much"


async def test_confirmation_is_followed_by_a_second_check(
    worker: PythonWorker, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "USAGE_CHECK_SECONDS", 0)
    puppet.too_much = "it wrote too much"
    task = await asked(worker, puppet)
    puppet.say(id=1, result={})
    await task
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await puppet.got["kill"].wait()
    assert worker.reason == "it wrote too much"


# Names that are saved before the end


async def dying(worker: PythonWorker, puppet: Puppet, monkeypatch: pytest.MonkeyPatch) -> asyncio.Task[WorkerReply]:
    """A question that is not answered, whose worker has been told to save its names."""
    monkeypatch.setattr(workers, "INTERRUPT_GRACE_SECONDS", 0.01)
    worker.has_names = True
    task = await asked(worker, puppet, 0.01)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await puppet.got["request_rescue"].wait()
    return task


async def test_names_are_taken_before_the_end(
    worker: PythonWorker, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await dying(worker, puppet, monkeypatch)
    for part in (b"some ", b"names"):
        puppet.say(id=1, rescued=b64encode(part).decode())
    assert not worker.has_ended
    puppet.say(id=1, result={"size": 10})
    assert (await ended(task)).reason == "it did not stop within 0.01 s"
    assert (bytes(worker.rescued.names), bytes(worker.rescued.about)) == (b"some names", b'{"size": 10}')
    assert puppet.orders[-1] == "kill"


async def test_reply_at_the_deadline_is_accepted(
    worker: PythonWorker, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await dying(worker, puppet, monkeypatch)
    puppet.say(id=1, result={"text": "1"})
    assert bytes((await task).result) == b'{"text": "1"}'
    assert not worker.has_ended


async def test_worker_without_names_to_rescue_ends_immediately(
    worker: PythonWorker, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await dying(worker, puppet, monkeypatch)
    puppet.say(id=1, rescued="")
    assert (await ended(task)).reason == "it did not stop within 0.01 s"


async def test_names_that_do_not_come_are_not_waited_for(
    worker: PythonWorker, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "RESCUE_TIMEOUT_SECONDS", 0.01)
    task = await dying(worker, puppet, monkeypatch)
    puppet.say(id=1, rescued=b64encode(b"some ").decode())
    await ended(task)
    assert bytes(worker.rescued.about) == b""


async def test_unsolicited_rescue_data_ends_the_worker(worker: PythonWorker, puppet: Puppet) -> None:
    task = await asked(worker, puppet)
    puppet.say(id=1, rescued=b64encode(b"some ").decode())
    assert (await ended(task)).reason == workers.UNSOLICITED_REPLY


async def test_too_many_names_end_the_session(
    worker: PythonWorker, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "MAX_SESSION_BYTES", 8)
    task = await dying(worker, puppet, monkeypatch)
    for _ in range(2):
        puppet.say(id=1, rescued=b64encode(b"some ").decode())
    assert (await ended(task)).reason == workers.UNSOLICITED_REPLY
