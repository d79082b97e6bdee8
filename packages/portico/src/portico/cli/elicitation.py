"""Elicitation at the terminal: shows a server's requests to the user and returns the answers.

The specification (client/elicitation) requires that it is clear which server asks, that users can review their answers
before they are sent, and that they can decline or cancel at any time.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any
from urllib.parse import urlsplit

from portico.cli.output import Printer
from portico.cli.terminal_text import to_single_line
from portico.cli.tool_arguments import ArgumentBuilder
from portico.client.client import Client
from portico.jsonschema import Schema
from portico.jsonschema.argument_issues import ArgumentInspector
from portico.protocol.client_features import ElicitParams, ElicitResult
from portico.transports.http_client.timeouts import suspend_timeout

# A form that a user would fill in at a terminal; the rest is not asked.
MAX_FIELDS = 100
# A longer message would push the name of the server off the screen.
MAX_MESSAGE_CHARS = 4000
MAX_LINE_CHARS = 64 * 1024
CANCEL_HINT = "Ctrl-D leaves without an answer"
NO_VALUE = object()
# Values, each with its display title.
Choices = list[tuple[Any, str]]
BOOLEAN_WORDS = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


def is_interactive() -> bool:
    """Return whether standard input and standard error are terminals."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


class TerminalElicitation:
    """Elicitation handler that prompts on standard error, because standard output may be redirected."""

    def __init__(self, printer: Printer, limit: asyncio.Timeout | None = None) -> None:
        self.client: Client | None = None
        self._printer = printer
        self._limit = limit
        # Servers may send several requests concurrently; the user answers them one at a time.
        self._turn = asyncio.Lock()

    async def handle(self, params: ElicitParams) -> ElicitResult:
        """Prompt the user and return the answer."""
        async with self._turn:
            with suspend_timeout(self._limit):
                return await self._answer(params)

    async def _answer(self, params: ElicitParams) -> ElicitResult:
        # Continuation lines are indented, so that a server cannot imitate our own output.
        message = params.message[:MAX_MESSAGE_CHARS].strip().replace("\n", "\n    ")
        self._printer.print_error(f"{self._name} asks: {message}")
        try:
            if params.mode == "url":
                return await self._open_page(params.url or "")
            return await self._form(params.requested_schema)
        except EOFError:
            self._printer.print_error("")
            return ElicitResult("cancel")

    @property
    def _name(self) -> str:
        info = self.client.server_info if self.client is not None else None
        return to_single_line(info.title or info.name, 80) if info is not None else "the server"

    # URL mode

    async def _open_page(self, url: str) -> ElicitResult:
        try:
            # Other schemes, such as file: or javascript:, would act on this machine rather than show a page.
            host = urlsplit(url).hostname if url.lower().startswith(("http://", "https://")) else None
            # In IDNA encoding, so that look-alike letters are visible.
            display_host = host.encode("idna").decode() if host else None
        except (ValueError, UnicodeError):
            display_host = None
        if display_host is None:
            self._printer.print_error("It asks you to open a page, but the URL is not an HTTP URL. Declined.")
            return ElicitResult("decline")
        self._printer.print_error(f"It asks you to open a page of {display_host}:\n\n  {to_single_line(url)}\n")
        if any(label.startswith("xn--") for label in display_host.lower().split(".")):
            # client/elicitation, Safe URL Handling: such a name may imitate another one.
            self._printer.print_error(
                "Warning: the name of this site contains characters that may look like other letters."
            )
        # Enter declines: the page may start a login or a payment, so agreeing takes a deliberate answer.
        is_agreed = await self._confirm("Do you agree, and open it in your browser?", default=False)
        return ElicitResult("accept" if is_agreed else "decline")

    # Form mode

    async def _form(self, schema: Any) -> ElicitResult:
        form = ArgumentBuilder(schema)
        names = form.reader.property_names(form.root)[:MAX_FIELDS]
        if not names:
            return (
                ElicitResult("accept", {}) if await self._confirm("Agreed?", default=False) else ElicitResult("decline")
            )
        self._printer.print_error(f"({CANCEL_HINT})")
        required = form.reader.required_names(form.root)
        content = {}
        for name in names:
            value = await self._field(form, name, name in required)
            if value is not NO_VALUE:
                content[name] = value
        if await self._confirm(f"Send this to {self._name}?", default=True):
            return ElicitResult("accept", content)
        return ElicitResult("decline")

    async def _field(self, form: ArgumentBuilder, name: str, is_required: bool) -> Any:
        schema = form.reader.member_schema(form.root, name)
        default = schema.get("default", NO_VALUE)
        choices = form.reader.titled_enum_values(schema)
        self._print_field(name, schema, choices)
        prompt = f"  {to_single_line(name, 80)}{_hint(form.reader, schema, choices, default, is_required)}: "
        while True:
            text = await self._line(prompt)
            if not text.strip():
                if default is not NO_VALUE or not is_required:
                    return default
                self._printer.print_error("    A value is required.")
                continue
            value = _read(form, schema, choices, text)
            # Checked here, so that the user can correct a value before anything is sent.
            mistakes = form.check(value, schema, f"arguments.{name}")
            if not mistakes:
                return value
            self._printer.print_error(f"    {to_single_line(mistakes[0])}")

    def _print_field(self, name: str, schema: Schema, choices: Choices) -> None:
        description = schema.get("description") or schema.get("title") or ""
        if choices or (description and description != name):
            self._printer.print_error(f"  {to_single_line(name, 80)}: {to_single_line(description)}".rstrip())
        for number, (_, title) in enumerate(choices, 1):
            self._printer.print_error(f"    {number}) {to_single_line(title, 200)}")

    async def _confirm(self, question: str, *, default: bool) -> bool:
        while True:
            answer = (await self._line(f"{question} [{'Y/n' if default else 'y/N'}] ")).strip().lower()
            if answer in ("", "y", "yes", "n", "no"):
                return default if not answer else answer.startswith("y")

    async def _line(self, prompt: str) -> str:
        self._printer.print_error(prompt, end="")
        line = await read_line()
        if not line:
            raise EOFError
        return line.rstrip("\r\n")


