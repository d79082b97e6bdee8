"""The `Server` class: a Handler that answers from the components registered with it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property, partial, reduce
from types import CoroutineType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar, cast

from msgspec import Raw, Struct
from msgspec.structs import replace

from portico._lazy import LazyModule, get_loaded_module
from portico._options import validated_kwargs
from portico.protocol import jsonrpc, notifications
from portico.protocol.errors import MethodNotFound, UsageError
from portico.protocol.header_params import HeaderParam
from portico.protocol.meta import SERVER_INFO_META_KEY, UNKNOWN_VERSION, Implementation, ServerCapabilities
from portico.protocol.prompts import ListPromptsResult
from portico.protocol.resources import ListResourcesResult, ListResourceTemplatesResult
from portico.protocol.tools import CallToolParams, ListToolsResult, ToolAnnotations
from portico.protocol.versions import LATEST_PROTOCOL_VERSION
from portico.rpc.call import Call, ComponentDirectory, Handler, HandlerMiddleware, Operations
from portico.server import run as running
from portico.server.components.prompts import Prompt
from portico.server.components.resources import Resource
from portico.server.components.runtime import MAX_THREADS, ArgumentErrorMode, Runtime, ThreadPool
from portico.server.components.tools import Tool
from portico.server.components.validation import (
    CacheHint,
    normalize_header_names,
    parse_capabilities,
    parse_icons,
    resolve_cache_hints,
    validate_extension_ids,
    validate_page_size,
)
from portico.server.context.current import CurrentCall
from portico.server.methods import ServerMethods
from portico.server.providers.base import MountedProviders, Provider
from portico.server.registry.catalog import PAGE_SIZE, Catalog, ListCursorCodec
from portico.server.registry.lifespans import LifespanManager
from portico.server.registry.registration import (
    NO_DEFAULTS,
    ComponentDefaults,
    OnDuplicate,
    Registration,
    create_matcher,
)
from portico.server.registry.registry import Registry
from portico.server.registry.service import Component, MethodHandler, Registrar, Service, ServiceRegistry
from portico.server.registry.subscriptions import Subscriptions

ComponentT = TypeVar("ComponentT")
RouteFunction = TypeVar("RouteFunction", bound=Callable[..., Any])

if TYPE_CHECKING:
    from portico.auth import resource_server as resource_module
    from portico.auth.resource_server import ResourceServer
    from portico.server import custom_routes
    from portico.server.context import context, replay_guard as spent_module, request_state
    from portico.server.context.replay_guard import UsedStates
    from portico.server.context.request_state import RequestStateSealer
    from portico.server.policy import enforcement, ownership as ownership_module
    from portico.server.policy.enforcement import PolicyEnforcer
    from portico.server.policy.interfaces import AccessPolicy, AuditHook, Kind, QualifiedName, RequestLimiter
    from portico.server.policy.ownership import Ownership
    from portico.server.providers.openapi import document as document_module, tools
    from portico.server.registry import replication
    from portico.server.tasks.service import TaskService
    from portico.server.transforms import builtin
    from portico.transports.http_server.custom_routes import CustomRoute

    class ToolSearchHandler(Handler, Protocol):
        """A view of a server under a separate name; `own_tools` holds the tools that the view adds."""

        @property
        def name(self) -> str: ...
        @property
        def own_tools(self) -> Server: ...
else:
    custom_routes = LazyModule("portico.server.custom_routes")
    resource_module = LazyModule("portico.auth.resource_server")
    document_module = LazyModule("portico.server.providers.openapi.document")
    tools = LazyModule("portico.server.providers.openapi.tools")
    builtin = LazyModule("portico.server.transforms.builtin")
    context = LazyModule("portico.server.context.context")
    request_state = LazyModule("portico.server.context.request_state")
    spent_module = LazyModule("portico.server.context.replay_guard")
    ownership_module = LazyModule("portico.server.policy.ownership")
    enforcement = LazyModule("portico.server.policy.enforcement")
    replication = LazyModule("portico.server.registry.replication")


class ToolSearchConfig(Struct, frozen=True):
    """Tool search settings of a served server: which view clients see, and which tools it always lists."""

    name: str | None = None
    always: Sequence[str] = ()
    # Whether to omit output schemas from the listing.
    brief: bool = False
    # Options of code mode: what scripts may do.
    code: Mapping[str, Any] = {}


Lifespan = Callable[["Server"], AbstractAsyncContextManager[Any]]

DEFAULT_CAPABILITIES: dict[str, Any] = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "prompts": {"listChanged": True},
    "completions": {},
    "logging": {},
}


class ServerOperations(Operations):
    """Operational interface of a server for the transports that serve it."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def endpoints(self) -> Mapping[str, Handler]:
        return self._server.endpoints

    def on_rejected_request(self, status: int, reason: str, address: str | None) -> None:
        policy = self._server.policy
        if policy is not None and policy.audit_hook is not None:
            policy.audit_hook.on_rejected(status, reason, address)


