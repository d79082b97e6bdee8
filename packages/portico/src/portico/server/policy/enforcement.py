"""What is put around the answers of a server that has a guard, a meter or a witness.

A server without them is not slowed down: nothing of this is in its way. What the server has itself is looked at here,
before its services are asked; what it passes on, where it is known whose it is: its mounts and upstreams ask `admit`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from functools import partial
from types import CoroutineType
from typing import Any, NoReturn, Protocol

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from portico.protocol.completion import PromptReference
from portico.protocol.errors import InsufficientScope, ResourceNotFound
from portico.protocol.jsonrpc import NOTHING, encode
from portico.protocol.methods import ASKABLE, asked_by
from portico.rpc.call import Call
from portico.server.context.replay_guard import SpentStates
from portico.server.context.request_state import Seal
from portico.server.policy.consent import Consents, QuestionFirst
from portico.server.policy.interfaces import (
    AccessGuard,
    Decision,
    Kind,
    Meter,
    Owned,
    Passage,
    Witness,
    current,
    passed,
)
from portico.server.providers.base import Others
from portico.server.registry.caller_view import CallerView, KeptViews
from portico.server.registry.catalog import KINDS, Catalog
from portico.server.registry.lifespans import Lifespans
from portico.server.registry.service import Answer, Bundles, Service

Entering = Callable[[Passage, Answer], Any]


class Protected(Protocol):
    """What protection needs of its server."""

    @property
    def seal(self) -> Seal: ...
    @property
    def spent(self) -> SpentStates: ...
    def own(self, kind: Kind, name: str) -> Owned | None: ...
    def needs(self, method: str, name: str, call: Call | None = None) -> frozenset[str]: ...
    def owned(self, component: Any) -> Owned: ...
    @property
    def others(self) -> Others: ...
    @property
    def catalogs(self) -> dict[str, Catalog[Any]]: ...


class Protection:
    """The guard, the meter and the witness of one server."""

    def __init__(self, server: Protected) -> None:
        self._server = server
        self.guard: AccessGuard | None = None
        self.meter: Meter | None = None
        self.witness: Witness | None = None
        self.views = KeptViews()
        self._consents = Consents(server.seal, server.spent)

    def use(
        self, guard: AccessGuard | None, meter: Meter | None, witness: Witness | None, lifespans: Lifespans
    ) -> None:
        """Put these in the places of those before them; one that is None leaves the one that is there."""
        if guard is not None:
            self.guard = guard
            self.views.clear()
        if meter is not None:
            lifespans.remove(self.meter)
            self.meter = meter
            lifespans.add(meter, getattr(meter, "lifespan", nullcontext), first=True)
        if witness is not None:
            lifespans.remove(self.witness)
            self.witness = witness
            # What others still do while they end is noted too.
            lifespans.add(witness, getattr(witness, "lifespan", nullcontext), first=True)

    # Around the answers

    def around_all(self, answers: Mapping[str, Answer], bundles: Bundles) -> dict[str, Answer]:
        """The answers to all methods, for those who may have them."""
        # What services put around a list is put around what the caller may see of it.
        seen = bundles.around(self.lists(answers, bundles.by_method))
        return {method: self.around(method, answer, bundles.by_method.get(method)) for method, answer in seen.items()}

    def around(self, method: str, answer: Answer, service: Service | None = None) -> Answer:
        """The answer to a method, for those who may have it."""
        enter = _ENTERING.get(method)
        if method in KINDS and service is not None:
            enter = Protection._list_of_service
        if method == "completion/complete" and service is not None:
            return partial(self._pass, partial(self._complete, owner=service.name), answer)
        if enter is None and service is not None and not method.startswith("tasks/"):
            return partial(self._pass, partial(self._service_method, service.name), answer)
        if enter is None and method == "server/discover":
            return answer
        return partial(self._pass, partial(enter or Protection._plain, self), answer)

    def _pass(self, enter: Entering, answer: Answer, call: Call) -> Any:
        passage = Passage(call, parent=current.get())
        if (noted := passed.get()) is not None:
            noted.append(passage)
        if call.method in ASKABLE and call.typed().request_state is not UNSET:
            passage.later = self.meter is not None and self._consents.goes_on(call)
            passage.round = None if self.guard is None else self._consents.opened(call)
            if passage.round is not None:
                passage.call = passage.round.call
        if self.witness is not None:
            self.witness.begins(passage)
        token = current.set(passage)
        try:
            waiting = None if self.meter is None else self.meter.enter(passage)
            result = enter(passage, answer) if waiting is None else self._after(waiting, enter, passage, answer)
        except BaseException as failure:
            self._end(passage, None, failure)
            raise
        finally:
            current.reset(token)
        if type(result) is CoroutineType:
            return self._finish(passage, result, call)
        self._end(passage, result, None)
        return result

    async def _after(self, waiting: Awaitable[None], enter: Entering, passage: Passage, answer: Answer) -> Any:
        await waiting
        result = enter(passage, answer)
        return await result if type(result) is CoroutineType else result

    async def _finish(self, passage: Passage, coroutine: CoroutineType[Any, Any, Any], call: Call) -> Any:
        """`call` is as the client has sent it."""
        token = current.set(passage)
        try:
            result = await coroutine
            if passage.agreed:
                asked = asked_by(call.method, result)
                result = result if asked is None else self._consents.wrapped(call, asked)
        except QuestionFirst as question:
            result = question.result
        except BaseException as failure:
            self._end(passage, None, failure)
            raise
        finally:
            current.reset(token)
        self._end(passage, result, None)
        return result

    def _end(self, passage: Passage, result: Any, failure: BaseException | None) -> None:
        if passage.held and self.meter is not None:
            self.meter.leave(passage)
        if self.witness is not None:
            self.witness.ended(passage, result, failure)

    # What is asked for by its name

    def _tool(self, passage: Passage, answer: Answer) -> Any:
        call = passage.call
        params = call.typed()
        if self.guard is None and self.meter is None:
            # There is a witness alone, and nothing to decide.
            owned = self._server.own("tool", params.name)
            if owned is not None:
                passage.kind, passage.owned = "tool", owned
            return answer(call)
        return self._named(passage, answer, "tool", params.name, params.arguments)

    def _prompt(self, passage: Passage, answer: Answer) -> Any:
        params = passage.call.typed()
        return self._named(passage, answer, "prompt", params.name, encode(params.arguments or {}))

    def _resource(self, passage: Passage, answer: Answer) -> Any:
        return self._named(passage, answer, "resource", passage.call.typed().uri, NOTHING)

    def _named(self, passage: Passage, answer: Answer, kind: Kind, name: str, arguments: bytes | Raw) -> Any:
        owned = self._server.own(kind, name)
        if owned is None:
            return answer(passage.call)
        if not self._allows(passage, kind, owned, arguments):
            return self._deny(passage.call, kind, name)
        waiting = self._clear(passage, arguments)
        return answer(passage.call) if waiting is None else self._when_clear(waiting, answer, passage.call)

    async def _when_clear(self, waiting: Any, answer: Answer, call: Call) -> Any:
        await waiting
        result = answer(call)
        return await result if type(result) is CoroutineType else result

    async def _deny(self, call: Call, kind: Kind, name: str) -> NoReturn:
        """What is denied looks exactly like what is not there."""
        if kind == "resource":
            raise ResourceNotFound(name)
        raise await self._server.others.unknown(call, kind, name, self._server.catalogs[f"{kind}s/list"])

    # What stands before the server: the tools of a face

    def pass_to(self, call: Call, kind: Kind, owned: Owned, answer: Answer, *, decided: bool = True) -> Any:
        """The answer to a call about something that is as good as the server's own. Not `decided`: it is counted and
        recorded, as a list is, but there is nothing to allow, because it gives the caller only what is theirs."""
        enter = self._before if decided else self._noted
        return self._pass(partial(enter, kind, owned), answer, call)

    def _before(self, kind: Kind, owned: Owned, passage: Passage, answer: Answer) -> Any:
        arguments = getattr(passage.call.typed(), "arguments", NOTHING)
        if not self._allows(passage, kind, owned, arguments):
            return self._deny(passage.call, kind, passage.call.typed().name)
        waiting = self._clear(passage, arguments)
        return answer(passage.call) if waiting is None else self._when_clear(waiting, answer, passage.call)

    def _noted(self, kind: Kind, owned: Owned, passage: Passage, answer: Answer) -> Any:
        passage.kind, passage.owned, passage.reached = kind, owned, True
        waiting = None if self.meter is None else self.meter.reach(passage)
        return answer(passage.call) if waiting is None else self._when_clear(waiting, answer, passage.call)

    def _complete(self, passage: Passage, answer: Answer, owner: str = "") -> Any:
        """With an owner, a service answers for everything that is not the server's own."""
        ref = passage.call.typed().ref
        kind: Kind
        kind, name = ("prompt", ref.name) if isinstance(ref, PromptReference) else ("template", ref.uri)
        owned = self._server.own(kind, name) or (Owned(owner, name) if owner else None)
        if owned is None:
            return answer(passage.call)
        if not self._allows(passage, kind, owned, NOTHING):
            raise self._server.others.nothing_to_complete(name)
        waiting = self._clear(passage, NOTHING)
        return answer(passage.call) if waiting is None else self._when_clear(waiting, answer, passage.call)

    # What is listed, and listened to

    def lists(self, answers: Mapping[str, Answer], services: Mapping[str, Service]) -> dict[str, Answer]:
        """The answers, of which the server's own lists have only what the caller may see."""
        own = {method: partial(self._list, answer) for method, answer in answers.items() if method in KINDS}
        return {**answers, **{method: seen for method, seen in own.items() if method not in services}}

    def _list(self, answer: Answer, call: Call) -> Any:
        return answer(call) if self.guard is None else self._seen(call)

    def _seen(self, call: Call) -> Any:
        """A list without what the caller may not see."""
        view = self.view(call)
        assert view is not None
        catalog = self._server.catalogs[call.method]
        cursor = call.typed().cursor
        if self._server.others:
            return self._server.others.page(catalog, call, cursor, view)
        make = partial(view.definitions, catalog)
        return view.page(catalog, (catalog.definitions,), make, call.revision, cursor)

    async def _list_of_service(self, passage: Passage, answer: Answer) -> Any:
        """The same for a list that a service answers in place of the server."""
        call = passage.call
        result = answer(call)
        result = await result if type(result) is CoroutineType else result
        if self.guard is None:
            return result
        kind, sees = KINDS[call.method], self.guard.sight(call).sees
        name_of = self._server.catalogs[call.method].name_of
        member = call.method.removesuffix("/list").replace("resources/templates", "resource_templates")
        shown = []
        for one in getattr(result, member):
            owned = self._server.own(kind, name_of(one))
            if owned is not None and sees(kind, owned):
                shown.append(one)
        return replace(result, **{member: shown})

    def _plain(self, passage: Passage, answer: Answer) -> Any:
        return answer(passage.call)

    # Methods that come with a service: what they name by a URI is a resource of that service

    async def _service_method(self, service: str, passage: Passage, answer: Answer) -> Any:
        call = passage.call
        uri = _uri_in(call)
        if uri is not None and not self._allows(passage, "resource", Owned(service, uri), NOTHING):
            raise ResourceNotFound(uri)
        result = answer(call)
        result = await result if type(result) is CoroutineType else result
        if self.guard is None:
            return result
        sees = self.guard.sight(call).sees
        return _without(result, lambda one: not sees("resource", Owned(service, one)))

    # Asked by what passes calls on, where it is known whose something is

    def view(self, call: Call) -> CallerView | None:
        """What the sender of a call sees; None: everything."""
        if self.guard is None:
            return None
        return CallerView(self.guard.sight(call), self.views, self._server.owned, self._server.own)

    async def admit(self, call: Call, kind: Kind, owned: Owned, arguments: bytes | Raw = NOTHING) -> bool:
        """Whether a call may go on to something that is not the server's own; if not, it is not there. Raises what it
        is refused with for another reason."""
        passage = current.get() or Passage(call)
        passage.upstream = owned.owner
        if not self._allows(passage, kind, owned, arguments):
            return False
        waiting = self._clear(passage, arguments)
        if waiting is not None:
            await waiting
        return True

    async def watch(self, call: Call, job: str, owned: Owned, arguments: Raw, running: Awaitable[Any]) -> Any:
        """What a task comes to, which the witness is told of as of a call."""
        passage = Passage(call, "tool", owned, job=job, arguments=arguments)
        if self.witness is not None:
            self.witness.begins(passage)
        token = current.set(passage)
        try:
            result = await running
        except BaseException as failure:
            if self.witness is not None:
                self.witness.ended(passage, None, failure)
            raise
        finally:
            current.reset(token)
        if self.witness is not None:
            self.witness.ended(passage, result, None)
        return result

    def still_allows(self, call: Call, owned: Owned, arguments: bytes | Raw) -> bool:
        """Whether a call that was admitted earlier, and waited in a queue, may still be made."""
        return self.guard is None or self.guard.decide(call, "tool", owned, arguments).allowed

    def _allows(self, passage: Passage, kind: Kind, owned: Owned, arguments: bytes | Raw) -> bool:
        passage.kind, passage.owned = kind, owned
        if self.guard is None:
            return True
        if kind == "template":
            passage.decision = Decision(self.guard.sight(passage.call).sees(kind, owned))
        else:
            passage.decision = self.guard.decide(passage.call, kind, owned, arguments)
        return passage.decision.allowed

    def _clear(self, passage: Passage, arguments: bytes | Raw) -> Any:
        """What else has to be met by a call that is allowed. None: nothing, or what has to be waited for."""
        assert passage.kind is not None and passage.owned is not None
        call = passage.call
        questions = [] if self.guard is None else self._required(self.guard, passage, arguments)
        waiting = None
        if self.meter is not None and not passage.reached:
            passage.reached = True
            waiting = self.meter.reach(passage)
        if questions and call.method in ASKABLE and not passage.agreed:
            return self._agreed(waiting, passage, questions)
        if passage.round is not None and not passage.agreed:
            # A state of ours that no question asks for any more is not good for a second call all the same.
            return self._agreed(waiting, passage, [])
        return waiting

    def _required(self, guard: AccessGuard, passage: Passage, arguments: bytes | Raw) -> list[str]:
        assert passage.kind is not None and passage.owned is not None
        call = passage.call
        try:
            return guard.require(call, passage.kind, passage.owned, arguments)
        except InsufficientScope as refusal:
            # With what the tool itself demands, so that all of it can be had in one go.
            own = self._server.needs(call.method, getattr(call.typed(), "name", ""), call)
            missing = _missing(call, refusal.scopes | own)
            raise InsufficientScope(
                f"The {passage.kind} {passage.owned.name!r}", refusal.scopes | own, missing or refusal.scopes
            ) from None

    async def _agreed(self, waiting: Any, passage: Passage, questions: list[str]) -> None:
        if waiting is not None:
            await waiting
        await self._consents.agree(passage.call, questions, passage.round)
        passage.agreed = True


