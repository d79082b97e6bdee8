"""Live Python as tools, resources and prompts."""

from __future__ import annotations

import os
import sys
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from portico import Context, Image, Service, ToolError, ToolResult, UsageError, completion, prompt, resource, tool
from portico.extend import GetPromptResult, InternalError, PromptMessage, TextContent, explained
from portico.schema import schema
from portico.services.live import replies
from portico.services.live.kernel import SandboxUnavailable
from portico.services.live.limits import LONGEST_REPLY, Limits
from portico.services.live.names import InspectionError
from portico.services.live.pool import MAIN, Interpreters, SessionInfo, session_pool
from portico.services.live.replies import InvalidReply
from portico.services.live.workers import WorkerEnded, WorkerReply
from portico.services.texts import sections

T = TypeVar("T")

# Completion is for a person who is typing.
TYPING_SECONDS = 2.0
LONGEST_EXPRESSION = 256 * 1024
# Also of a method with its class and its module.
LONGEST_NAME = 1000

Name = Annotated[str, Meta(max_length=LONGEST_NAME)]
NamePattern = Annotated[Name, "A part of the name, or a pattern with * and ?"]
AnyPattern = Annotated[Name | None, "A part of the name, or a pattern with * and ?; all of them without it"]
SessionName = Annotated[Name, "Whose names to use: each session has its own"]
ClassName = Annotated[Name, "A class: its name, or with its module, as in json.decoder.JSONDecoder"]
Expression = Annotated[str, Meta(max_length=LONGEST_EXPRESSION)]

PROMPTS = Path(__file__).with_name("prompts.md")

READ = {"readOnlyHint": True, "openWorldHint": False}
CHANGE = {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False}


class LiveError(ToolError):
    """A call that live Python did not answer: it was refused, took too long, or lost its session."""

    kind = "ToolExecutionError"

    def __init__(self, reason: str, *, kind: str | None = None) -> None:
        super().__init__(f"Error: {reason}", kind=kind)
        self.reason = reason


class Rejected(LiveError):
    """The session is well, and its code said no: there is no such class, or an expression raised an exception."""


