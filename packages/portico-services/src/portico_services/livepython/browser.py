"""Looking at an image: its packages, classes, methods and objects, as tools, resources and prompts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from portico import Context, ToolResult, completion, prompt, resource, tool
from portico.extend import Completion, GetPromptResult, InternalError, PromptMessage, TextContent
from portico.jsonschema import schema
from portico_services.livepython import replies
from portico_services.livepython.replies import InvalidReply
from portico_services.livepython.sandbox.name_resolution import InspectionError
from portico_services.livepython.sandbox.syscalls import SandboxUnavailable
from portico_services.livepython.sandbox.worker import WorkerEnded
from portico_services.livepython.session_pool import MAIN
from portico_services.livepython.worker_client import (
    CHANGE,
    READ,
    Asking,
    ClassName,
    Expression,
    Name,
    OwnerName,
    SessionName,
    owner,
)
from portico_services.text import sections

# Completion is for a person who is typing.
TYPING_SECONDS = 2.0

NamePattern = Annotated[Name, "A part of the name, or a pattern with * and ?"]
AnyPattern = Annotated[Name | None, "A part of the name, or a pattern with * and ?; all of them without it"]
PROMPTS = Path(__file__).with_name("prompts.md")


class Browsing(Asking):
    """Questions about an image. None of them changes it, but for what an expression does that is looked at."""

    @tool(annotations=READ)
    async def system_info(self, ctx: Context) -> replies.SystemInfo:
        """Which Python this is, how it is kept, and what its limits are."""
        return await self._info(ctx)

    async def _info(self, ctx: Context | None = None) -> replies.SystemInfo:
        try:
            await self._interpreters.ready()
        except SandboxUnavailable as refusal:
            raise InternalError(str(refusal)) from None
        info: Any = {"mode": self.mode, "timeout": self.timeout, "longestTimeout": self.longest_timeout} | {
            **self._interpreters.info(),
            "sessions": len(self._interpreters.sessions(owner(ctx) if ctx is not None else None)),
        }
        found: replies.SystemInfo = info
        return found

    @tool(annotations=READ)
    async def list_packages(self, ctx: Context, pattern: AnyPattern = None) -> replies.Packages:
        """The packages that can be imported: what is installed, then what comes with Python."""
        return await self._read(ctx, replies.Packages, "list_packages", pattern=pattern)

    @tool(annotations=READ)
    async def list_classes(
        self,
        ctx: Context,
        package: Annotated[Name, "A package or module; __main__ for what was defined in the session"],
        session: SessionName = MAIN,
    ) -> replies.Classes:
        """The classes of a package and its modules."""
        return await self._read(ctx, replies.Classes, "list_classes", session, package=package)

    @tool(annotations=READ)
    async def class_details(
        self, ctx: Context, className: ClassName, session: SessionName = MAIN
    ) -> replies.ClassDetails:
        """A class: its superclass, fields, methods with their signatures, and documentation."""
        return await self._read(ctx, replies.ClassDetails, "class_details", session, className=className)

    @tool(version="1.2.0", annotations=READ, output_schema=schema(replies.MethodSource, output=True))
    async def method_source(
        self,
        ctx: Context,
        className: OwnerName,
        selector: Annotated[Name, "The name of the method or function"],
        session: SessionName = MAIN,
    ) -> ToolResult:
        """Return the source of a method, its own or an inherited one, or of a function of a module."""
        found = await self._read(
            ctx, replies.MethodSource, "method_source", session, className=className, selector=selector
        )
        return ToolResult(content=found.source, structured=found)

    @tool(annotations=READ)
    async def search_methods(
        self,
        ctx: Context,
        pattern: NamePattern,
        className: Annotated[Name | None, "Only in this class or module"] = None,
        includeSuper: Annotated[bool, "With what it inherits"] = False,
        session: SessionName = MAIN,
    ) -> replies.FoundMethods:
        """Find methods by name: in one class, or in every class that is loaded."""
        asked = {"pattern": pattern, "className": className, "includeSuper": includeSuper}
        return await self._read(ctx, replies.FoundMethods, "search_methods", session, **asked)

    @tool(annotations=CHANGE, version="1.1.0")
    async def inspect_object(
        self,
        ctx: Context,
        expression: Annotated[Expression, "An expression; its value is what is looked at"],
        session: SessionName = MAIN,
    ) -> replies.Inspected:
        """What an object is made of: its type, attributes, items, methods, properties, and what its class holds."""
        return await self._read(ctx, replies.Inspected, "inspect_object", session, expression=expression)

    @tool(annotations=READ)
    async def references_to(
        self,
        ctx: Context,
        name: Annotated[Name, "A name: of a variable, a function, a class, a method"],
        package: Annotated[Name | None, "Look in this package, too"] = None,
        session: SessionName = MAIN,
    ) -> replies.References:
        """Where a name is used: in what the session was given, and in a package."""
        return await self._read(ctx, replies.References, "references_to", session, name=name, package=package)

    # Resources

    @resource("python://system/version", name="System Version", mime_type="text/plain")
    async def version(self) -> str:
        """The version of Python"""
        return f"Python {(await self._info())['python']}"

    @resource("python://system/info", name="System Info", mime_type="application/json")
    async def system(self, ctx: Context) -> replies.SystemInfo:
        """Version, mode and limits"""
        return await self._info(ctx)

    @resource("python://system/summary", name="System Summary", mime_type="text/plain")
    async def summary(self, ctx: Context) -> str:
        """Version, mode and sessions in a sentence"""
        info = await self._info(ctx)
        return f"Python {info['python']}, {info['mode']}. Sessions: {info['sessions']} of {info['mostSessions']}."

    @resource("python://packages", name="Packages", mime_type="application/json")
    async def packages(self, ctx: Context) -> replies.Packages | None:
        """The packages that can be imported"""
        return await self._resource(ctx, replies.Packages, "list_packages")

    @resource("python://class/{className}", name="Class Details", mime_type="application/json")
    async def class_resource(self, ctx: Context, className: str) -> replies.ClassDetails | None:
        """A class: superclass, fields, methods"""
        return await self._resource(ctx, replies.ClassDetails, "class_details", className=className)

    @resource("python://method/{className}/{selector}", name="Method Source", mime_type="text/x-python")
    async def method_resource(self, ctx: Context, className: str, selector: str) -> str | None:
        """The source of a method"""
        found = await self._resource(ctx, replies.MethodSource, "method_source", className=className, selector=selector)
        return None if found is None else found.source

    @resource("python://package/{packageName}", name="Package", mime_type="application/json")
    async def package_resource(self, ctx: Context, packageName: str) -> replies.Classes | None:
        """The classes of a package"""
        return await self._resource(ctx, replies.Classes, "list_classes", package=packageName)

    # Prompts

    @prompt(name="review-class", inline=True)
    def review_class(
        self,
        className: Annotated[Name, "The class to review"],
        focus: Annotated[str, "What to look at above all"] = "",
    ) -> GetPromptResult:
        """Review a class"""
        return _prompt("review-class", className=className, focus=f" Focus on {focus}." if focus else "")

    @prompt(name="refactor-method", inline=True)
    def refactor_method(
        self,
        className: Annotated[Name, "The class it belongs to"],
        selector: Annotated[Name, "The method to refactor"],
    ) -> GetPromptResult:
        """Refactor a method"""
        return _prompt("refactor-method", className=className, selector=selector)

    @prompt(name="document-class", inline=True)
    def document_class(
        self,
        className: Annotated[Name, "The class to document"],
        style: Annotated[str, "A docstring style"] = "plain sentences",
    ) -> GetPromptResult:
        """Document a class"""
        return _prompt("document-class", className=className, style=style)

    @prompt(name="generate-tests", inline=True)
    def generate_tests(self, className: Annotated[Name, "The class to test"]) -> GetPromptResult:
        """Write tests for a class"""
        return _prompt("generate-tests", className=className)

    @prompt(name="system-overview", inline=True)
    def system_overview(self) -> GetPromptResult:
        """An overview of this Python"""
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
    async def complete_method(self, typed: str, given: Mapping[str, str]) -> Completion:
        return await self._complete("method", typed, className=given.get("className", ""))

    async def _complete(self, kind: str, typed: str, **more: str) -> Completion:
        """Nothing rather than an error, and nothing rather than waiting for what is running."""
        if any(one.busy for one in self._interpreters.sessions(None) if one.name == MAIN):
            return Completion([])
        try:
            answer = await self._interpreters.ask(
                (None, MAIN), "complete", {"kind": kind, "typed": typed, **more}, TYPING_SECONDS
            )
            if answer.refusal is not None:
                return Completion([])
            found = replies.read(answer.result, replies.Completions)
        except (InspectionError, SandboxUnavailable, WorkerEnded, InvalidReply):
            return Completion([])
        return Completion(found.values, found.total, found.total > len(found.values))


def _prompt(name: str, **given: str) -> GetPromptResult:
    """A prompt of `prompts.md`; the user and the assistant take turns in it."""
    description, *turns = (text.format(**given) for text in sections(PROMPTS)[name].strip().split("\n\n"))
    messages = [
        PromptMessage("assistant" if at % 2 else "user", TextContent(text=turn)) for at, turn in enumerate(turns)
    ]
    return GetPromptResult(description=description, messages=messages)
