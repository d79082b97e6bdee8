"""Calls that people want to make again: kept in a file, and written down for a shell or a test."""

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

from portico.protocol.errors import ToolError
from portico.protocol.header_params import encode as mirrored
from portico.protocol.versions import MODERN
from portico.server.components.results import ToolResult
from portico.server.registry.service import Service, tool
from portico_console.targets import ConsoleTarget, Targets
from portico_console.tool_responses import shown

MOST_SAVED = 1000
LONGEST_SAVED = 256 * 1024

AskedMethod = Literal["tools/call", "resources/read", "prompts/get"]
CopyForm = Literal["curl", "portico", "pytest", "python", "json"]


class CallToSave(Struct, kw_only=True):
    title: str
    target: str
    method: AskedMethod
    name: str
    arguments: dict[str, Any] = {}


class SavedCall(CallToSave, kw_only=True):
    id: str
    at: float


class SavedCalls(Service):
    """The saved calls of this user. Without a file they last as long as the console."""

    name = "saved"

    def __init__(self, targets: Targets, file: Path | None = None) -> None:
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
                raise ToolError(f"{self._file.name} cannot be read, so nothing is saved over it: {wrong}") from None
        return self._saved

    def _write(self, saved: list[SavedCall]) -> None:
        self._saved = saved
        if self._file is None:
            return
        fresh = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(saved))
            os.replace(fresh, self._file)
        except OSError as wrong:
            raise ToolError(
                f"it is kept until the console ends: the file cannot be written: {wrong.strerror}"
            ) from None

    @tool(annotations={"readOnlyHint": True})
    async def list_saved(self) -> ToolResult:
        """The calls that were saved."""
        return shown({"saved": self._read()})

    @tool
    async def save_call(self, call: CallToSave) -> ToolResult:
        """Keep a call, to make it again."""
        saved = self._read()
        if len(saved) >= MOST_SAVED or len(msgspec.json.encode(call)) > LONGEST_SAVED:
            raise ToolError(f"no more than {MOST_SAVED} calls of {LONGEST_SAVED // 1024} KB each are saved")
        given = {name: getattr(call, name) for name in call.__struct_fields__}
        made = SavedCall(id=secrets.token_hex(6), at=time.time(), **given)
        self._write([*saved, made])
        return shown(made)

    @tool
    async def delete_saved(self, id: str) -> ToolResult:
        """Forget a saved call."""
        left = [one for one in self._read() if one.id != id]
        if len(left) == len(self._read()):
            raise ToolError(f"there is no saved call {id[:40]!r}")
        self._write(left)
        return shown({"saved": left})

    @tool(annotations={"readOnlyHint": True})
    async def copy_as(
        self, target: str, method: AskedMethod, name: str, form: CopyForm, arguments: dict[str, Any] | None = None
    ) -> ToolResult:
        """A call written down: for curl, for the shell, for a test, as Python or as JSON. Tokens are left out."""
        write = _FORMS[form]
        return shown({"text": write(self._targets.get(target), method, name, arguments or {})})


def _params(method: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"uri": name} if method == "resources/read" else {"name": name, "arguments": arguments}