class Live(Service):
    """A Python that stays alive between calls: `server.add(Live())`.

    By default code runs in a jail of Linux's own, with the packages of `python`. `strict` runs it in WebAssembly
    instead, on any system and with the standard library alone; `unsafe` runs it with no jail at all, as the user
    who runs the server. Raises UsageError with the reason where the jail cannot be built.
    """

    name = "live"
    schemes = {"pharo": "python"}

    @explained
    def __init__(
        self,
        *,
        strict: bool = False,
        unsafe: bool = False,
        python: str | os.PathLike[str] | None = None,
        timeout: float = 10.0,
        longest_timeout: float = 60.0,
        memory: int = Limits.memory,
        cpu: int = Limits.cpu,
        threads: int = Limits.threads,
        scratch: int = Limits.scratch,
        output: int = Limits.output,
        sessions: int = 16,
        spare: int = 1,
        idle: float = 1800.0,
        readable: Sequence[str | os.PathLike[str]] = (),
        preload: Sequence[str] = (),
        remote: bool = False,
    ) -> None:
        limits = Limits(memory=memory, cpu=cpu, threads=threads, scratch=scratch, output=output)
        try:
            interpreters = session_pool(
                os.fspath(python or sys.executable),
                limits,
                strict=strict,
                unsafe=unsafe,
                readable=[os.fspath(path) for path in readable],
                preload=preload,
                most=sessions,
                spare=spare,
                idle=idle,
            )
        except SandboxUnavailable as reason:
            raise UsageError(str(reason)) from None
        mode = "strict: in WebAssembly" if strict else "UNSAFE: in no jail" if unsafe else "in a jail"
        self._start(mode, interpreters, timeout, longest_timeout, remote=remote)

    def _start(
        self, mode: str, interpreters: Interpreters, timeout: float, longest: float, *, remote: bool = False
    ) -> None:
        super().__init__()
        self.mode = mode
        self._interpreters = interpreters
        self.timeout, self.longest_timeout = timeout, longest
        # Only clients on this machine, unless others are meant: the listener checks this before it binds an address.
        self.local_only = not remote

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        try:
            await self._interpreters.open()
        except SandboxUnavailable as reason:
            await self._interpreters.close()
            raise UsageError(f"live Python cannot start: {reason}") from None
        try:
            yield
        finally:
            await self._interpreters.close()

    # Asking

    async def _ask(self, ctx: Context, op: str, session: str = MAIN, **asked: Any) -> WorkerReply:
        """The worker's reply. Raises LiveError, whatever went wrong."""
        try:
            answer = await self._interpreters.ask((_owner(ctx), session), op, asked, self.timeout)
        except (InspectionError, SandboxUnavailable) as refusal:
            raise LiveError(str(refusal)) from None
        except WorkerEnded as end:
            raise LiveError(_lost(session, end.reason)) from None
        if answer.interrupted:
            raise LiveError(_kept(session, self.timeout), kind="TimeoutError")
        if answer.refusal is not None:
            raise Rejected(answer.refusal)
        return answer

    async def _read(self, ctx: Context, kind: type[T], op: str, session: str = MAIN, **asked: Any) -> T:
        answer = await self._ask(ctx, op, session, **asked)
        try:
            return replies.read(answer.result, kind)
        except InvalidReply:
            raise self._end_session(ctx, session) from None

    def _end_session(self, ctx: Context, session: str) -> LiveError:
        """Code can write in its worker's name. It gains nothing by it, and loses its session."""
        self._interpreters.reset((_owner(ctx), session))
        return LiveError(_lost(session, "it answered with nonsense"))

    async def _resource(self, ctx: Context, kind: type[T], op: str, **asked: Any) -> T | None:
        """The contents of a resource; None if there is no such object."""
        try:
            return await self._read(ctx, kind, op, **asked)
        except Rejected:
            return None
        except LiveError as failure:
            raise InternalError(failure.reason) from None

    # Tools

    @tool(version="1.1.0", annotations=CHANGE, output_schema=schema(replies.Evaluation, output=True))
    async def evaluate(
        self,
        ctx: Context,
        expression: Annotated[Expression, "Python: expressions and statements, `await` included"],
        session: SessionName = MAIN,
        timeout: Annotated[float | None, Meta(gt=0, description="Seconds until it is stopped")] = None,
    ) -> ToolResult:
        """Run Python and give the value of the last expression, with what was printed.

        Names stay in the session from call to call. There is no network and no other process; files can be written in
        the current directory. Figures and tables are shown.
        """
        seconds = timeout or self.timeout
        if seconds > self.longest_timeout:
            raise LiveError(f"a timeout is at most {self.longest_timeout:g} s here.", kind="ValidationError")
        key = (_owner(ctx), session)
        try:
            answer = await self._interpreters.ask(key, "evaluate", {"expression": expression}, seconds)
        except (InspectionError, SandboxUnavailable) as refusal:
            raise LiveError(str(refusal)) from None
        except WorkerEnded as end:
            return _failed(end.answer, _lost(session, end.reason))
        if answer.interrupted:
            where = "".join(f"\n{line}" for line in (answer.refusal or "").splitlines()[1:])
            return _failed(answer, _kept(session, seconds) + where)
        if answer.refusal is not None:
            return _failed(answer, answer.refusal)
        try:
            return _shown(answer, replies.read(answer.result, replies.Evaluated, LONGEST_REPLY), session)
        except InvalidReply:
            raise self._end_session(ctx, session) from None

    @tool(annotations=READ)
    async def system_info(self, ctx: Context) -> dict[str, Any]:
        """Which Python this is, how it is kept, and what its limits are."""
        return await self._info(ctx)

    async def _info(self, ctx: Context | None = None) -> dict[str, Any]:
        try:
            await self._interpreters.ready()
        except SandboxUnavailable as refusal:
            raise InternalError(str(refusal)) from None
        return {"mode": self.mode, "timeout": self.timeout, "longestTimeout": self.longest_timeout} | {
            **self._interpreters.info(),
            "sessions": len(self._interpreters.sessions(_owner(ctx) if ctx is not None else None)),
        }

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

    @tool(version="1.1.0", annotations=READ, output_schema=schema(replies.MethodSource, output=True))
    async def method_source(
        self,
        ctx: Context,
        className: ClassName,
        selector: Annotated[Name, "The name of the method"],
        session: SessionName = MAIN,
    ) -> ToolResult:
        """The source of a method, its own or an inherited one."""
        found = await self._read(
            ctx, replies.MethodSource, "method_source", session, className=className, selector=selector
        )
        return ToolResult(content=found.source, structured=found)

    @tool(annotations=READ)
    async def search_methods(
        self,
        ctx: Context,
        pattern: NamePattern,
        className: Annotated[Name | None, "Only in this class"] = None,
        includeSuper: Annotated[bool, "With what it inherits"] = False,
        session: SessionName = MAIN,
    ) -> replies.FoundMethods:
        """Find methods by name: in one class, or in every class that is loaded."""
        asked = {"pattern": pattern, "className": className, "includeSuper": includeSuper}
        return await self._read(ctx, replies.FoundMethods, "search_methods", session, **asked)

    @tool(annotations=CHANGE)
    async def inspect_object(
        self,
        ctx: Context,
        expression: Annotated[Expression, "An expression; its value is what is looked at"],
        session: SessionName = MAIN,
    ) -> replies.Inspected:
        """What an object is made of: its type, attributes, items and methods."""
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

    @tool(annotations=READ)
    async def list_sessions(self, ctx: Context) -> list[SessionInfo]:
        """The sessions that are alive."""
        return self._interpreters.sessions(_owner(ctx))

    @tool(
        version="1.1.0",
        annotations={**CHANGE, "destructiveHint": True, "idempotentHint": True},
        output_schema=schema(replies.SessionReset, output=True),
    )
    async def reset_session(self, ctx: Context, session: SessionName = MAIN) -> ToolResult:
        """End a session and whatever it is doing. Its names and files are gone; the next call begins anew."""
        done = self._interpreters.reset((_owner(ctx), session))
        said = f"The session {session!r} was reset."
        if not done:
            said = f"There was no session {session!r}; the next call begins one."
        return ToolResult(content=said, structured=replies.SessionReset(session, done))

    # Resources

    @resource("python://system/version", name="System Version", mime_type="text/plain")
    async def version(self) -> str:
        """The version of Python"""
        return f"Python {(await self._info())['python']}"

    @resource("python://system/info", name="System Info", mime_type="application/json")
    async def system(self, ctx: Context) -> dict[str, Any]:
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
    async def complete_class(self, typed: str) -> list[str]:
        return await self._complete("class", typed)

    @completion("python://package/{packageName}", "packageName")
    async def complete_package(self, typed: str) -> list[str]:
        return await self._complete("package", typed)

    @completion("refactor-method", "selector")
    @completion("python://method/{className}/{selector}", "selector")
    async def complete_method(self, typed: str, given: Mapping[str, str]) -> list[str]:
        return await self._complete("method", typed, className=given.get("className", ""))

    async def _complete(self, kind: str, typed: str, **more: str) -> list[str]:
        """Nothing rather than an error, and nothing rather than waiting for what is running."""
        if any(one.busy for one in self._interpreters.sessions(None) if one.name == MAIN):
            return []
        try:
            answer = await self._interpreters.ask(
                (None, MAIN), "complete", {"kind": kind, "typed": typed, **more}, TYPING_SECONDS
            )
            if answer.refusal is not None:
                return []
            return replies.read(answer.result, replies.Completions).values
        except (InspectionError, SandboxUnavailable, WorkerEnded, InvalidReply):
            return []


