"""The servers that the console talks to: this one, and others."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from itertools import count
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from portico import __version__
from portico.client.client import Client
from portico.client.input_handlers import MODES
from portico.protocol import notifications
from portico.protocol.apps import SHOWN
from portico.protocol.errors import Error, MethodNotFound, ToolError, UsageError
from portico.protocol.meta import Implementation, ServerCapabilities
from portico.protocol.notifications import MessageParams
from portico.protocol.versions import MODERN, REVISIONS, Revision
from portico.rpc.call import Call, Handler, members
from portico.server.policy.interfaces import CONSOLE_CLIENT_NAME
from portico.transports import importer
from portico_console.message_log import WireLog
from portico_console.runs import Emit, PageInputs, PageRun, RunOutcome, carry_out, current_run
from portico_console.server_requests import OpenQuestion, PageAnswer, QuestionKind, Questions, as_elicited, as_sampled
from portico_console.traffic_tap import TappedPool

log = logging.getLogger("portico")

MOST_TARGETS = 32
MOST_WATCHED = 200
# Of text such as schemas; tokenizers differ by a tenth or so.
CHARACTERS_PER_TOKEN = 4

TargetKind = Literal["self", "url", "command", "file", "module", "handler"]
Listed = Literal["tools", "resources", "templates", "prompts"]
LISTS: dict[str, tuple[str, str]] = {
    "tools": ("tools/list", "tools"),
    "resources": ("resources/list", "resources"),
    "templates": ("resources/templates/list", "resourceTemplates"),
    "prompts": ("prompts/list", "prompts"),
}
_CHANGES = {
    notifications.TOOLS_CHANGED: ("tools",),
    notifications.PROMPTS_CHANGED: ("prompts",),
    notifications.RESOURCES_CHANGED: ("resources", "templates"),
}


class Within:
    """A server of this process as a Handler whose life is not for us to begin or to end.

    `address`: calls come from there, and are judged as such; without one they are those of its owner, as on stdio.
    """

    def __init__(self, server: Any, address: str | None = None) -> None:
        self._server, self._address = server, address

    def start(self, call: Call) -> Any:
        if self._address is not None:
            call = replace(call, address=self._address)
        return members(self._server).start(call)

    async def __call__(self, call: Call) -> Any:
        result = self.start(call)
        return await result if isawaitable(result) else result

    def seen_from(self, address: str) -> Within:
        return Within(self._server, address)

    def __getattr__(self, name: str) -> Any:
        if name == "lifespan" or name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._server, name)


class TargetState(Struct, kw_only=True):
    """A target as the page sees it."""

    id: str
    title: str
    kind: TargetKind
    spec: str
    state: Literal["opening", "open", "failed"] = "opening"
    error: str | None = None
    revision: Revision | None = None
    wanted: Revision | None = None
    server: Implementation | None = None
    capabilities: ServerCapabilities | None = None
    instructions: str | None = None
    versions: dict[str, int]
    updated: dict[str, int]
    services: dict[str, dict[str, str]]


class ConsoleTarget:
    """One server, and the connection to it."""

    def __init__(
        self,
        state: TargetState,
        place: Any,
        wire: WireLog,
        questions: Questions,
        changed: Callable[[], None],
        **options: Any,
    ) -> None:
        self.state = state
        self.place = place
        # Where this server itself is served, for those who are not in this process.
        self.url = ""
        self.client: Client | None = None
        self.runs: dict[str, PageRun] = {}
        self._wire = wire
        self._questions = questions
        self._changed = changed
        # Of the Client: headers, auth, principal.
        self.options = options
        self._listening: asyncio.Task[None] | None = None
        self._watched: dict[str, None] = {}

    # Opening and closing

    async def open(self, revision: Revision | None) -> None:
        """Connect, or connect again with another revision. What is wrong is in the state."""
        await self.close()
        self.state.wanted, self.state.state, self.state.error = revision, "opening", None
        self._changed()
        try:
            self.client = self._made(revision)
            await self.client.open()
        except (Error, OSError) as failure:
            self.client = None
            self.state.state, self.state.error = "failed", str(failure)
        else:
            self._greeted(self.client)
        self._changed()

    def _made(self, revision: Revision | None) -> Client:
        client = self._client(self.place, revision, self.options)
        client.upstream.pool = partial(TappedPool, self._wire, self.state.id)
        return client

    def client_as(self, principal: Any, asker: str | None) -> Client:
        """Another client of this server itself, for a principal that is judged as if it came over the network; and
        whose questions are for the one who asks."""
        assert isinstance(self.place, Within)
        return self._client(self.place.seen_from("console"), self.state.wanted, {"principal": principal}, asker)

    def _client(
        self, place: Any, revision: Revision | None, options: dict[str, Any], asker: str | None = None
    ) -> Client:
        sampling, eliciting = partial(self._sample, asker), partial(self._elicit, asker)
        client = Client(
            place, revision=revision, undeclared=True, name=CONSOLE_CLIENT_NAME, version=__version__,
            sampling_handler=sampling, elicitation_handler=eliciting, elicitation_modes=MODES, sampling_tools=True,
            roots=[], log_handler=partial(self._logged, asker), log_level="debug", message_handler=self._heard,
            timeout=None, retries=1, validate=False, trace=self._trace, extensions=SHOWN,
            **options,
        )  # fmt: skip
        client.inputs = PageInputs(partial(self._roots, asker), sampling, eliciting, modes=MODES, sampling_tools=True)
        return client

    def _greeted(self, client: Client) -> None:
        state = self.state
        state.state, state.revision = "open", client.revision
        state.server, state.capabilities = client.server_info, client.server_capabilities
        state.instructions = client.instructions
        if state.server is not None and state.kind != "self":
            state.title = state.server.title or state.server.name
        self._listen()

    async def close(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening
        client, self.client = self.client, None
        if client is not None:
            await client.close()

    def ready(self) -> Client:
        if self.client is None:
            why = self.state.error or "it is not open"
            raise ToolError(f"{self.state.title} cannot be asked: {why}")
        return self.client

    # Hearing

    def _trace(self, way: str, data: bytes) -> None:
        self._wire.add("target", self.state.id, "sent" if way == "sent" else "received", data)

    def _listen(self) -> None:
        """2026-07-28 tells of changes only to those who listen."""
        if self._listening is not None:
            self._listening.cancel()
        self._listening = asyncio.get_running_loop().create_task(self._listen_on())

    async def _listen_on(self) -> None:
        client, able = self.client, self.state.capabilities
        if client is None or (client.revision < MODERN and not self._watched):
            return
        wants = {
            kind: _lists_changes(getattr(able, kind, None)) for kind in ("tools", "prompts", "resources")
        }  # fmt: skip
        if not any(wants.values()) and not self._watched:
            return
        try:
            async with client.listen(**wants, uris=list(self._watched)) as changes:  # type: ignore[arg-type]
                async for _ in changes:
                    # It is heard by `_heard`, as on the older revisions.
                    pass
        except Error as failure:
            log.debug("%s: its changes are not told: %s", self.state.title, failure)

    def _heard(self, method: str, params: Raw) -> None:
        for kind in _CHANGES.get(method, ()):
            self.state.versions[kind] += 1
        if method == notifications.RESOURCE_UPDATED:
            with suppress(msgspec.DecodeError):
                uri = msgspec.json.decode(params, type=_Updated).uri
                if uri in self._watched:
                    self.state.updated[uri] = self.state.updated.get(uri, 0) + 1
        elif method not in _CHANGES:
            return
        self._changed()

    def _runs_of(self, asker: str | None) -> list[PageRun]:
        return [run for run in self.runs.values() if run.asker == asker]

    def _logged(self, asker: str | None, message: MessageParams) -> None:
        """A log line that does not say which run it is of: then it is told to all that its asker has."""
        said = {"level": message.level, "logger": message.logger, "data": message.data}
        for run in self._runs_of(asker):
            run.say("log", {"run": run.id, **said})

    async def watch(self, uri: str, on: bool) -> list[str]:
        """Be told when a resource changes, or no longer."""
        self.ready()
        if on and len(self._watched) >= MOST_WATCHED:
            raise ToolError(f"no more than {MOST_WATCHED} resources are watched at once")
        if on:
            self._watched[uri] = None
        else:
            self._watched.pop(uri, None)
        self._listen()
        return list(self._watched)

    # Being asked

    async def _ask(self, asker: str | None, kind: QuestionKind, asked: Any) -> PageAnswer:
        own = self._runs_of(asker)
        run = current_run.get() or (own[0] if len(own) == 1 else None)

        def told(question: OpenQuestion) -> None:
            if run is not None:
                run.say("question", question)

        return await self._questions.ask(self.state.id, None if run is None else run.id, kind, asked, told, asker)

    async def _elicit(self, asker: str | None, asked: Any) -> Any:
        return as_elicited(await self._ask(asker, "elicitation", asked))

    async def _sample(self, asker: str | None, asked: Any) -> Any:
        return as_sampled(await self._ask(asker, "sampling", asked))

    async def _roots(self, asker: str | None) -> Any:
        answered = await self._ask(asker, "roots", {})
        return answered.content if answered.action == "accept" else {}

    # Asking

    async def run(
        self,
        id: str,
        emit: Emit,
        progress: Callable[[Any], None],
        method: str,
        params: dict[str, Any],
        seconds: float | None = None,
        client: Client | None = None,
        asker: str | None = None,
    ) -> RunOutcome:
        """`client`: in place of our own, for who asks with the eyes of another principal."""
        client = client or self.ready()
        run = self.runs[id] = PageRun(id, emit, progress, asker)
        before = self._wire.last
        try:
            outcome = await carry_out(client, run, method, params, seconds)
            said = self._wire.find(before, peer=self.state.id)
            outcome.trips = [one.trip for one in said if one.kind == "request" and one.method == method]
            return outcome
        finally:
            del self.runs[id]

    def tool_owners(self) -> dict[str, tuple[str, str]]:
        """Whose each tool is, where this is a gateway of our own."""
        owners = getattr(self.place, "tool_owners", None) if isinstance(self.place, Within) else None
        return {} if owners is None else owners()

    async def listed(self, kind: Listed) -> list[dict[str, Any]]:
        """All entries of a list, as they are on the wire."""
        return await list_all(self.ready(), kind)


async def list_all(client: Client, kind: Listed) -> list[dict[str, Any]]:
    ask = {
        "tools": partial(client.list_tools, fresh=True),
        "resources": client.list_resources,
        "templates": client.list_resource_templates,
        "prompts": client.list_prompts,
    }[kind]
    try:
        found: Sequence[Any] = await ask()  # type: ignore[operator]
    except MethodNotFound:
        return []
    except Error as failure:
        raise ToolError(f"its {kind} cannot be listed: {failure}") from None
    return [msgspec.to_builtins(one) for one in found]


class _Updated(Struct):
    uri: str


def _lists_changes(able: Any) -> bool:
    said = msgspec.to_builtins(able) if able is not None else {}
    return isinstance(said, dict) and said.get("listChanged") is True


class Targets:
    """All of them, by their ids."""

    def __init__(self, wire: WireLog, questions: Questions) -> None:
        self.listeners: list[Callable[[], None]] = []
        self.wire, self.questions = wire, questions
        self._targets: dict[str, ConsoleTarget] = {}
        self._ids = count(1)

    def states(self) -> list[TargetState]:
        return [one.state for one in self._targets.values()]

    def __iter__(self) -> Any:
        return iter(self._targets.values())

    def get(self, id: str) -> ConsoleTarget:
        found = self._targets.get(id)
        if found is None:
            known = ", ".join(self._targets) or "none"
            raise ToolError(f"there is no target {id[:40]!r}; there is {known}")
        return found

    def changed(self) -> None:
        for told in self.listeners:
            told()

    def add(
        self,
        place: Any,
        spec: str,
        kind: TargetKind,
        *,
        id: str | None = None,
        title: str | None = None,
        **options: Any,
    ) -> ConsoleTarget:
        """A target that is not open yet."""
        if len(self._targets) >= MOST_TARGETS:
            raise ToolError(f"no more than {MOST_TARGETS} targets are open at once; close one first")
        state = TargetState(
            id=id or f"t{next(self._ids)}", title=title or spec[:80], kind=kind, spec=spec,
            versions=dict.fromkeys(LISTS, 0), updated={}, services={},
        )  # fmt: skip
        target = ConsoleTarget(state, place, self.wire, self.questions, self.changed, **options)
        self._targets[state.id] = target
        return target

    async def close(self, id: str) -> None:
        target = self.get(id)
        del self._targets[id]
        await target.close()
        self.changed()

    async def close_all(self) -> None:
        for target in list(self._targets.values()):
            await target.close()


def kind_of(spec: str) -> TargetKind:
    """What a text names, as a Client reads it."""
    if re.match(r"https?://", spec.strip(), re.IGNORECASE):
        return "url"
    if " " not in spec.strip() and importer.is_named(spec.strip()):
        return "file" if ".py" in spec else "module"
    return "handler" if spec.strip().endswith((".json", ".toml")) or ".json:" in spec else "command"


def checked_revision(revision: str | None) -> Revision | None:
    if revision is not None and revision not in REVISIONS:
        raise ToolError(f"there is no revision {revision[:40]!r}; there are {', '.join(REVISIONS)}")
    return revision


def weights_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """About how many tokens a model reads for each tool."""
    return {str(tool.get("name")): len(msgspec.json.encode(tool)) // CHARACTERS_PER_TOKEN for tool in tools}


def as_handler(server: Any) -> Handler:
    if not callable(server):
        raise UsageError("the console is for a Server, or for another Handler")
    return Within(server)
