"""Live Python as a service: evaluating, looking, changing, and sessions that are kept."""

from __future__ import annotations

import os
import sys
from base64 import b64decode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from portico import Context, Image, ToolResult, UsageError, tool
from portico.extend import ERROR, Component, Tool, explained
from portico.jsonschema import schema
from portico_services.livepython import replies
from portico_services.livepython.browser import Browsing
from portico_services.livepython.replies import InvalidReply
from portico_services.livepython.sandbox.limits import LONGEST_REPLY, Limits
from portico_services.livepython.sandbox.name_resolution import InspectionError
from portico_services.livepython.sandbox.syscalls import SandboxUnavailable
from portico_services.livepython.sandbox.worker import WorkerEnded, WorkerReply
from portico_services.livepython.session_files import SavedSessions
from portico_services.livepython.session_pool import MAIN, SessionInfo, session_pool
from portico_services.livepython.session_tools import Keeping
from portico_services.livepython.worker_client import (
    CHANGE,
    DESTROY,
    READ,
    Expression,
    LiveError,
    SessionName,
    kept,
    owner,
)

# The tools in the order in which they are listed, and those that are only listed if all are wanted.
USUAL = (
    "evaluate",
    "system_info",
    "list_packages",
    "list_classes",
    "class_details",
    "method_source",
    "search_methods",
    "inspect_object",
    "references_to",
    "list_sessions",
    "reset_session",
)
CHANGING = ("define_method", "list_changes", "undo_change")
SAVING = (
    "save_session",
    "restore_session",
    "list_saved_sessions",
    "delete_saved_session",
)


class Live(Browsing, Keeping):
    """A Python that stays alive between calls: `server.add(Live())`.

    By default code runs in a jail of Linux's own, with the packages of `python`. `strict` runs it in WebAssembly
    instead, on any system and with the standard library alone; `unsafe` runs it with no jail at all, as the user
    who runs the server. `projects` are folders whose packages can be imported as they are now. `offered` says whether
    to list the usual tools or all of them, `saved` is the folder that sessions are saved in. Raises UsageError with the
    reason where the jail cannot be built.
    """

    name = "live"
    scoped = True
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
        projects: Sequence[str | os.PathLike[str]] = (),
        preload: Sequence[str] = (),
        saved: str | os.PathLike[str] | None = None,
        most_saved: int = 32,
        offered: Literal["usual", "all"] = "usual",
        remote: bool = False,
    ) -> None:
        if offered not in ("usual", "all"):
            raise UsageError(f"{offered!r} is none of usual, all")
        limits = Limits(memory=memory, cpu=cpu, threads=threads, scratch=scratch, output=output)
        try:
            interpreters = session_pool(
                os.fspath(python or sys.executable),
                limits,
                strict=strict,
                unsafe=unsafe,
                readable=[os.fspath(path) for path in readable],
                projects=[_folder(path) for path in projects],
                preload=preload,
                most=sessions,
                spare=spare,
                idle=idle,
            )
        except SandboxUnavailable as reason:
            raise UsageError(str(reason)) from None
        mode = "strict: in WebAssembly" if strict else "UNSAFE: in no jail" if unsafe else "in a jail"
        self._start(mode, interpreters, timeout, longest_timeout, remote=remote)
        self._offered_tools = offered
        self._saved = None if saved is None else SavedSessions(Path(saved), most=most_saved)

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
        key = (owner(ctx), session)
        try:
            answer = await self._interpreters.ask(key, "evaluate", {"expression": expression}, seconds)
        except (InspectionError, SandboxUnavailable) as refusal:
            raise LiveError(str(refusal)) from None
        except WorkerEnded as end:
            return _failed(end.answer, self._ended(ctx, session, end), late=end.late)
        if answer.interrupted:
            where = "".join(f"\n{line}" for line in (answer.refusal or "").splitlines()[1:])
            return _failed(answer, kept(session, seconds) + where, late=True)
        if answer.refusal is not None:
            return _failed(answer, answer.refusal)
        try:
            found = replies.read(answer.result, replies.Evaluated, LONGEST_REPLY)
            if answer.begun_anew:
                self._forgotten(ctx, session)
            self._changed(ctx, session, found.changed_classes)
            return _shown(answer, found, session)
        except InvalidReply:
            raise self._end_session(ctx, session) from None

    @tool(annotations=READ)
    async def list_sessions(self, ctx: Context) -> list[SessionInfo]:
        """The sessions that are alive."""
        return self._interpreters.sessions(owner(ctx))

    @tool(version="1.1.0", annotations=DESTROY, output_schema=schema(replies.SessionReset, output=True))
    async def reset_session(self, ctx: Context, session: SessionName = MAIN) -> ToolResult:
        """End a session and whatever it is doing. Its names and files are gone; the next call begins anew."""
        done = self._interpreters.reset((owner(ctx), session))
        self._forgotten(ctx, session)
        said = f"The session {session!r} was reset."
        if not done:
            said = f"There was no session {session!r}; the next call begins one."
        return ToolResult(content=said, structured=replies.SessionReset(session, done))

    def offers(self) -> Iterator[Component]:
        found = list(super().offers())
        tools = {one.name: one for one in found if isinstance(one, Tool)}
        yield from (tools[name] for name in self._listed() if name in tools)
        yield from (one for one in found if not isinstance(one, Tool))

    def _listed(self) -> Sequence[str]:
        """The names of the tools, in order."""
        if self._offered_tools == "usual":
            return USUAL
        return (*USUAL, *CHANGING, *(SAVING if self._saved is not None else ()))


def _folder(path: str | os.PathLike[str]) -> str:
    """The folder of a project, whatever it is called from here. Raises UsageError if there is none."""
    if not os.path.isdir(path):
        raise UsageError(f"{os.fspath(path)!r}: there is no such folder")
    return os.path.realpath(path)


def _printed(answer: WorkerReply) -> list[str]:
    """What comes before the value: a word about the session, and what was printed."""
    note = [] if answer.note is None else [answer.note]
    if answer.dropped:
        return [*note, f"{answer.output}\n[… {answer.dropped:,} more bytes]"]
    return [*note, answer.output] if answer.output else note


def _failed(answer: WorkerReply, why: str, *, late: bool = False) -> ToolResult:
    meta = {ERROR: LiveError("", kind="TimeoutError").described()} if late else None
    return ToolResult(content=[*_printed(answer), f"Error: {why}"], is_error=True, meta=meta)


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