def _owner(ctx: Context) -> str | None:
    """Whose sessions these are: of everybody on stdio, or of one principal."""
    return None if ctx.principal is None else str(ctx.principal.id)


def _lost(name: str, reason: str) -> str:
    return f"The session {name!r} was ended, because {reason}. It begins anew, without its names, with the next call."


def _kept(name: str, seconds: float) -> str:
    return f"It did not finish within {seconds:g} s and was stopped. The names of the session {name!r} are kept."


def _prompt(name: str, **given: str) -> GetPromptResult:
    """A prompt of `prompts.md`; the user and the assistant take turns in it."""
    description, *turns = (text.format(**given) for text in sections(PROMPTS)[name].strip().split("\n\n"))
    messages = [
        PromptMessage("assistant" if at % 2 else "user", TextContent(text=turn)) for at, turn in enumerate(turns)
    ]
    return GetPromptResult(description=description, messages=messages)


def _printed(answer: WorkerReply) -> list[str]:
    """What comes before the value: a word about the session, and what was printed."""
    note = [] if answer.note is None else [answer.note]
    if answer.dropped:
        return [*note, f"{answer.output}\n[… {answer.dropped:,} more bytes]"]
    return [*note, answer.output] if answer.output else note


def _failed(answer: WorkerReply, why: str) -> ToolResult:
    return ToolResult(content=[*_printed(answer), f"Error: {why}"], is_error=True)


def _shown(answer: WorkerReply, found: replies.Evaluated, session: str) -> ToolResult:
    blocks: list[Any] = list(_printed(answer))
    pictures = [picture for picture in map(_picture, found.drawn()) if picture is not None]
    # As at a prompt: nothing is not worth a word, unless there is no other.
    if found.text is not None and (found.text != "None" or not (blocks or pictures)):
        blocks.append(found.text)
    elif not blocks and not pictures:
        blocks.append("(no value)")
    structured = {"session": session, "type": found.type, "output": answer.output or None, "value": found.decoded()}
    told = {name: one for name, one in structured.items() if one is not None}
    return ToolResult(content=[*blocks, *pictures], structured=told)


def _picture(picture: replies.Picture) -> Image | None:
    if picture.mime_type not in ("image/png", "image/jpeg"):
        return None
    try:
        return Image(data=b64decode(picture.data, validate=True), mime_type=picture.mime_type)
    except ValueError:
        return None
