"""The live Python service: evaluation, introspection, method patches and saved sessions."""

from __future__ import annotations

import os
import sys
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from portico import Context, Image, Server, Service, Tool, ToolResult, UsageError, tool
from portico.extend import ERROR_META_KEY, Component, validated_kwargs
from portico.jsonschema import schema_for_type
from portico_services.livepython import replies
from portico_services.livepython.browser import BrowserTools
from portico_services.livepython.replies import InvalidReply
from portico_services.livepython.sandbox.limits import MAX_REPLY_BYTES, SandboxLimits
from portico_services.livepython.sandbox.name_resolution import InspectionError
from portico_services.livepython.sandbox.syscalls import SandboxUnavailable
from portico_services.livepython.sandbox.worker import WorkerEnded, WorkerReply
from portico_services.livepython.session_files import SessionFileStore
from portico_services.livepython.session_pool import (
    DEFAULT_SESSION,
    SANDBOX_KINDS,
    InterpreterPool,
    SandboxKind,
    SessionInfo,
    create_session_pool,
)
from portico_services.livepython.session_tools import SessionTools
from portico_services.livepython.worker_client import (
    DESTRUCTIVE_HINTS,
    READ_ONLY_HINTS,
    WRITE_HINTS,
    Expression,
    LivePythonError,
    SessionName,
    WorkerClient,
    session_owner,
    session_saved_message,
)

