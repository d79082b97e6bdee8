"""Saved calls: stored in a file, and exported as shell commands, tests or code."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import time
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from portico.protocol.errors import ToolError
from portico.protocol.header_params import encode_header_value as mirrored
from portico.protocol.versions import FIRST_MODERN_VERSION
from portico.server.components.results import ToolResult
from portico.server.registry.service import Service, tool
from portico_console.targets import ConsoleTarget, TargetRegistry
from portico_console.tool_responses import structured_response

MAX_SAVED_CALLS = 1000
MAX_SAVED_CALL_BYTES = 256 * 1024

SavedMethod = Literal["tools/call", "resources/read", "prompts/get"]
CopyFormat = Literal["curl", "portico", "pytest", "python", "json"]


class SavedCallInput(Struct, kw_only=True):
    title: str
    target: str
    method: SavedMethod
    name: str
    arguments: dict[str, Any] = {}


class SavedCall(SavedCallInput, kw_only=True):
    id: str
    at: float


class SavedCallsService(Service):
    """The saved calls of this user. Without a file they are lost when the console ends."""

    name = "saved"

    def __init__(self, targets: TargetRegistry, file: Path | None = None) -> None:
        super().__init__()
        self._targets = targets
        self._file = file
        self._saved: list[SavedCall] | None = None if file is not None else []

    def _read(self) -> list[SavedCall]:
        if self._saved is None:
            assert self._file is not None
            try:
                self._saved = msgspec.json.decode(self._file.read_bytes(), type=list[SavedCall])
            except FileNotFoundError:
                self._saved = []
            except (OSError, msgspec.DecodeError) as wrong:
                # A file of a newer version or with a typing mistake may still be repaired by its user; saving over it
                # would destroy it.
                raise ToolError(f"cannot read {self._file.name}, so it is not overwritten: {wrong}") from None
        return self._saved

    def _write(self, saved: list[SavedCall]) -> None:
        self._saved = saved
        if self._file is None:
            return
        # Write a new file and replace the old one, so that a crash leaves one or the other. Mode 0600: arguments of
        # saved calls may be confidential.
        fresh = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(saved))
            os.replace(fresh, self._file)
        except OSError as wrong:
            raise ToolError(
                f"saved only until the console ends, because the file cannot be written: {wrong.strerror}"
            ) from None

    @tool(annotations={"readOnlyHint": True})
    async def list_saved(self) -> ToolResult:
        """List the saved calls."""
        return structured_response({"saved": self._read()})

    @tool
    async def save_call(self, call: SavedCallInput) -> ToolResult:
        """Save a call for later use."""
        saved = self._read()
        if len(saved) >= MAX_SAVED_CALLS or len(msgspec.json.encode(call)) > MAX_SAVED_CALL_BYTES:
            raise ToolError(f"at most {MAX_SAVED_CALLS} calls of {MAX_SAVED_CALL_BYTES // 1024} KB each can be saved")
        saved_call = SavedCall(id=secrets.token_hex(6), at=time.time(), **asdict(call))
        self._write([*saved, saved_call])
        return structured_response(saved_call)

    @tool
    async def delete_saved(self, id: str) -> ToolResult:
        """Delete a saved call."""
        left = [item for item in self._read() if item.id != id]
        if len(left) == len(self._read()):
            raise ToolError(f"unknown saved call {id[:40]!r}")
        self._write(left)
        return structured_response({"saved": left})

    @tool(annotations={"readOnlyHint": True})
    async def copy_as(
        self, target: str, method: SavedMethod, name: str, form: CopyFormat, arguments: dict[str, Any] | None = None
    ) -> ToolResult:
        """Export a call for curl, `portico`, pytest, Python or JSON. Tokens are omitted."""
        write = _EXPORTERS[form]
        return structured_response({"text": write(self._targets.get(target), method, name, arguments or {})})


def _as_json(target: ConsoleTarget, method: str, name: str, arguments: dict[str, Any]) -> str:
    params: dict[str, Any] = {"uri": name} if method == "resources/read" else {"name": name, "arguments": arguments}
    if (target.state.protocol_version or FIRST_MODERN_VERSION) >= FIRST_MODERN_VERSION:
        params["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": FIRST_MODERN_VERSION,
            "io.modelcontextprotocol/clientInfo": {"name": "curl", "version": "0"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return _json(message)


def _json(value: Any) -> str:
    """Encode as JSON with invisible characters escaped: some of them affect a terminal or a line editor."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def _as_curl(target: ConsoleTarget, method: str, name: str, arguments: dict[str, Any]) -> str:
    if target.state.kind not in ("url", "self"):
        raise ToolError(
            "curl requires a server at a URL, but this one is started as a command. Copy it as `portico call`"
        )
    if (target.state.protocol_version or FIRST_MODERN_VERSION) < FIRST_MODERN_VERSION:
        raise ToolError(
            "before 2026-07-28 a call requires a session, which takes several curl commands; use `portico call`"
        )
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": FIRST_MODERN_VERSION,
        "Mcp-Method": method,
        "Mcp-Name": mirrored(name),
    }
    header_lines = [f"  -H {_quote_for_shell(f'{header}: {value}')} \\" for header, value in headers.items()]
    # The token stays out of the text, which is pasted into chats and bug reports.
    if target.options.get("auth") is not None or target.state.kind == "self":
        # In double quotes, so that the shell inserts the token, which is not exported.
        header_lines.append('  -H "Authorization: Bearer $TOKEN" \\')
    body = _quote_for_shell(_as_json(target, method, name, arguments))
    # Without --globoff curl expands brackets and braces in a URL; -d would read a file for a leading @.
    return "\n".join(
        [f"curl --globoff {_quote_for_shell(_target_url(target))} \\", *header_lines, f"  --data-raw {body}"]
    )


