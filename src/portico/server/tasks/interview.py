"""2025-11-25: whoever waits for the result of a task is asked, meanwhile, what its body wants to know."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
from msgspec import Raw

from portico.rpc.call import Call
from portico.server.asking.rounds import typed
from portico.server.tasks.engine import LOOK, Engine
from portico.server.tasks.held import PASSING, PAUSE
from portico.server.tasks.jobs import Job
from portico.server.tasks.running import Refusal
from portico.store.errors import StoreError
from portico.wire.errors import ProtocolError, TransportError
from portico.wire.methods import METHODS
from portico.wire.tasks import RELATED

log = logging.getLogger("portico")

# Which questions are with a client now: job and key. Whoever else waits for the same result is not asked too.
Asked = set[tuple[str, str]]


class Interview:
    """Waits for the end of a job, on behalf of one client."""

    def __init__(self, call: Call, engine: Engine, asked: Asked) -> None:
        self._call = call
        self._engine = engine
        self._asked = asked
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def wait(self, id: str) -> Job | None:
        """The job when it has ended. None: it is not there any more."""
        try:
            with self._engine.watching(id) as news:
                while True:
                    news.clear()
                    job = await self._engine.get(id, None)
                    if job is None or job.ended:
                        return job
                    self._ask(job)
                    await _soon(news)
        finally:
            await self._withdraw(list(self._asking))

    def _ask(self, job: Job) -> None:
        """What is asked now, and not yet. What is not asked any more was answered otherwise."""
        for key in self._asking.keys() - job.questions.keys():
            self._asking[key].cancel()
        if not self._call.reply.asks or job.status != "waiting":
            return
        for key, question in job.questions.items():
            if (job.id, key) not in self._asked:
                self._asked.add((job.id, key))
                put = asyncio.get_running_loop().create_task(self._put(job.id, key, question))
                self._asking[key] = put
                put.add_done_callback(lambda _, key=key: self._end(job.id, key))  # type: ignore[misc]

    def _end(self, id: str, key: str) -> None:
        self._asked.discard((id, key))
        del self._asking[key]

    async def _put(self, id: str, key: str, question: dict[str, Any]) -> None:
        method = question["method"]
        # 2025-11-25, basic/utilities/tasks: the request must say which task it belongs to.
        params = {**question.get("params", {}), "_meta": {RELATED: {"taskId": id}}}
        try:
            answer = await self._call.reply.ask(method, params)
            typed(answer, METHODS[method].result, key)
        except ProtocolError as refusal:
            # It is the client's answer to us, and the body's to deal with.
            answer = Raw(msgspec.json.encode(Refusal(refusal.message)))
        except TransportError as failure:
            log.debug("the question of a task did not reach its client: %s", failure)
            return
        await self._keep(id, key, answer)

    async def _keep(self, id: str, key: str, answer: Raw) -> None:
        """Nobody is asked twice because the store was away for a moment."""
        while True:
            try:
                await self._engine.update(id, {key: answer})
                return
            except PASSING as failure:
                log.warning("the answer to a task waits for the store: %s", failure)
            except StoreError as failure:
                log.error("the answer to a task cannot be kept: %s", failure)
                return
            await asyncio.sleep(PAUSE)

    async def _withdraw(self, keys: list[str]) -> None:
        asking = [self._asking[key] for key in keys]
        for put in asking:
            put.cancel()
        if asking:
            await asyncio.wait(asking)


async def _soon(news: asyncio.Event) -> None:
    """Events may get lost between processes, so now and then one looks without."""
    try:
        async with asyncio.timeout(LOOK):
            await news.wait()
    except TimeoutError:
        pass
