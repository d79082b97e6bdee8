"""Introspection of a session: packages, classes, methods and objects as tools, resources and prompts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from portico import Context, Service, ToolResult, completion, prompt, resource, tool
from portico.errors import InternalError
from portico.jsonschema import schema_for_type
from portico.types import Completion, GetPromptResult, PromptMessage, TextContent
from portico_services.livepython import replies
from portico_services.livepython.replies import InvalidReply
from portico_services.livepython.sandbox.name_resolution import InspectionError
from portico_services.livepython.sandbox.syscalls import SandboxUnavailable
from portico_services.livepython.sandbox.worker import WorkerEnded
from portico_services.livepython.session_pool import DEFAULT_SESSION
from portico_services.livepython.worker_client import (
    READ_ONLY_HINTS,
    WRITE_HINTS,
    ClassName,
    Expression,
    NameParameter,
    OwnerName,
    SessionName,
    WorkerClient,
    session_owner,
)
from portico_services.text import load_markdown_sections

# Short, since a user is waiting while typing.
COMPLETION_TIMEOUT_SECONDS = 2.0

NamePattern = Annotated[NameParameter, "A part of the name, or a pattern with * and ?"]
OptionalPattern = Annotated[
    NameParameter | None, "A part of the name, or a pattern with * and ?; all of them without it"
]
PROMPTS_FILE = Path(__file__).with_name("prompts.md")


class BrowserTools(Service):
    """Tools to inspect packages, classes and objects. Only the expression of `inspect_object` can have side effects."""

    def __init__(self, client: WorkerClient) -> None:
        super().__init__()
        self._client = client

    @tool(annotations=READ_ONLY_HINTS)
    async def system_info(self, ctx: Context) -> replies.SystemInfo:
        """Return the Python version, sandbox mode and resource limits of evaluate."""
        return await self._info(ctx)

    async def _info(self, ctx: Context | None = None) -> replies.SystemInfo:
        try:
            # The Python version is known only after the first worker has started.
            await self._client.interpreters.ready()
        except SandboxUnavailable as refusal:
            raise InternalError(str(refusal)) from None
        client = self._client
        info: Any = {
            "mode": client.mode,
            "timeout": client.timeout,
            "longestTimeout": client.max_timeout,
            **client.interpreters.info(),
            "sessions": len(client.interpreters.sessions(None if ctx is None else session_owner(ctx))),
        }
        result: replies.SystemInfo = info
        return result

    @tool(annotations=READ_ONLY_HINTS)
    async def list_packages(self, ctx: Context, pattern: OptionalPattern = None) -> replies.PackageList:
        """List importable packages: installed ones first, then the standard library."""
        return await self._client.read(ctx, replies.PackageList, "list_packages", pattern=pattern)

    @tool(annotations=READ_ONLY_HINTS)
    async def list_classes(
        self,
        ctx: Context,
        package: Annotated[NameParameter, "Package or module; __main__ for classes defined in the session"],
        session: SessionName = DEFAULT_SESSION,
    ) -> replies.ClassList:
        """List the classes of a package or module."""
        return await self._client.read(ctx, replies.ClassList, "list_classes", session, package=package)

    @tool(annotations=READ_ONLY_HINTS)
    async def class_details(
        self, ctx: Context, className: ClassName, session: SessionName = DEFAULT_SESSION
    ) -> replies.ClassDetails:
        """Return a class's bases, fields, methods with signatures, and docstring. For one method's source use
        method_source.
        """
        return await self._client.read(ctx, replies.ClassDetails, "class_details", session, className=className)

    @tool(
        version="1.2.0",
        annotations=READ_ONLY_HINTS,
        output_schema=schema_for_type(replies.MethodSource, for_output=True),
    )
    async def method_source(
        self,
        ctx: Context,
        className: OwnerName,
        selector: Annotated[NameParameter, "Method or function name"],
        session: SessionName = DEFAULT_SESSION,
    ) -> ToolResult:
        """Return the source code of a method, defined in the class or inherited, or of a function of a module."""
        result = await self._client.read(
            ctx, replies.MethodSource, "method_source", session, className=className, selector=selector
        )
        return ToolResult(content=result.source, structured=result)

    @tool(annotations=READ_ONLY_HINTS)
    async def search_methods(
        self,
        ctx: Context,
        pattern: NamePattern,
        className: Annotated[NameParameter | None, "Class or module to search; default all loaded classes"] = None,
        includeSuper: Annotated[bool, "Include inherited methods; default false"] = False,
        session: SessionName = DEFAULT_SESSION,
    ) -> replies.MethodSearchResult:
        """Find methods by name in one class or in all loaded classes."""
        arguments = {"pattern": pattern, "className": className, "includeSuper": includeSuper}
        return await self._client.read(ctx, replies.MethodSearchResult, "search_methods", session, **arguments)

    @tool(annotations=WRITE_HINTS, version="1.1.0")
    async def inspect_object(
        self,
        ctx: Context,
        expression: Annotated[Expression, "Expression whose value is inspected"],
        session: SessionName = DEFAULT_SESSION,
    ) -> replies.ObjectInspection:
        """Describe the value of an expression: type, attributes, items, methods and properties. To run code use
        evaluate.
        """
        return await self._client.read(ctx, replies.ObjectInspection, "inspect_object", session, expression=expression)

    @tool(annotations=READ_ONLY_HINTS)
    async def references_to(
        self,
        ctx: Context,
        name: Annotated[NameParameter, "Variable, function, class or method name"],
        package: Annotated[NameParameter | None, "Package to search as well"] = None,
        session: SessionName = DEFAULT_SESSION,
    ) -> replies.ReferenceList:
        """Find where a name is used, in the session's code and optionally in a package."""
        return await self._client.read(ctx, replies.ReferenceList, "references_to", session, name=name, package=package)

    # Resources

    @resource("python://system/version", name="System Version", mime_type="text/plain")
    async def version(self) -> str:
        """Python version"""
        return f"Python {(await self._info())['python']}"

    @resource("python://system/info", name="System Info", mime_type="application/json")
    async def system(self, ctx: Context) -> replies.SystemInfo:
        """Python version, sandbox mode and resource limits as JSON"""
        return await self._info(ctx)

    @resource("python://system/summary", name="System Summary", mime_type="text/plain")
    async def summary(self, ctx: Context) -> str:
        """Python version, sandbox mode and sessions in one sentence"""
        info = await self._info(ctx)
        return f"Python {info['python']}, {info['mode']}. Sessions: {info['sessions']} of {info['mostSessions']}."

    @resource("python://packages", name="Packages", mime_type="application/json")
    async def packages(self, ctx: Context) -> replies.PackageList | None:
        """Importable packages"""
        return await self._client.resource(ctx, replies.PackageList, "list_packages")

    @resource("python://class/{className}", name="Class Details", mime_type="application/json")
    async def class_resource(self, ctx: Context, className: str) -> replies.ClassDetails | None:
        """One class: bases, fields, methods"""
        return await self._client.resource(ctx, replies.ClassDetails, "class_details", className=className)

    @resource("python://method/{className}/{selector}", name="Method Source", mime_type="text/x-python")
    async def method_resource(self, ctx: Context, className: str, selector: str) -> str | None:
        """Source code of one method"""
        result = await self._client.resource(
            ctx, replies.MethodSource, "method_source", className=className, selector=selector
        )
        return None if result is None else result.source

    @resource("python://package/{packageName}", name="Package", mime_type="application/json")
    async def package_resource(self, ctx: Context, packageName: str) -> replies.ClassList | None:
        """Classes of one package"""
        return await self._client.resource(ctx, replies.ClassList, "list_classes", package=packageName)

    # Prompts

    @prompt(name="review-class", run_in_thread=False)
    def review_class(
        self,
        className: Annotated[NameParameter, "The class to review"],
        focus: Annotated[str, "Aspect to focus on"] = "",
    ) -> GetPromptResult:
        """Review a class"""
        return _prompt("review-class", className=className, focus=f" Focus on {focus}." if focus else "")

    @prompt(name="refactor-method", run_in_thread=False)
    def refactor_method(
        self,
        className: Annotated[NameParameter, "Class of the method"],
        selector: Annotated[NameParameter, "Method to refactor"],
    ) -> GetPromptResult:
        """Refactor a method"""
        return _prompt("refactor-method", className=className, selector=selector)

    @prompt(name="document-class", run_in_thread=False)
    def document_class(
        self,
        className: Annotated[NameParameter, "Class to document"],
        style: Annotated[str, "Docstring style, e.g. google, numpy; default plain sentences"] = "plain sentences",
    ) -> GetPromptResult:
        """Write docstrings for a class"""
        return _prompt("document-class", className=className, style=style)

    @prompt(name="generate-tests", run_in_thread=False)
    def generate_tests(self, className: Annotated[NameParameter, "Class to test"]) -> GetPromptResult:
        """Write tests for a class"""
        return _prompt("generate-tests", className=className)

    @prompt(name="system-overview", run_in_thread=False)
    def system_overview(self) -> GetPromptResult:
        """Summarize this Python environment"""
        return _prompt("system-overview")

    # Completion

    @completion("review-class", "className")
    @completion("refactor-method", "className")
    @completion("document-class", "className")
    @completion("generate-tests", "className")
    @completion("python://class/{className}", "className")
    @completion("python://method/{className}/{selector}", "className")
    async def complete_class(self, typed: str) -> Completion:
        return await self._complete("class", typed)

    @completion("python://package/{packageName}", "packageName")
    async def complete_package(self, typed: str) -> Completion:
        return await self._complete("package", typed)

    @completion("refactor-method", "selector")
    @completion("python://method/{className}/{selector}", "selector")
    async def complete_method(self, typed: str, arguments: Mapping[str, str]) -> Completion:
        return await self._complete("method", typed, className=arguments.get("className", ""))

    async def _complete(self, kind: str, typed: str, **more: str) -> Completion:
        """Return completions from the session.

        Completion is best effort: the result is empty on an error or while the session is busy.
        """
        # A request would queue behind the running evaluation.
        if any(session.busy for session in self._client.interpreters.sessions(None) if session.name == DEFAULT_SESSION):
            return Completion([])
        try:
            answer = await self._client.interpreters.request(
                # Completion functions receive no context, so only the session of the local user is read.
                (None, DEFAULT_SESSION),
                "complete",
                {"kind": kind, "typed": typed, **more},
                COMPLETION_TIMEOUT_SECONDS,
            )
            if answer.refusal is not None:
                return Completion([])
            reply = replies.decode_reply(answer.result, replies.CompletionList)
        except (InspectionError, SandboxUnavailable, WorkerEnded, InvalidReply):
            return Completion([])
        return Completion(reply.values, reply.total, reply.total > len(reply.values))


def _prompt(name: str, **arguments: str) -> GetPromptResult:
    """Build a prompt from its section of `prompts.md`; the paragraphs alternate between user and assistant."""
    # The first paragraph is the description of the prompt; it is not a message.
    description, *turns = (
        text.format(**arguments) for text in load_markdown_sections(PROMPTS_FILE)[name].strip().split("\n\n")
    )
    messages = [
        PromptMessage("assistant" if at % 2 else "user", TextContent(text=turn)) for at, turn in enumerate(turns)
    ]
    return GetPromptResult(description=description, messages=messages)
