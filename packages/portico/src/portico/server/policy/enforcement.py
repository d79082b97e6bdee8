"""Enforcement of access policy, rate limits and audit around the handlers of a server.

Servers without them have no overhead. The server's own components are checked here, before its services; forwarded
calls are checked where the owner is known: mounts and upstreams call `authorize_call`.
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
from portico.protocol.jsonrpc import EMPTY_RAW, encode
from portico.protocol.methods import INPUT_REQUIRED_METHODS, as_input_required
from portico.rpc.call import Call
from portico.server.context.replay_guard import UsedStates
from portico.server.context.request_state import RequestStateSealer
from portico.server.policy.consent import ConsentManager, ConsentRequired
from portico.server.policy.interfaces import (
    AccessPolicy,
    AuditHook,
    ComponentOwners,
    Decision,
    Kind,
    PolicyContext,
    QualifiedName,
    RequestLimiter,
    current_request,
    observed_requests,
)
from portico.server.providers.base import Provider
from portico.server.registry.caller_view import CallerView, ViewCache
from portico.server.registry.catalog import KIND_BY_METHOD, Catalog
from portico.server.registry.lifespans import LifespanManager
from portico.server.registry.service import MethodHandler, Service, ServiceRegistry

PolicyStep = Callable[[PolicyContext, MethodHandler], Any]


class PolicyHost(Protocol):
    """The part of a server that the enforcer uses."""

    @property
    def state_sealer(self) -> RequestStateSealer: ...
    @property
    def used_states(self) -> UsedStates: ...
    def required_scopes(self, method: str, name: str, call: Call | None = None) -> frozenset[str]: ...
    @property
    def ownership(self) -> ComponentOwners: ...
    @property
    def provider(self) -> Provider: ...
    @property
    def catalogs(self) -> dict[str, Catalog[Any]]: ...


class PolicyEnforcer:
    """The access policy, rate limiter and audit hook of one server."""

    def __init__(self, server: PolicyHost) -> None:
        self._server = server
        self.access_policy: AccessPolicy | None = None
        self.rate_limiter: RequestLimiter | None = None
        self.audit_hook: AuditHook | None = None
        self.view_cache = ViewCache()
        self._consents = ConsentManager(server.state_sealer, server.used_states)

    def configure(
        self,
        access_policy: AccessPolicy | None,
        rate_limiter: RequestLimiter | None,
        audit_hook: AuditHook | None,
        lifespans: LifespanManager,
    ) -> None:
        """Replace the given hooks; None leaves the current one in place."""
        # Views were filtered by the rules of the old policy, and their cache keys may mean
        # something else now.
        if access_policy is not None:
            self.access_policy = access_policy
            self.view_cache.clear()
        if rate_limiter is not None:
            lifespans.remove(self.rate_limiter)
            self.rate_limiter = rate_limiter
            lifespans.add(rate_limiter, getattr(rate_limiter, "lifespan", nullcontext), first=True)
        if audit_hook is not None:
            lifespans.remove(self.audit_hook)
            self.audit_hook = audit_hook
            # Entered first and left last: activity during shutdown is recorded too.
            lifespans.add(audit_hook, getattr(audit_hook, "lifespan", nullcontext), first=True)

    # Wrapping handlers

    def wrap_handlers(
        self, handlers: Mapping[str, MethodHandler], service_registry: ServiceRegistry
    ) -> dict[str, MethodHandler]:
        """Return the handlers of all methods, with policy applied."""
        # Services wrap the filtered list, so that they see only what the caller may see.
        seen = service_registry.wrap_handlers(self.filter_lists(handlers, service_registry.by_method))
        return {
            method: self.wrap_handler(method, answer, service_registry.by_method.get(method))
            for method, answer in seen.items()
        }

    def wrap_handler(self, method: str, handler: MethodHandler, service: Service | None = None) -> MethodHandler:
        """Return the handler of a method, with policy applied."""
        enter = _ENTERING.get(method)
        if method in KIND_BY_METHOD and service is not None:
            enter = PolicyEnforcer._list_of_service
        if method == "completion/complete" and service is not None:
            return partial(self._pass, partial(self._complete, owner=service.name), handler)
        if enter is None and service is not None and not method.startswith("tasks/"):
            return partial(self._pass, partial(self._service_method, service.name), handler)
        # Discovery lists no components, so there is nothing to check or to count.
        if enter is None and method == "server/discover":
            return handler
        return partial(self._pass, partial(enter or PolicyEnforcer._call_handler, self), handler)

    def _pass(self, enter: PolicyStep, answer: MethodHandler, call: Call) -> Any:
        # The parent is the request whose function makes this nested call, so that the audit can
        # connect the two.
        passage = PolicyContext(call, parent=current_request.get())
        if (noted := observed_requests.get()) is not None:
            noted.append(passage)
        # Open a consent round before the audit and the rate limiter see the call: both need the call without our state.
        if call.method in INPUT_REQUIRED_METHODS and call.decode_params().request_state is not UNSET:
            passage.is_continuation = self.rate_limiter is not None and self._consents.is_continuation(call)
            passage.consent_round = None if self.access_policy is None else self._consents.open_round(call)
            if passage.consent_round is not None:
                passage.call = passage.consent_round.call
        if self.audit_hook is not None:
            self.audit_hook.on_request(passage)
        token = current_request.set(passage)
        try:
            waiting = None if self.rate_limiter is None else self.rate_limiter.on_request(passage)
            result = enter(passage, answer) if waiting is None else self._call_after(waiting, enter, passage, answer)
        # Also for cancellation: concurrency limits would otherwise leak a slot with each cancelled
        # request.
        except BaseException as failure:
            self._on_end(passage, None, failure)
            raise
        finally:
            current_request.reset(token)
        if type(result) is CoroutineType:
            return self._await_result(passage, result, call)
        self._on_end(passage, result, None)
        return result

    async def _call_after(
        self, waiting: Awaitable[None], enter: PolicyStep, passage: PolicyContext, answer: MethodHandler
    ) -> Any:
        await waiting
        result = enter(passage, answer)
        return await result if type(result) is CoroutineType else result

    async def _await_result(self, passage: PolicyContext, coroutine: CoroutineType[Any, Any, Any], call: Call) -> Any:
        """Await a result, and nest input requests of a call with consent. `call` is as the client sent it."""
        token = current_request.set(passage)
        try:
            result = await coroutine
            if passage.has_consent:
                input_required = as_input_required(call.method, result)
                result = result if input_required is None else self._consents.wrap_input_required(call, input_required)
        # An exception up to this point, a result from here on: the audit records that the caller
        # was asked, not that the call failed.
        except ConsentRequired as question:
            result = question.result
        except BaseException as failure:
            self._on_end(passage, None, failure)
            raise
        finally:
            current_request.reset(token)
        self._on_end(passage, result, None)
        return result

    def _on_end(self, passage: PolicyContext, result: Any, failure: BaseException | None) -> None:
        if passage.leases and self.rate_limiter is not None:
            self.rate_limiter.on_response(passage)
        if self.audit_hook is not None:
            self.audit_hook.on_response(passage, result, failure)

    # Requests that address a component by name

    def _tool(self, passage: PolicyContext, answer: MethodHandler) -> Any:
        call = passage.call
        params = call.decode_params()
        if self.access_policy is None and self.rate_limiter is None:
            # Audit only: nothing to decide.
            owned = self._server.ownership.local_qualified_name("tool", params.name)
            if owned is not None:
                passage.kind, passage.component = "tool", owned
            return answer(call)
        return self._handle_component(passage, answer, "tool", params.name, params.arguments)

    def _prompt(self, passage: PolicyContext, answer: MethodHandler) -> Any:
        params = passage.call.decode_params()
        return self._handle_component(passage, answer, "prompt", params.name, encode(params.arguments or {}))

    def _resource(self, passage: PolicyContext, answer: MethodHandler) -> Any:
        # Resources have no arguments; rules match the URI.
        return self._handle_component(passage, answer, "resource", passage.call.decode_params().uri, EMPTY_RAW)

    def _handle_component(
        self, passage: PolicyContext, answer: MethodHandler, kind: Kind, name: str, arguments: bytes | Raw
    ) -> Any:
        # None: the component belongs to a mount or an upstream, which calls `authorize_call` with
        # the name that its owner uses, or it does not exist.
        owned = self._server.ownership.local_qualified_name(kind, name)
        if owned is None:
            return answer(passage.call)
        if not self._allows(passage, kind, owned, arguments):
            return self._deny(passage.call, kind, name)
        waiting = self._check_limits_and_consent(passage, arguments)
        return answer(passage.call) if waiting is None else self._when_clear(waiting, answer, passage.call)

    async def _when_clear(self, waiting: Any, answer: MethodHandler, call: Call) -> Any:
        await waiting
        result = answer(call)
        return await result if type(result) is CoroutineType else result

    async def _deny(self, call: Call, kind: Kind, name: str) -> NoReturn:
        """Raise the error for a missing component. Denied components are indistinguishable from missing ones."""
        if kind == "resource":
            raise ResourceNotFound(name)
        raise await self._server.provider.not_found_error(call, kind, name, self._server.catalogs[f"{kind}s/list"])

    # Handlers in front of the server: tool search

    def handle_as(
        self, call: Call, kind: Kind, component: QualifiedName, handler: MethodHandler, *, authorize: bool = True
    ) -> Any:
        """Answer a call about a component that belongs to the server without being registered.

        With `authorize` False it is counted and recorded like a list, but not checked, because it exposes nothing
        beyond the caller's rights.
        """
        enter = self._authorize_then_call if authorize else self._handle_counted
        return self._pass(partial(enter, kind, component), handler, call)

    def _authorize_then_call(
        self, kind: Kind, owned: QualifiedName, passage: PolicyContext, answer: MethodHandler
    ) -> Any:
        arguments = getattr(passage.call.decode_params(), "arguments", EMPTY_RAW)
        if not self._allows(passage, kind, owned, arguments):
            return self._deny(passage.call, kind, passage.call.decode_params().name)
        waiting = self._check_limits_and_consent(passage, arguments)
        return answer(passage.call) if waiting is None else self._when_clear(waiting, answer, passage.call)

    def _handle_counted(self, kind: Kind, owned: QualifiedName, passage: PolicyContext, answer: MethodHandler) -> Any:
        passage.kind, passage.component, passage.is_component_counted = kind, owned, True
        waiting = None if self.rate_limiter is None else self.rate_limiter.on_component(passage)
        return answer(passage.call) if waiting is None else self._when_clear(waiting, answer, passage.call)

    def _complete(self, passage: PolicyContext, answer: MethodHandler, owner: str = "") -> Any:
        """Check a completion. With an owner, a service answers for everything that the server does not own."""
        ref = passage.call.decode_params().ref
        kind: Kind
        kind, name = ("prompt", ref.name) if isinstance(ref, PromptReference) else ("template", ref.uri)
        owned = self._server.ownership.local_qualified_name(kind, name) or (
            QualifiedName(owner, name) if owner else None
        )
        if owned is None:
            return answer(passage.call)
        if not self._allows(passage, kind, owned, EMPTY_RAW):
            raise self._server.provider.nothing_to_complete(name)
        waiting = self._check_limits_and_consent(passage, EMPTY_RAW)
        return answer(passage.call) if waiting is None else self._when_clear(waiting, answer, passage.call)

    # Lists and subscriptions

    def filter_lists(
        self, handlers: Mapping[str, MethodHandler], services: Mapping[str, Service]
    ) -> dict[str, MethodHandler]:
        """Return the handlers with the server's own lists filtered by the caller's view."""
        own = {method: partial(self._list, answer) for method, answer in handlers.items() if method in KIND_BY_METHOD}
        return {**handlers, **{method: seen for method, seen in own.items() if method not in services}}

    def _list(self, answer: MethodHandler, call: Call) -> Any:
        return answer(call) if self.access_policy is None else self._handle_list(call)

    def _handle_list(self, call: Call) -> Any:
        """Return a list without the components that the caller may not see."""
        view = self.caller_view(call)
        assert view is not None
        catalog = self._server.catalogs[call.method]
        cursor = call.decode_params().cursor
        if self._server.provider:
            return self._server.provider.get_page(catalog, call, cursor, view)
        make = partial(view.definitions, catalog)
        return view.page(catalog, (catalog.definitions,), make, call.protocol_version, cursor)

    async def _list_of_service(self, passage: PolicyContext, answer: MethodHandler) -> Any:
        """Filter a list that a service answers instead of the server."""
        call = passage.call
        result = answer(call)
        result = await result if type(result) is CoroutineType else result
        if self.access_policy is None:
            return result
        kind, sees = KIND_BY_METHOD[call.method], self.access_policy.visibility(call).is_visible
        name_of = self._server.catalogs[call.method].name_of
        member = call.method.removesuffix("/list").replace("resources/templates", "resource_templates")
        visible = []
        for item in getattr(result, member):
            # An entry without an owner is hidden: no rule can have allowed it.
            owned = self._server.ownership.local_qualified_name(kind, name_of(item))
            if owned is not None and sees(kind, owned):
                visible.append(item)
        return replace(result, **{member: visible})

    def _call_handler(self, passage: PolicyContext, answer: MethodHandler) -> Any:
        return answer(passage.call)

    # Methods of services: a URI in their params addresses a resource of that service

    async def _service_method(self, service: str, passage: PolicyContext, answer: MethodHandler) -> Any:
        call = passage.call
        uri = _uri_in(call)
        if uri is not None and not self._allows(passage, "resource", QualifiedName(service, uri), EMPTY_RAW):
            raise ResourceNotFound(uri)
        result = answer(call)
        result = await result if type(result) is CoroutineType else result
        if self.access_policy is None:
            return result
        sees = self.access_policy.visibility(call).is_visible
        # Methods of services have their own result types. Every entry with a `uri` is treated as a
        # resource, so that a new method is filtered without being known here.
        return _remove_hidden_entries(result, lambda name: not sees("resource", QualifiedName(service, name)))

    # Called by forwarders, which know the owner of a component

    def caller_view(self, call: Call) -> CallerView | None:
        """Return the caller's view of the components; None: everything is visible."""
        if self.access_policy is None:
            return None
        return CallerView(
            self.access_policy.visibility(call),
            self.view_cache,
            self._server.ownership.component_qualified_name,
            self._server.ownership.local_qualified_name,
        )

    async def authorize_call(
        self, call: Call, kind: Kind, component: QualifiedName, arguments: bytes | Raw = EMPTY_RAW
    ) -> bool:
        """Return whether a call may be forwarded to another owner's component; if not, it must look missing.

        Raises if it is rejected for another reason, such as a limit.
        """
        # Usually the passage of the enclosing request, whose audit record then names the upstream.
        passage = current_request.get() or PolicyContext(call)
        passage.upstream = component.owner
        if not self._allows(passage, kind, component, arguments):
            return False
        waiting = self._check_limits_and_consent(passage, arguments)
        if waiting is not None:
            await waiting
        return True

    async def audit_task(
        self, call: Call, job: str, component: QualifiedName, arguments: Raw, awaitable: Awaitable[Any]
    ) -> Any:
        """Await the result of a task, and report it to the audit hook like a call."""
        passage = PolicyContext(call, "tool", component, task_id=job, arguments=arguments)
        if self.audit_hook is not None:
            self.audit_hook.on_request(passage)
        token = current_request.set(passage)
        try:
            result = await awaitable
        except BaseException as failure:
            if self.audit_hook is not None:
                self.audit_hook.on_response(passage, None, failure)
            raise
        finally:
            current_request.reset(token)
        if self.audit_hook is not None:
            self.audit_hook.on_response(passage, result, None)
        return result

    def is_still_allowed(self, call: Call, component: QualifiedName, arguments: bytes | Raw) -> bool:
        """Return whether a call that was admitted earlier and waited in a queue is still allowed."""
        return self.access_policy is None or self.access_policy.decide(call, "tool", component, arguments).allowed

    def _allows(self, passage: PolicyContext, kind: Kind, owned: QualifiedName, arguments: bytes | Raw) -> bool:
        passage.kind, passage.component = kind, owned
        if self.access_policy is None:
            return True
        # A template is not executed, so there are no arguments to decide on: whoever sees it may
        # complete it.
        if kind == "template":
            passage.decision = Decision(self.access_policy.visibility(passage.call).is_visible(kind, owned))
        else:
            passage.decision = self.access_policy.decide(passage.call, kind, owned, arguments)
        return passage.decision.allowed

    def _check_limits_and_consent(self, passage: PolicyContext, arguments: bytes | Raw) -> Any:
        """Check the remaining requirements of an allowed call. Return an awaitable if the call has to wait, otherwise
        None.
        """
        assert passage.kind is not None and passage.component is not None
        call = passage.call
        questions = (
            [] if self.access_policy is None else self._check_requirements(self.access_policy, passage, arguments)
        )
        waiting = None
        # Once per request, although a forwarded call is checked in more than one place.
        if self.rate_limiter is not None and not passage.is_component_counted:
            passage.is_component_counted = True
            waiting = self.rate_limiter.on_component(passage)
        if questions and call.method in INPUT_REQUIRED_METHODS and not passage.has_consent:
            return self._require_consent(waiting, passage, questions)
        if passage.consent_round is not None and not passage.has_consent:
            # Mark our state as used even if consent is no longer required: it must not authorize a second call.
            return self._require_consent(waiting, passage, [])
        return waiting

    def _check_requirements(self, guard: AccessPolicy, passage: PolicyContext, arguments: bytes | Raw) -> list[str]:
        assert passage.kind is not None and passage.component is not None
        call = passage.call
        try:
            return guard.check_requirements(call, passage.kind, passage.component, arguments)
        except InsufficientScope as refusal:
            # Include the tool's own scopes, so that the client can request all of them at once.
            own = self._server.required_scopes(call.method, getattr(call.decode_params(), "name", ""), call)
            missing = _missing_scopes(call, refusal.scopes | own)
            raise InsufficientScope(
                f"The {passage.kind} {passage.component.name!r}", refusal.scopes | own, missing or refusal.scopes
            ) from None

    async def _require_consent(self, waiting: Any, passage: PolicyContext, questions: list[str]) -> None:
        if waiting is not None:
            await waiting
        await self._consents.require_consent(passage.call, questions, passage.consent_round)
        passage.has_consent = True