class Server(Registrar, ComponentDirectory):
    """An MCP server: register components with the decorators, then call `run()`.

    A Server is a Handler. It implements protocol version 2026-07-28; for the earlier, handshake-based versions the
    transport puts a session in front of it.

    * **name**, **version** – identity reported to clients.
    * **title**, **description**, **website_url**, **icons** – display metadata for users.
    * **instructions** – how a model should use this server as a whole.
    * **capabilities** – advertise only these capabilities. Methods of a capability that is left out are not answered.
    * **middleware** – wraps every request that this server answers; the last one is the outermost.
    * **lifespan** – `lifespan(server)` is an async context manager, entered at startup and left at shutdown.
    * **argument_errors** – how to report invalid arguments: as a "result" that the model reads, as a "protocol" error,
      or "auto", which follows the client's protocol version.
    * **component_defaults** – a `ComponentDefaults`: options of the components that do not set them themselves.
    * **list_page_size** – number of entries in a page of a list.
    * **max_threads** – number of `def` functions that may run concurrently.
    * **cache** – a CacheHint: how long clients may cache lists and resources, and whether several users may share
      them. Or a hint for each method, `{"tools/list": CacheHint(ttl_ms=60_000)}`, with "*" for all others.
    * **request_state_keys** – keys that seal the state which clients carry from one round to the next. Processes that
      serve the same clients need the same keys; without keys, each process generates one. The first key seals, all of
      them open.
    * **on_duplicate** – what to do with a second tool, resource or prompt of the same name: raise an "error", "replace"
      the first, replace it and "warn", or "ignore" the second.
    * **store** – URL of the store for tasks and used request states. None: PORTICO_STORE, or memory.
    * **auth** – token validation over HTTP: a `portico.auth.ResourceServer`, the URL of an issuer, an async function
      that maps the credentials of a request to a Principal, or an object with `create_resource_server(server)`, which
      is called when the server is opened over HTTP.
    * **request_headers** – names of the request headers that functions can read from `ctx.headers`.
    """

    # Class of the Contexts that functions receive; None: `portico.Context`, which is imported when first needed.
    context_class: ClassVar[Any] = None

    @validated_kwargs
    def __init__(
        self,
        name: str = "server",
        instructions: str | None = None,
        *,
        version: str = UNKNOWN_VERSION,
        title: str | None = None,
        description: str | None = None,
        website_url: str | None = None,
        icons: Sequence[Any] | None = None,
        capabilities: dict[str, Any] | None = None,
        middleware: Iterable[HandlerMiddleware] = (),
        lifespan: Lifespan | None = None,
        argument_errors: ArgumentErrorMode = "auto",
        component_defaults: ComponentDefaults = NO_DEFAULTS,
        list_page_size: int = PAGE_SIZE,
        max_threads: int = MAX_THREADS,
        cache: CacheHint | Mapping[str, CacheHint] | None = None,
        request_state_keys: bytes | Sequence[bytes] | None = None,
        on_duplicate: OnDuplicate = "error",
        store: str | None = None,
        auth: Any = None,
        request_headers: Iterable[str] = (),
    ) -> None:
        self.info = Implementation(name, version, title, description, website_url, parse_icons(icons))
        self.instructions = instructions
        self.thread_pool = ThreadPool(max_threads)
        self._state_keys = (
            [request_state_keys] if isinstance(request_state_keys, bytes) else list(request_state_keys or ())
        )
        self.argument_errors = argument_errors
        seen = normalize_header_names(request_headers)
        self.runtime = Runtime(
            name,
            self,
            self.thread_pool,
            context,
            argument_errors,
            seen,
            component_defaults.strict_arguments,
            type(self).context_class,
        )
        self.capabilities = (
            ServerCapabilities(**DEFAULT_CAPABILITIES) if capabilities is None else parse_capabilities(capabilities)
        )
        self._extensions: dict[str, Any] = self.capabilities.extensions or {}
        validate_extension_ids(self._extensions)
        self.subscriptions = Subscriptions()
        self.lifespans = LifespanManager()
        # URL of the store for tasks. None: PORTICO_STORE, or memory. Used request states have their own URL,
        # because a store given on the command line applies to tasks only.
        self.store = self._spent_in = store
        # Directory for the server's own files. None: PORTICO_DATA, or the platform's data directory.
        self.data_dir: str | None = None
        # Created when the first tool that may run as a task is registered.
        self.tasks: TaskService | None = None
        if lifespan is not None:
            self.lifespans.add(_OWN, partial(lifespan, self))
        # Authentication and additional pages over HTTP. Both are read when the HTTP transport is opened.
        self._auth: ResourceServer | None = None
        # Creates `_auth` when HTTP is opened: an auth provider needs settings that are unknown before.
        self._auth_provider: Any = None
        if auth is not None:
            self._configure_auth(auth)
        self.custom_routes: list[CustomRoute] = []
        # Called with the HttpApplication when it is built, for pages that display its activity.
        self.on_http_start: list[Callable[[Any], None]] = []
        # Where users connect their accounts at upstream servers, if supported.
        self.account_connector: Any = None
        # The upstreams with connectable accounts, by alias.
        self.connected_accounts: dict[str, Any] = {}
        self._middleware = [self._to_handler_middleware(item) for item in middleware]
        self._chain: Callable[[Call], Any] | None = None
        self.service_registry = ServiceRegistry()
        self.registration = Registration(self, component_defaults, on_duplicate)
        # Components that other processes may add by name: see `declare`.
        self.declared: dict[str, Any] = {}
        # Components hidden by `disable`.
        self.disabled: list[Component] = []
        # Per-session visibility rules, created with the first rule.
        self.session_visibility: Any = None
        # Handlers at additional paths: see `add_endpoint`.
        self.endpoints: dict[str, Handler] = {}
        # How transports observe this server: its dependencies, its metrics.
        self.operations: Operations = ServerOperations(self)
        # The handler that clients talk to: a tool search view if one is configured, otherwise this server.
        self.public_handler: Handler = self
        self.tool_search = ToolSearchConfig()
        # Answers for components that this server does not own.
        self.provider: Provider = MountedProviders(self.subscriptions.broadcast, self.lifespans)
        # Enforces access rules, rate limits and audit; created when one of them is configured.
        self.policy: PolicyEnforcer | None = None
        hints, hints_by_method = resolve_cache_hints(cache)
        self.registry = Registry(
            page_size=validate_page_size(list_page_size),
            result_meta=Raw(jsonrpc.encode({SERVER_INFO_META_KEY: self.info})),
            cache_hints=hints,
            # Without a configured key, the server's name protects cursors against mistakes, not against
            # attackers. This lets every process of the same name accept a cursor, and a forged cursor does no
            # more than select a page.
            cursors=ListCursorCodec(self._state_keys[0] if self._state_keys else name.encode()),
            publish=self.subscriptions.broadcast,
        )
        self.tools, self.prompts = self.registry.tools, self.registry.prompts
        self.resources, self.templates = self.registry.resources, self.registry.templates
        self.methods = ServerMethods(self, hints, hints_by_method)
        self._answers = self._unprotected = self.methods.build_handlers(self._call_tool)
        self._link()

    def _extend(self) -> None:
        """Rebuild the method handlers and the advertised extensions from the services that are registered now."""
        answers = {**self.methods.build_handlers(self._call_tool), **self.service_registry.method_handlers()}
        for method in self.provider.task_methods:
            # Task ids of mounted servers are routed to their mount, so mounts wrap these methods even without own
            # tasks.
            own = answers.get(method, self._reject_unknown_method)
            answers[method] = partial(self.provider.wrap_task_method, own)
        self.service_registry.has_middleware = bool(self._middleware)
        self._link()
        self._unprotected = self._answers = self.service_registry.wrap_handlers(answers)
        if self.policy is not None:
            self._answers = self.policy.wrap_handlers(answers, self.service_registry)
        extensions = {**self._extensions, **self.service_registry.extensions()}
        self.capabilities = replace(self.capabilities, extensions=extensions or None)

    @property
    def directory(self) -> ComponentDirectory:
        return self

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def version(self) -> str:
        return self.info.version

    @property
    def title(self) -> str | None:
        return self.info.title

    @property
    def description(self) -> str | None:
        return self.info.description

    @property
    def website_url(self) -> str | None:
        return self.info.website_url

    @property
    def icons(self) -> Any:
        return self.info.icons

    # Created on first use: most servers never send requests to their clients.

    @cached_property
    def state_sealer(self) -> RequestStateSealer:
        """Return the sealer for the state of calls that request input from the client."""
        keys = self._state_keys
        return request_state.RequestStateSealer(keys[0] if keys else None, name=self.name, previous_keys=keys[1:])

    @cached_property
    def used_states(self) -> UsedStates:
        """Return the record of sealed states that were already used."""
        return spent_module.UsedStates(self._spent_in)

    @property
    def lifespan_state(self) -> Any:
        """Return the value that this server's lifespan yielded, or None without a lifespan or before it was entered."""
        return self.lifespans.get_state(_OWN)

    def _configure_auth(self, auth: Any) -> None:
        if isinstance(auth, str | resource_module.ResourceServer) or callable(auth):
            self._auth = resource_module.to_resource_server(auth)
        elif hasattr(auth, "create_resource_server"):
            self._auth_provider = auth
        else:
            raise UsageError(
                "auth must be a ResourceServer, the URL of an issuer, an async function or an object with "
                f"create_resource_server(server), got {type(auth).__name__}"
            )

    @property
    def auth(self) -> ResourceServer | None:
        """Return the ResourceServer that validates tokens over HTTP, or None."""
        if self._auth_provider is not None:
            provider, self._auth_provider = self._auth_provider, None
            self._auth = provider.create_resource_server(self)
        return self._auth

    @auth.setter
    def auth(self, resource: ResourceServer | None) -> None:
        self._auth, self._auth_provider = resource, None

    # Answering requests

    async def __call__(self, call: Call) -> Any:
        # A function may call another server in this process: restore the outer call as the current one afterwards.
        saved = CurrentCall.save()
        try:
            result = self.start(call)
            return await result if type(result) is CoroutineType else result
        finally:
            CurrentCall.restore(saved)

    def start(self, call: Call) -> Any:
        """Return the result of a Call, or a coroutine that returns it."""
        # Plain method dispatch without awaiting: the fast path of a tools/call.
        if self._chain is not None:
            return self._chain(call)
        answer = self._answers.get(call.method)
        return answer(call) if answer is not None else self._reject_unknown_method(call)

    def _reject_unknown_method(self, call: Call) -> None:
        if call.id is not None:
            raise MethodNotFound.of(call.method)

    async def _handle_in_middleware(self, call: Call) -> Any:
        """Answer a call inside the middleware chain."""
        if call.answer is None:
            result = self._answers.get(call.method, self._reject_unknown_method)(call)
        else:
            # Nested calls made while answering must not use the replacement handler.
            result = call.answer(replace(call, answer=None))
        return await result if type(result) is CoroutineType else result

    def with_middleware(self, handler: MethodHandler, call: Call) -> Any:
        """Answer a call with `handler`, wrapped in this server's middleware."""
        return handler(call) if self._chain is None else self._chain(replace(call, answer=handler))

    def cached_list(self, method: str) -> Sequence[Any] | None:
        """Return the entries of a list, or None if they depend on the caller.

        The same object is returned until the list changes.
        """
        # Middleware, services and access rules can change a list per request, so only an unwrapped list is cacheable.
        if self.has_access_policy:
            return None
        answer = self._unprotected.get(method)
        lists = self.methods.lists
        if self._chain is not None or method not in lists or answer not in (None, lists[method]):
            return None
        if answer is None:
            return ()
        catalog: Catalog[Any] = cast("partial[Any]", answer).args[0]
        return self.provider.cached_list(catalog) if self.provider else catalog.definitions

    async def handle_without_policy(self, call: Call) -> Any:
        """Answer a call without access rules, for decisions that apply to all callers alike."""
        result = self._unprotected.get(call.method, self._reject_unknown_method)(call)
        return await result if type(result) is CoroutineType else result

    def required_scopes(self, method: str, name: str, call: Call | None = None) -> frozenset[str]:
        """Return the scopes that a principal needs for a request about this name.

        Empty for components that are not ours or that are hidden from the caller, so that scopes do not reveal them.
        Without a `call` the caller is anonymous.
        """
        tool = self.registry.by_name.get(name) if method == "tools/call" else None
        if tool is None or self.is_hidden(call or _ANONYMOUS_CALL, "tool", name):
            return frozenset()
        return tool.required_scopes

    def _call_tool(self, call: Call) -> Any:
        params: CallToolParams = call.decode_params()
        tool = self.registry.by_name.get(params.name)
        if tool is None:
            return self.provider.call(call, "tool", params.name, self.tools)
        return tool.start(call, params, self.runtime)

    @property
    def header_params(self) -> Mapping[str, Sequence[HeaderParam]]:
        """Return the arguments that are also sent as HTTP headers, by tool."""
        return self.provider.add_header_params(self.registry.header_params)

    # Change notifications

    @property
    def reads_resources_directly(self) -> bool:
        """Return whether resources are read without middleware or services in between."""
        return self._chain is None and self._unprotected.get("resources/read") == self.methods.read_resource

    def notify_resource_updated(
        self, uri: str, *, replicate: bool = True, admits: Callable[[Call], bool] | None = None
    ) -> None:
        """Notify subscribers that a resource has changed.

        * **replicate** – also notify subscribers served by other processes; False if each process detects the change
          itself.
        * **admits** – notify only subscribers of this process for whose `subscriptions/listen` call it returns True,
          such as the subscribers of one principal. Hashable.
        """
        if replicate and admits is None:
            self.subscriptions.broadcast(notifications.RESOURCE_UPDATED, uri)
        else:
            self.subscriptions.publish(notifications.RESOURCE_UPDATED, uri, admits=admits)

    # Ownership and access

    @cached_property
    def ownership(self) -> Ownership:
        """Return the mapping from components to the services and mounts that own them."""
        return ownership_module.Ownership(self)

    def qualified_name(self, kind: Kind, name: str) -> QualifiedName:
        """Return the owner of a tool, prompt, resource or template, and its name there: (owner, local name).

        The owner is the alias of an upstream, the prefix or name of a mount, the name of a service, or this server's
        name; it is empty for an unknown component. Rules and records use these two, never the name that a client was
        shown, so aliases, prefixes and renames cannot bypass them.
        """
        return self.ownership.qualified_name(kind, name)

    def requires_task(self, tool: str) -> bool:
        """Return whether a tool is known to run only as a task."""
        result = self.registry.by_name.get(tool)
        if result is None:
            return self.provider.requires_task(tool)
        return result.task is not None and result.task.mode == "required"

    def tool_annotations(self, call: Call, tool: str) -> ToolAnnotations | None:
        """Return the current annotations of a tool, or None if only a list request can tell."""
        result = self.registry.by_name.get(tool)
        if result is None:
            return self.provider.tool_annotations(call, tool)
        return result.annotations or ToolAnnotations()

    def canonical_name(self, kind: Kind, name: str) -> str | None:
        """Return the canonical name of a component, whatever alias it was called by, or None if it does not exist."""
        return self.ownership.canonical_name(kind, name)

    def is_hidden(self, call: Call, kind: Kind, name: str) -> bool:
        """Return whether a component exists but is hidden from the caller."""
        return self.ownership.is_hidden(call, kind, name)

    @property
    def has_access_policy(self) -> bool:
        """Return whether visible components depend on the caller."""
        return self.policy is not None and self.policy.access_policy is not None

    @property
    def catalogs(self) -> dict[str, Catalog[Any]]:
        """Return the catalogs of this server's own components, by list method."""
        return {item.method: item for item in (self.tools, self.prompts, self.resources, self.templates)}

    def set_policy(
        self,
        *,
        access_policy: AccessPolicy | None = None,
        rate_limiter: RequestLimiter | None = None,
        audit_hook: AuditHook | None = None,
    ) -> None:
        """Apply an access policy, a rate limiter or an audit hook to every request. Each replaces the previous one of
        its kind.

        Can be called while the server is running.

        * **access_policy** – decides which components a caller sees and may use.
        * **rate_limiter** – counts requests and rejects those above the limit.
        * **audit_hook** – records requests and their outcomes.
        """
        if self.policy is None:
            self.policy = enforcement.PolicyEnforcer(self)
            self.provider.protection = self.policy
        self.policy.configure(access_policy, rate_limiter, audit_hook, self.lifespans)
        if access_policy is not None:
            # Lists now depend on the caller, so shared caches must not store them.
            self.methods.cache_hints["cache_scope"] = "private"
            self._lists_changed()
        self._extend()

    @classmethod
    def from_openapi(cls, spec: Any, **options: Any) -> Self:
        """Create a server with a tool for each operation of an OpenAPI document: a dict, or the path of a JSON or YAML
        file.

        * **base_url** – base URL of the API. Without it, the document's `servers` entry is used, which must be a public
          address.
        * **app**, **client** – send requests to an ASGI application in this process, or with an `httpx.AsyncClient`.
        * **auth** – a key or token, a `(name, password)`, a table with `client_id` and `client_secret`; or several of
          them by the names of the document's security schemes. For schemes that the document does not declare, use
          `headers`.
        * **headers** – sent with every request.
        * **variables** – values for the variables in the document's server URL.
        * **tags**, **paths**, **methods** – turn only these operations into tools; **exclude_tags** and so on omit
          operations.
        * **route_maps** – FastMCP's equivalent: the first `RouteMap` that matches an operation decides.
        * **rename** – tool names by operation id.
        * **allow_private_hosts** – whether the document's server may be an address in a private network.
        * **validate_output** – whether tools have output schemas; a response that does not match is then an error.
        * **timeout**, **max_response_size** – limits of a request in seconds, and of a response in bytes.
        * all options of Server except `auth`.
        """
        document = document_module.read_document(spec)
        about, operation_options = tools.split_options(document, options)
        server = cls(**about)
        tools.add_operations(server, document, operation_options)
        return server

    @classmethod
    def from_fastapi(cls, app: Any, **options: Any) -> Self:
        """Create a server with a tool for each operation of a FastAPI application, which is called in this process.

        Takes the options of `from_openapi`. The application is started and stopped with this server.
        """
        if not callable(getattr(app, "openapi", None)):
            raise UsageError(f"expected a FastAPI application with an openapi() method, got {type(app).__name__}")
        return cls.from_openapi(app.openapi(), app=app, **options)

    # Registration

    def _register(self, component: Component) -> None:
        self.add_components([component])
        if self.subscriptions.broadcast_hook is not None:
            replication.warn_if_local_only(self.subscriptions.broadcast_hook, component)

    def add_components(self, components: list[Component]) -> None:
        """Add tools, resources and prompts, all of them or none, with this server's defaults applied."""
        self.registration.add_components(components)

    def add_to_service(self, name: str, components: list[Component]) -> None:
        """Add components to a service, at startup or later. Rules refer to them by the service's name, and they are
        removed with it.
        """
        self.registration.add_to_service(name, components)

    def _add_service(self, service: Service) -> None:
        self.service_registry.add_service(service)
        self.registry.scheme_aliases |= service.scheme_aliases
        service.on_added(self)
        self.lifespans.add(service, service.lifespan)
        self._extend()

    @property
    def services(self) -> tuple[Service, ...]:
        """Return the services that were added, in order."""
        return tuple(service for service in self.service_registry.services if not service.internal)

    def add(self, component: Any, *, replicate: bool = False) -> None:
        """Add a service, a single tool, resource or prompt, or a function as a tool. Can be called while the server is
        running.

        * **replicate** – also add it in the other processes that serve the same clients, and in processes started
          later. Each must have declared it: see `declare`.
        """
        if replicate:
            name = replication.find_declared_name(self.declared, component)
            with replication.replicate_as(self.subscriptions.broadcast_hook, replication.COMPONENT_ADDED, name):
                self.registration.add(component)
        else:
            self.registration.add(component)

    def declare(self, component: ComponentT) -> ComponentT:
        """Declare a component that may be added later in all processes with `add(component, replicate=True)`.

        Call it before the server runs, in code that every process executes, such as at the end of a module. Processes
        send each other names, and accept only declared ones. Returns the component, so it can be used as a decorator.
        Raises UsageError for a second component of the same name, or when several processes are already serving.
        """
        if self.subscriptions.broadcast_hook is not None:
            raise UsageError("declare() must be called before the server runs, so that every process does")
        name = replication.declared_name(component)
        if self.declared.setdefault(name, component) is not component:
            raise UsageError(f"another component is declared as {name!r}")
        return component

    def remove(self, name: str, *, replicate: bool = False) -> None:
        """Remove a service, a tool, a prompt or a resource by its name or URI. Can be called while the server is
        running.

        * **replicate** – also remove it in the other processes that serve the same clients; requires `declare`.
        """
        if replicate:
            if name not in self.declared:
                raise UsageError(
                    f"{name!r} cannot be removed in all processes: declare it first, with server.declare(…)"
                )
            with replication.replicate_as(self.subscriptions.broadcast_hook, replication.COMPONENT_REMOVED, name):
                self.registration.remove(name)
        else:
            self.registration.remove(name)

    def add_tool(self, tool: Any, **options: Any) -> Tool:
        """Add a function, with the options of `@server.tool`, or a Tool, and return the Tool."""
        existing = _find_by_function(tool, self.tools)
        if existing is not None and not options:
            return cast("Tool", existing)
        added = tool if isinstance(tool, Tool) else Tool(tool, **options)
        self.add(added)
        return added

    def add_prompt(self, prompt: Any, **options: Any) -> Prompt:
        """Add a function, with the options of `@server.prompt`, or a Prompt, and return the Prompt."""
        added = prompt if isinstance(prompt, Prompt) else Prompt(prompt, **options)
        self.add(added)
        return added

    def add_resource(self, resource: Any) -> Resource:
        """Add a Resource and return it."""
        existing = _find_by_function(resource, [*self.resources, *self.templates])
        if existing is not None:
            return cast("Resource", existing)
        if not isinstance(resource, Resource):
            raise UsageError("a resource is added as a Resource: Resource(fn, uri), or with @server.resource(uri)")
        self.add(resource)
        return resource

    def remove_tool(self, name: str) -> None:
        """Remove every version of a tool. Raises NotRegistered, a ValueError, if it does not exist."""
        self.registration.remove_component(name)

    def remove_prompt(self, name: str) -> None:
        """Remove a prompt. Raises NotRegistered, a ValueError, if it does not exist."""
        self.registration.remove_component(name)

    def remove_resource(self, uri: str) -> None:
        """Remove a resource or a template. Raises NotRegistered, a ValueError, if it does not exist."""
        self.registration.remove_component(uri)

    def add_provider(self, provider: Any, namespace: str | None = None) -> None:
        """Add a source of components: a Service, a FileSystemProvider or a server, optionally with a prefix for its
        names.
        """
        if namespace:
            inner = Server(namespace)
            inner.add_provider(provider)
            self.mount(inner, namespace)
        elif hasattr(provider, "attach"):
            provider.attach(self)
        elif hasattr(provider, "registry"):
            self.mount(provider)
        else:
            self.add(provider)

    def add_transform(self, transform: Any) -> None:
        """Transform the components of this server: ToolTransform, Namespace, VersionFilter, ResourcesAsTools,
        PromptsAsTools.

        Can be called while the server is running.
        """
        if not hasattr(transform, "attach") or not hasattr(transform, "includes"):
            raise UsageError(
                f"expected a portico Transform, got {transform!r}; to change requests or results, use "
                "server.add_middleware(…)"
            )
        transform.attach(self)
        if type(transform).includes is not builtin.Transform.includes:
            self.registration.add_filter(transform.includes)

    def disable(
        self,
        *,
        names: Collection[str] = (),
        tags: Collection[str] = (),
        keys: Collection[str] = (),
        components: Collection[str] | None = None,
    ) -> None:
        """Hide components with one of these names or tags until `enable` shows them again. Clients are notified.

        * **keys** – names with their kind: `tool:add`, `resource:data://x`.
        * **components** – only these kinds: "tool", "resource", "template", "prompt".
        """
        self.registration.disable(create_matcher(names or (), tags or (), keys or (), components))

    def enable(
        self,
        *,
        names: Collection[str] = (),
        tags: Collection[str] = (),
        keys: Collection[str] = (),
        components: Collection[str] | None = None,
        only: bool = False,
    ) -> None:
        """Show components again that `disable` hid.

        * **only** – hide all others.
        """
        matches = create_matcher(names or (), tags or (), keys or (), components)
        self.registration.enable(matches)
        if only:
            self.registration.disable(lambda component: not matches(component))

    def mount(self, server: Any, namespace: str | None = None) -> None:
        """Mount another server under a namespace: its tool `add` becomes `namespace_add`.

        `server` is a Server, a Client, any Handler, or a target that Client accepts: a URL, a command, a
        `module:object`. The connection is opened and closed with this server.
        """
        if server is self:
            raise UsageError("a server cannot be mounted in itself")
        self.provider.mount(server, namespace)
        self._extend()
        self._lists_changed()

    def unmount(self, target: Any) -> None:
        """Remove the mounts of a target that were added with `mount`."""
        self.provider.unmount(target)
        self._lists_changed()

    def _lists_changed(self) -> None:
        for catalog in (self.tools, self.prompts, self.resources):
            catalog.invalidate()

    def add_endpoint(self, path: str, handler: Handler) -> None:
        """Serve another Handler, such as a view of this server, at another path of the same port.

        The endpoint has separate sessions but the same tokens, hosts and limits. Can be called while the server is
        running.
        """
        if not path.startswith("/") or path == "/" or not path.isprintable() or set(path) & set("?#% "):
            raise UsageError(
                "endpoint path must start with / and have no query, fragment or escapes, such as /mcp/other; got "
                f"{path!r}"
            )
        if path in self.endpoints:
            raise UsageError(f"endpoint {path} is already registered; remove it first")
        # Assign a new dict instead of mutating: the transport detects the change by identity.
        self.endpoints = {**self.endpoints, path: handler}

    def remove_endpoint(self, path: str) -> None:
        """Remove an endpoint that was added with `add_endpoint`."""
        if path not in self.endpoints:
            raise UsageError(f"cannot remove the endpoint {path}: it does not exist")
        self.endpoints = {
            endpoint_path: handler for endpoint_path, handler in self.endpoints.items() if endpoint_path != path
        }

    def add_tool_search_endpoint(self, tool_search: ToolSearchHandler, path: str | None = None) -> None:
        """Serve a tool search view of this server at `path`, by default `/mcp/NAME`. Can be called while the server is
        running.
        """
        self.add_endpoint(path or f"/mcp/{tool_search.name}", tool_search)
        self.add_lifespan(tool_search.own_tools.lifespan)

    def add_middleware(self, middleware: Any) -> None:
        """Wrap every request that this server answers in a middleware; the last one added is the outermost."""
        self._middleware.append(self._to_handler_middleware(middleware))
        self._extend()

    def _to_handler_middleware(self, middleware: Any) -> HandlerMiddleware:
        """Return a function from Handler to Handler. Instances of `Middleware` also receive this server."""
        if getattr(type(middleware), "needs_server", False):
            return partial(middleware, server=self)
        return cast("HandlerMiddleware", middleware)

    def _link(self) -> None:
        self._chain = None
        if self._middleware:
            inner: Handler = self._handle_in_middleware
            chain = reduce(lambda handler, wrap: wrap(handler), self._middleware, inner)
            self._chain = self.service_registry.wrap_middleware(chain)

    # Running

    def add_lifespan(self, lifespan: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        """Register an async context manager to enter when the server starts and leave when it stops."""
        self.lifespans.add(lifespan, lifespan)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[Server]:
        """Run the lifespans of this server and its services for the duration of the context."""
        await self.lifespans.enter()
        try:
            yield self
        finally:
            if await self.lifespans.leave() and "used_states" in vars(self):
                await self.used_states.close()

    run = running.run
    run_async = running.run_async
    http_app = running.http_app

    def custom_route(
        self, path: str, methods: Iterable[str] = ("GET",), name: str | None = None, *, authenticated: bool = False
    ) -> Callable[[RouteFunction], RouteFunction]:
        """Register a function for another HTTP path: `@server.custom_route("/health", methods=["GET"])`.

        The function receives the request. It returns a string, a value to encode as JSON, or a Starlette response. The
        path is public unless it is `authenticated`: then it requires the credentials that the MCP endpoint requires.
        """
        return custom_routes.custom_route(self.custom_routes, path, methods, authenticated=authenticated)

    # Requests from this process

    async def list_tools(self) -> list[Any]:
        """Return the tools that a client would see."""
        return await self._list_all("tools/list", ListToolsResult, "tools")

    async def list_prompts(self) -> list[Any]:
        """Return the prompts that a client would see."""
        return await self._list_all("prompts/list", ListPromptsResult, "prompts")

    async def list_resources(self) -> list[Any]:
        """Return the resources that a client would see."""
        return await self._list_all("resources/list", ListResourcesResult, "resources")

    async def list_resource_templates(self) -> list[Any]:
        """Return the resource templates that a client would see."""
        return await self._list_all("resources/templates/list", ListResourceTemplatesResult, "resource_templates")

    async def get_tool(self, name: str) -> Any:
        """Return the tool of this name that a client would see, or None."""
        return next((tool for tool in await self.list_tools() if tool.name == name), None)

    async def call_tool(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        """Call a tool and return its result. Inside a call, access rules apply to the caller of that call."""
        return await self(_create_call("tools/call", {"name": name, "arguments": arguments or {}}))

    async def read_resource(self, uri: Any) -> Any:
        """Read a resource and return the result."""
        return await self(_create_call("resources/read", {"uri": str(uri)}))

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        """Return the messages of a prompt, rendered with arguments."""
        return await self(_create_call("prompts/get", {"name": name, "arguments": arguments or {}}))

    async def _list_all(self, method: str, kind: Any, member: str) -> list[Any]:
        return await context.fetch_all_pages(lambda params: self(_create_call(method, params)), kind, member)


def configure_log_level(level: str) -> None:
    """Set the level of Portico's own loggers."""
    levels = logging.getLevelNamesMapping()
    if level.upper() not in levels:
        raise UsageError(f"log_level must be debug, info, warning, error or critical, got {level!r}")
    logging.getLogger("portico").setLevel(levels[level.upper()])


def _create_call(method: str, params: dict[str, Any]) -> Call:
    """Return a request from this process, on behalf of the caller whose request is being answered, if any."""
    call = Call(method=method, params=Raw(jsonrpc.encode(params)), id=0, protocol_version=LATEST_PROTOCOL_VERSION)
    policy = get_loaded_module("portico.server.policy.interfaces")
    passage = None if policy is None else policy.current_request.get()
    # Security: a tool that calls another tool by name must not grant its client more than the client may do itself.
    outer = CurrentCall.call() if passage is None else passage.call
    if outer is None:
        return call
    caller = {"principal": outer.principal, "client": outer.client, "address": outer.address, "headers": outer.headers}
    return replace(call, **caller, facet=outer.facet)


def _find_by_function(fn: Any, components: Iterable[Any]) -> Any:
    """Return the component that a decorator already registered for this function, or None."""
    return next((component for component in components if getattr(component, "fn", None) is fn), None)


# Key of the lifespan passed to the constructor, among the lifespans of the services.
_OWN = "the server's own"
_ANONYMOUS_CALL = Call(method="tools/call", address="")