_ENTERING: dict[str, Callable[[Protection, Passage, Answer], Any]] = {
    "tools/call": Protection._tool,
    "prompts/get": Protection._prompt,
    "resources/read": Protection._resource,
    "completion/complete": Protection._complete,
}


def _missing(call: Call, scopes: frozenset[str]) -> frozenset[str]:
    lacks = getattr(call.principal, "lacks", None)
    return scopes if lacks is None else frozenset(lacks(scopes))


class _Located(msgspec.Struct, gc=False):
    uri: str | None = None


def _uri_in(call: Call) -> str | None:
    if call.params is NOTHING:
        return None
    try:
        return msgspec.json.decode(call.params, type=_Located).uri
    except msgspec.DecodeError:
        return None  # the method says what is wrong


def _without(result: Any, hidden: Callable[[str], bool]) -> Any:
    """A result whose lists have no entries at hidden URIs."""
    if not isinstance(result, msgspec.Struct):
        return result
    kept: dict[str, Any] = {}
    for name in result.__struct_fields__:
        listed = getattr(result, name)
        if isinstance(listed, list) and any(isinstance(getattr(one, "uri", None), str) for one in listed):
            kept[name] = [one for one in listed if not hidden(getattr(one, "uri", ""))]
    return replace(result, **kept) if kept else result