_ENTERING: dict[str, Callable[[PolicyEnforcer, PolicyContext, MethodHandler], Any]] = {
    "tools/call": PolicyEnforcer._tool,
    "prompts/get": PolicyEnforcer._prompt,
    "resources/read": PolicyEnforcer._resource,
    "completion/complete": PolicyEnforcer._complete,
}


def _missing_scopes(call: Call, scopes: frozenset[str]) -> frozenset[str]:
    lacks = getattr(call.principal, "missing_scopes", None)
    return scopes if lacks is None else frozenset(lacks(scopes))


class _UriEntry(msgspec.Struct, gc=False):
    uri: str | None = None


def _uri_in(call: Call) -> str | None:
    if call.params is EMPTY_RAW:
        return None
    try:
        return msgspec.json.decode(call.params, type=_UriEntry).uri
    except msgspec.DecodeError:
        return None  # reported when the method decodes its params


def _remove_hidden_entries(result: Any, hidden: Callable[[str], bool]) -> Any:
    """Return a result whose lists have no entries with hidden URIs."""
    if not isinstance(result, msgspec.Struct):
        return result
    visible: dict[str, Any] = {}
    for name in result.__struct_fields__:
        listed = getattr(result, name)
        if isinstance(listed, list) and any(isinstance(getattr(item, "uri", None), str) for item in listed):
            visible[name] = [item for item in listed if not hidden(getattr(item, "uri", ""))]
    return replace(result, **visible) if visible else result