# Tools in listing order. The patch and saved-session tools are listed only with `tools="all"`.
DEFAULT_TOOLS = (
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
METHOD_PATCH_TOOLS = ("define_method", "list_changes", "undo_change")
SAVED_SESSION_TOOLS = (
    "save_session",
    "restore_session",
    "list_saved_sessions",
    "delete_saved_session",
)


class LivePython(Service):
    """Python sessions that keep their state between calls: `server.add(LivePython())`.

    * `sandbox`: `"linux"` isolates code with Landlock and seccomp and lets it import the packages of the interpreter
      `python`; `"wasm"` runs it in WebAssembly, on any system and with the standard library only; `"none"` runs it
      without isolation, as the user who runs the server.
    * `python`: Python interpreter of the workers, 3.11 or newer, with its packages; by default that of the server.
    * `timeout`: time for one evaluation.
    * `max_timeout`: longest time that a call may request.
    * `memory_bytes`: address space of one worker.
    * `cpu_seconds`: CPU time over the lifetime of a session.
    * `max_threads`: threads that code may start; not enforced for root, which the kernel exempts.
    * `scratch_bytes`: size of the scratch directory, which may have 10,000 files of at most 64 MiB, 128 of
      them open.
    * `max_output_bytes`: output that is returned; 16 MiB more end the session.
    * `max_sessions`: concurrent sessions, at most half of them for one authenticated principal. At the limit, a new
      session replaces the one that has been idle longest, if that was idle for `idle_timeout` or its principal has at
      least two sessions more.
    * `warm_workers`: workers started in advance for new sessions.
    * `idle_timeout`: time after which a session without calls may be replaced.
    * `readable_paths`: additional paths that code may read.
    * `project_dirs`: directories whose packages can be imported in their current state.
    * `preload`: modules that are imported once for all workers, outside the sandbox.
    * `saved_sessions_dir`: directory for saved sessions; without it, sessions cannot be saved.
    * `max_saved_sessions`: saved sessions of one principal.
    * `tools`: `"default"` lists the usual tools, `"all"` also the tools that patch methods and save sessions.
    * `allow_remote`: serve clients on other machines, too.

    Raises UsageError, with the reason, if the sandbox is not available.
    """

    name = "live"
    requires_scopes = True
    scheme_aliases = {"pharo": "python"}
    _saved: SessionFileStore | None = None

    @validated_kwargs
    def __init__(
        self,
        *,
        sandbox: SandboxKind = "linux",
        python: str | os.PathLike[str] | None = None,
        timeout: float = 10.0,
        max_timeout: float = 60.0,
        memory_bytes: int = SandboxLimits.memory_bytes,
        cpu_seconds: int = SandboxLimits.cpu_seconds,
        max_threads: int = SandboxLimits.max_threads,
        scratch_bytes: int = SandboxLimits.scratch_bytes,
        max_output_bytes: int = SandboxLimits.max_output_bytes,
        max_sessions: int = 16,
        warm_workers: int = 1,
        idle_timeout: float = 1800.0,
        readable_paths: Sequence[str | os.PathLike[str]] = (),
        project_dirs: Sequence[str | os.PathLike[str]] = (),
        preload: Sequence[str] = (),
        saved_sessions_dir: str | os.PathLike[str] | None = None,
        max_saved_sessions: int = 32,
        tools: Literal["default", "all"] = "default",
        allow_remote: bool = False,
    ) -> None:
        if tools not in ("default", "all"):
            raise UsageError(f"tools must be 'default' or 'all', got {tools!r}")
        if sandbox not in SANDBOX_KINDS:
            raise UsageError(f"sandbox must be one of {', '.join(SANDBOX_KINDS)}, got {sandbox!r}")
        limits = SandboxLimits(
            memory_bytes=memory_bytes,
            cpu_seconds=cpu_seconds,
            max_threads=max_threads,
            scratch_bytes=scratch_bytes,
            max_output_bytes=max_output_bytes,
        )
        try:
            interpreters = create_session_pool(
                os.fspath(python or sys.executable),
                limits,
                sandbox=sandbox,
                readable_paths=[os.fspath(path) for path in readable_paths],
                project_dirs=[_project_dir(path) for path in project_dirs],
                preload=preload,
                max_sessions=max_sessions,
                warm_workers=warm_workers,
                idle_timeout=idle_timeout,
            )
        except SandboxUnavailable as reason:
            raise UsageError(str(reason)) from None
        # The tools of a session are prepared in any case; `components` selects the listed ones.
        self._listed_tools = tools
        self._saved = (
            None
            if saved_sessions_dir is None
            else SessionFileStore(Path(saved_sessions_dir), max_sessions=max_saved_sessions)
        )
        self._start(SANDBOX_KINDS[sandbox], interpreters, timeout, max_timeout)
        # Loopback clients only, unless `allow_remote` is set: the listener checks this before it binds an address.
        self.local_only = not allow_remote

    def _start(self, mode: str, interpreters: InterpreterPool, timeout: float, max_timeout: float) -> None:
        super().__init__()
        self.local_only = True
        self._client = WorkerClient(
            mode, interpreters, timeout, max_timeout, {*self.scheme_aliases, *self.scheme_aliases.values()}
        )
        self._browser = BrowserTools(self._client)
        self._session_tools = SessionTools(self._client, self._saved)

    @property
    def mode(self) -> str:
        """Return a description of how code is isolated from the server."""
        return self._client.mode

    def lifespan(self) -> AbstractAsyncContextManager[None]:
        return self._client.run()

    def on_added(self, server: Server) -> None:
        self._client.servers.add(server)

    @tool(
        version="1.1.0",
        annotations=WRITE_HINTS,
        output_schema=schema_for_type(replies.EvaluationResult, for_output=True),
    )
    async def evaluate(
        self,
        ctx: Context,
        expression: Annotated[Expression, "Python statements and expressions; top-level await works"],
        session: SessionName = DEFAULT_SESSION,
        timeout: Annotated[float | None, Meta(gt=0, description="Time limit in seconds")] = None,
    ) -> ToolResult:
        """Run Python code in a session and return the value of the last expression, printed output, tables and figures.

        Variables persist between calls. No network and no subprocesses; files can be written in the current directory.
        """
        seconds = timeout or self._client.timeout
        if seconds > self._client.max_timeout:
            raise LivePythonError(
                f"timeout must be at most {self._client.max_timeout:g} seconds, got {seconds:g}.",
                kind="ValidationError",
            )
        key = (session_owner(ctx), session)
        try:
            answer = await self._client.interpreters.request(key, "evaluate", {"expression": expression}, seconds)
        except (InspectionError, SandboxUnavailable) as refusal:
            raise LivePythonError(str(refusal)) from None
        except WorkerEnded as end:
            return _error_result(end.answer, self._client.describe_end(ctx, session, end), late=end.timed_out)
        if answer.interrupted:
            # The first line of the traceback is the KeyboardInterrupt of the server; the lines after it show where
            # the code was.
            where = "".join(f"\n{line}" for line in (answer.refusal or "").splitlines()[1:])
            return _error_result(answer, session_saved_message(session, seconds) + where, late=True)
        if answer.refusal is not None:
            return _error_result(answer, answer.refusal)
        try:
            reply = replies.decode_reply(answer.result, replies.WorkerEvaluation, MAX_REPLY_BYTES)
            # Notify subscribers of the lost classes first, then of the new ones.
            if answer.begun_anew:
                self._client.notify_forgotten(ctx, session)
            self._client.notify_changed(ctx, session, reply.changed_classes)
            return _evaluation_result(answer, reply, session)
        except InvalidReply:
            # Code in the sandbox may have forged the reply, so the session is not trusted any longer.
            raise self._client.end_session(ctx, session) from None

    @tool(annotations=READ_ONLY_HINTS)
    async def list_sessions(self, ctx: Context) -> list[SessionInfo]:
        """List the live sessions."""
        return self._client.interpreters.sessions(session_owner(ctx))

    @tool(
        version="1.1.0",
        annotations=DESTRUCTIVE_HINTS,
        output_schema=schema_for_type(replies.ResetSessionResult, for_output=True),
    )
    async def reset_session(self, ctx: Context, session: SessionName = DEFAULT_SESSION) -> ToolResult:
        """End a session, with any running code. Its names and files are lost; the next call starts a new session."""
        done = self._client.interpreters.reset((session_owner(ctx), session))
        self._client.notify_forgotten(ctx, session)
        message = f"The session {session!r} was reset."
        if not done:
            message = f"Session {session!r} did not exist; the next call creates it."
        return ToolResult(content=message, structured=replies.ResetSessionResult(session, done))

    def components(self) -> Iterator[Component]:
        results = [*super().components(), *self._browser.components(), *self._session_tools.components()]
        # In the order of the tuples above, and not in that of the definitions, which are spread over three classes.
        tools = {item.name: item for item in results if isinstance(item, Tool)}
        yield from (tools[name] for name in self._tool_names() if name in tools)
        yield from (item for item in results if not isinstance(item, Tool))

    def _tool_names(self) -> Sequence[str]:
        """Return the names of the listed tools, in order."""
        if self._listed_tools == "default":
            return DEFAULT_TOOLS
        return (*DEFAULT_TOOLS, *METHOD_PATCH_TOOLS, *(SAVED_SESSION_TOOLS if self._saved is not None else ()))


def _project_dir(path: str | os.PathLike[str]) -> str:
    """Return the real path of a project directory. Raises UsageError if it does not exist."""
    if not os.path.isdir(path):
        raise UsageError(f"project_dirs: {os.fspath(path)!r} is not a directory")
    # Landlock rules apply to the resolved directory, so a symbolic link is followed once, here.
    return os.path.realpath(path)


def _format_output(answer: WorkerReply) -> list[str]:
    """Return the text blocks that precede the value: a note about the session and the printed output."""
    note = [] if answer.note is None else [answer.note]
    if answer.dropped:
        return [*note, f"{answer.output}\n[… {answer.dropped:,} more bytes]"]
    return [*note, answer.output] if answer.output else note


def _error_result(answer: WorkerReply, why: str, *, late: bool = False) -> ToolResult:
    meta = {ERROR_META_KEY: LivePythonError("", kind="TimeoutError").to_meta()} if late else None
    return ToolResult(content=[*_format_output(answer), f"Error: {why}"], is_error=True, meta=meta)


def _evaluation_result(answer: WorkerReply, evaluation: replies.WorkerEvaluation, session: str) -> ToolResult:
    blocks: list[Any] = list(_format_output(answer))
    pictures = [picture for picture in map(_image_content, evaluation.images()) if picture is not None]
    # As in the REPL, None is not displayed unless it is the only output.
    if evaluation.text is not None and (evaluation.text != "None" or not (blocks or pictures)):
        blocks.append(evaluation.text)
    elif not blocks and not pictures:
        blocks.append("(no value)")
    structured = {
        "session": session,
        "type": evaluation.type,
        "output": answer.output or None,
        "value": evaluation.decode_value(),
    }
    # Absent and null mean the same in the result, and absent costs no tokens.
    fields = {name: value for name, value in structured.items() if value is not None}
    return ToolResult(content=[*blocks, *pictures], structured=fields)


def _image_content(picture: replies.RenderedImage) -> Image | None:
    # The type comes from the sandbox: SVG, for example, could carry scripts into a client that displays it.
    if picture.mime_type not in ("image/png", "image/jpeg"):
        return None
    try:
        return Image(data=b64decode(picture.data, validate=True), mime_type=picture.mime_type)
    except ValueError:
        return None