def _as_json(target: ConsoleTarget, method: str, name: str, arguments: dict[str, Any]) -> str:
    params = _params(method, name, arguments)
    if (target.state.revision or MODERN) >= MODERN:
        params["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": {"name": "curl", "version": "0"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return _json(message)


def _json(value: Any) -> str:
    """Encode as JSON with every invisible character escaped: some of them act on a terminal or a line editor."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def _as_curl(target: ConsoleTarget, method: str, name: str, arguments: dict[str, Any]) -> str:
    if target.state.kind not in ("url", "self"):
        raise ToolError("curl speaks to servers at a URL; this one is started as a command. Copy it as `portico call`")
    if (target.state.revision or MODERN) < MODERN:
        raise ToolError("before 2026-07-28 a call needs a session, which takes curl several steps; use `portico call`")
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": method,
        "Mcp-Name": mirrored(name),
    }
    given = [f"  -H {_quote(f'{header}: {value}')} \\" for header, value in headers.items()]
    if target.options.get("auth") is not None or target.state.kind == "self":
        # In double quotes, so that the shell fills in the token, which is not written down.
        given.append('  -H "Authorization: Bearer $TOKEN" \\')
    body = _quote(_as_json(target, method, name, arguments))
    # Without --globoff curl expands brackets and braces in a URL; -d would read a file for a leading @.
    return "\n".join([f"curl --globoff {_quote(_place(target))} \\", *given, f"  --data-raw {body}"])


def _quote(text: str) -> str:
    """Quote a word for sh, bash and zsh. Raises ToolError for control characters, which no quotes make harmless."""
    if not text.isprintable():
        raise ToolError(
            f"{ascii(text)[:80]} cannot be written for a shell: it has control characters. Copy it as Python or JSON"
        )
    # zsh expands a leading =, and all shells a leading ~, even where shlex would not quote.
    return (
        text if re.fullmatch(r"[A-Za-z0-9_./:][A-Za-z0-9_@%+=:,./-]*", text) else "'" + text.replace("'", "'\\''") + "'"
    )


def _operand(text: str) -> str:
    """Quote a word that `portico` must not read as an option."""
    if text.startswith("-"):
        raise ToolError(f"{ascii(text)[:80]} would be read as an option of `portico`. Copy it as Python or JSON")
    return _quote(text)


def _pair(name: str, value: Any) -> str:
    """Write an argument of a prompt as `portico prompt` reads it.

    `name=@file` and `name=-` are read from elsewhere, so such a value is written as JSON: `name:="@…"`.
    """
    if "=" in name or name.endswith(":") or not all(name.split(".")):
        raise ToolError(f"the name {ascii(name)[:80]} cannot be written as name=value. Copy it as Python or JSON")
    text = value if isinstance(value, str) else _json(value)
    is_plain = text.isprintable() and text != "-" and not text.startswith("@")
    return _operand(f"{name}={text}" if is_plain else f"{name}:={_json(text)}")


def _as_portico(target: ConsoleTarget, method: str, name: str, arguments: dict[str, Any]) -> str:
    revision = f" --revision {target.state.wanted}" if target.state.wanted else ""
    place, child = _place(target), ""
    if target.state.kind == "command":
        place, child = "", " -- " + " ".join(map(_quote, shlex.split(target.state.spec)))
    place = f" {_operand(place)}" if place else ""
    if method == "resources/read":
        return f"portico read{place} {_operand(name)}{revision}{child}"
    if method == "prompts/get":
        pairs = "".join(f" {_pair(key, value)}" for key, value in arguments.items())
        return f"portico prompt{place} {_operand(name)}{pairs}{revision}{child}"
    given = f" --json {_quote(_json(arguments))}" if arguments else ""
    return f"portico call{place} {_operand(name)}{given}{revision}{child}"


def _as_python(target: ConsoleTarget, method: str, name: str, arguments: dict[str, Any]) -> str:
    return (
        "import asyncio\n\nfrom portico import Client\n\n\nasync def main() -> None:\n"
        f"    async with Client({_target(target)}) as client:\n"
        f"        result = await {_asking(method, name, arguments)}\n"
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
        f"            return await {_asking(method, name, arguments)}\n\n"
        f"    result = asyncio.run(ask())\n{check}\n"
    )


def _target(target: ConsoleTarget) -> str:
    place: Any = target.state.spec if target.state.kind != "self" else _place(target)
    if target.state.kind == "command":
        place = shlex.split(target.state.spec)
    wanted = f", revision={target.state.wanted!r}" if target.state.wanted else ""
    return f"{place!r}{wanted}"


def _asking(method: str, name: str, arguments: dict[str, Any]) -> str:
    if method == "resources/read":
        return f"client.read_resource({name!r})"
    verb = "call_tool" if method == "tools/call" else "get_prompt"
    return f"client.{verb}({name!r}, {arguments!r})"


def _place(target: ConsoleTarget) -> str:
    """Where a shell finds it; of this server itself, where it is served."""
    return target.url or target.state.spec


_FORMS = {"curl": _as_curl, "portico": _as_portico, "pytest": _as_pytest, "python": _as_python, "json": _as_json}