def _quote_for_shell(text: str) -> str:
    """Quote a word for sh, bash and zsh. Raises ToolError for control characters, which quoting cannot make safe."""
    # A pasted escape sequence or newline could run a command before the user has read it.
    if not text.isprintable():
        raise ToolError(
            f"{ascii(text)[:80]} contains control characters and cannot be written for a shell. Copy it as "
            "Python or JSON"
        )
    # zsh expands a leading =, and all shells expand a leading ~, even where shlex would not quote.
    return (
        text if re.fullmatch(r"[A-Za-z0-9_./:][A-Za-z0-9_@%+=:,./-]*", text) else "'" + text.replace("'", "'\\''") + "'"
    )


def _operand(text: str) -> str:
    """Quote a word that `portico` must not parse as an option."""
    # A name chosen by a server must not become an option of the command that the user runs.
    if text.startswith("-"):
        raise ToolError(f"{ascii(text)[:80]} would be parsed as an option of `portico`. Copy it as Python or JSON")
    return _quote_for_shell(text)


def _pair(name: str, value: Any) -> str:
    """Format a prompt argument for `portico prompt`.

    `name=@file` and `name=-` read other sources, so such a value is written as JSON: `name:="@…"`.
    """
    if "=" in name or name.endswith(":") or not all(name.split(".")):
        raise ToolError(f"the name {ascii(name)[:80]} cannot be written as name=value. Copy it as Python or JSON")
    text = value if isinstance(value, str) else _json(value)
    is_plain = text.isprintable() and text != "-" and not text.startswith("@")
    return _operand(f"{name}={text}" if is_plain else f"{name}:={_json(text)}")


def _as_portico(target: ConsoleTarget, method: str, name: str, arguments: dict[str, Any]) -> str:
    revision = f" --protocol-version {target.state.wanted}" if target.state.wanted else ""
    operand, child = _target_url(target), ""
    if target.state.kind == "command":
        operand, child = "", " -- " + " ".join(map(_quote_for_shell, shlex.split(target.state.spec)))
    operand = f" {_operand(operand)}" if operand else ""
    if method == "resources/read":
        return f"portico read{operand} {_operand(name)}{revision}{child}"
    if method == "prompts/get":
        pairs = "".join(f" {_pair(key, value)}" for key, value in arguments.items())
        return f"portico prompt{operand} {_operand(name)}{pairs}{revision}{child}"
    argument_option = f" --arguments {_quote_for_shell(_json(arguments))}" if arguments else ""
    return f"portico call{operand} {_operand(name)}{argument_option}{revision}{child}"


def _as_python(target: ConsoleTarget, method: str, name: str, arguments: dict[str, Any]) -> str:
    return (
        "import asyncio\n\nfrom portico import Client\n\n\nasync def main() -> None:\n"
        f"    async with Client({_target(target)}) as client:\n"
        f"        result = await {_client_call_source(method, name, arguments)}\n"
        "        print(result)\n\n\nasyncio.run(main())\n"
    )


def _as_pytest(target: ConsoleTarget, method: str, name: str, arguments: dict[str, Any]) -> str:
    words = re.sub(r"\W+", "_", name).strip("_").lower() or "it"
    check = {
        "tools/call": "    assert not result.is_error",
        "resources/read": "    assert result",
        "prompts/get": "    assert result.messages",
    }[method]
    return (
        "import asyncio\n\nfrom portico import Client\n\n\n"
        f"def test_{words}() -> None:\n    async def ask():\n"
        f"        async with Client({_target(target)}) as client:\n"
        f"            return await {_client_call_source(method, name, arguments)}\n\n"
        f"    result = asyncio.run(ask())\n{check}\n"
    )


def _target(target: ConsoleTarget) -> str:
    spec: Any = target.state.spec if target.state.kind != "self" else _target_url(target)
    if target.state.kind == "command":
        spec = shlex.split(target.state.spec)
    version_argument = f", protocol_version={target.state.wanted!r}" if target.state.wanted else ""
    return f"{spec!r}{version_argument}"


def _client_call_source(method: str, name: str, arguments: dict[str, Any]) -> str:
    if method == "resources/read":
        return f"client.read_resource({name!r})"
    verb = "call_tool" if method == "tools/call" else "get_prompt"
    return f"client.{verb}({name!r}, {arguments!r})"


def _target_url(target: ConsoleTarget) -> str:
    """Return the target's address for a shell; for this server itself, its URL."""
    return target.url or target.state.spec


_EXPORTERS = {"curl": _as_curl, "portico": _as_portico, "pytest": _as_pytest, "python": _as_python, "json": _as_json}