async def read_line() -> str:
    """Read a line from the terminal; empty if it was closed. Does not block the event loop, so that Ctrl-C works."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[bytes] = loop.create_future()
    stdin = sys.stdin.fileno()

    def read() -> None:
        # Called again for input that arrives before the reader is removed; that input stays for the next prompt.
        if not arrived.done():
            arrived.set_result(os.read(stdin, MAX_LINE_CHARS))

    try:
        loop.add_reader(stdin, read)
    # The Windows proactor event loop cannot watch a console.
    except NotImplementedError:
        return await asyncio.to_thread(sys.stdin.readline)
    try:
        return (await arrived).decode(errors="replace")
    finally:
        loop.remove_reader(stdin)


def _read(form: ArgumentBuilder, schema: Schema, choices: Choices, text: str) -> Any:
    """Parse the typed text. A choice is given by its number, value or title; several are separated by commas."""
    if form.reader.accepts_type(schema, "array"):
        return [_parse_choice(choices, word.strip()) for word in text.split(",") if word.strip()]
    if choices:
        return _parse_choice(choices, text.strip())
    if form.reader.accepts_type(schema, "boolean"):
        return BOOLEAN_WORDS.get(text.strip().lower(), text)
    return form.convert(text if form.reader.accepts_type(schema, "string") else text.strip(), schema)


def _parse_choice(choices: Choices, word: str) -> Any:
    for value, title in choices:
        if word in (value, title):
            return value
    # After values and titles: a choice may itself be a number.
    if word.isascii() and word.isdigit() and 0 < int(word) <= len(choices):
        return choices[int(word) - 1][0]
    return word


def _hint(reader: ArgumentInspector, schema: Schema, choices: Choices, default: Any, is_required: bool) -> str:
    """Return the part of a prompt that describes the expected value and the default."""
    if not choices and reader.accepts_type(schema, "boolean") and not reader.accepts_type(schema, "string"):
        return f" [{'Y/n' if default is True else 'y/N' if default is False else 'y/n'}]"
    parts = (
        [f"1 to {len(choices)}{', separated by commas' if reader.accepts_type(schema, 'array') else ''}"]
        if choices
        else []
    )
    if not choices and not reader.accepts_type(schema, "string"):
        parts = [reader.describe(schema)]
    if not is_required and default is NO_VALUE:
        parts.append("optional")
    default_text = "" if default is NO_VALUE else f" [{to_single_line(_format_default(default), 200)}]"
    return (f" ({', '.join(parts)})" if parts else "") + default_text


def _format_default(value: Any) -> str:
    return value if isinstance(value, str) else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
