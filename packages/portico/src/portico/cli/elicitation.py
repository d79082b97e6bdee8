"""What a server asks in the middle of a call, asked of the person at the terminal.

client/elicitation of the specification: it has to be clear who asks, the person can look at the answers before they
are sent, and can decline or leave at any time.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any
from urllib.parse import urlsplit

from portico.cli.output import Printer
from portico.cli.terminal_text import one_line
from portico.cli.tool_arguments import ArgumentForm
from portico.client.client import Client
from portico.jsonschema import Schema
from portico.jsonschema.argument_issues import Inspector
from portico.protocol.client_features import ElicitParams, ElicitResult
from portico.transports.http_client.timeouts import suspended

MOST_FIELDS = 100
LONGEST_MESSAGE = 4000
LONGEST_LINE = 64 * 1024
LEAVE = "Ctrl-D leaves without an answer"
NOTHING = object()
# Values, each with what a person is shown.
Choices = list[tuple[Any, str]]
WORDS = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


def can_ask() -> bool:
    """Whether standard input and standard error are a terminal, with a person at it."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


class InputClosed(Exception):
    """The person pressed Ctrl-D."""


class TerminalQuestions:
    """Asks on standard error, because standard output may be going elsewhere."""

    def __init__(self, printer: Printer, limit: asyncio.Timeout | None = None) -> None:
        self.client: Client | None = None
        self._printer = printer
        self._limit = limit
        # Servers may ask two things at once; people are asked one by one.
        self._turn = asyncio.Lock()

    async def answer(self, question: ElicitParams) -> ElicitResult:
        async with self._turn:
            with suspended(self._limit):
                return await self._answer(question)

    async def _answer(self, question: ElicitParams) -> ElicitResult:
        # Further lines are set in, so that they do not pass for ours.
        message = question.message[:LONGEST_MESSAGE].strip().replace("\n", "\n    ")
        self._printer.aside(f"{self._name} asks: {message}")
        try:
            if question.mode == "url":
                return await self._page(question.url or "")
            return await self._form(question.requested_schema)
        except InputClosed:
            self._printer.aside("")
            return ElicitResult("cancel")

    @property
    def _name(self) -> str:
        info = self.client.server_info if self.client is not None else None
        return one_line(info.title or info.name, 80) if info is not None else "the server"

    # A page

    async def _page(self, url: str) -> ElicitResult:
        try:
            host = urlsplit(url).hostname if url.lower().startswith(("http://", "https://")) else None
            # As the network spells it: letters that only look like others do not pass for them.
            shown = host.encode("idna").decode() if host else None
        except (ValueError, UnicodeError):
            shown = None
        if shown is None:
            self._printer.aside("It wants you to open a page, but its address is not a web address. Declined.")
            return ElicitResult("decline")
        self._printer.aside(f"It wants you to open a page of {shown}:\n\n  {one_line(url)}\n")
        if any(label.startswith("xn--") for label in shown.lower().split(".")):
            # client/elicitation, Safe URL Handling: such a name may be made to look like another one.
            self._printer.aside("Beware: the name of this site is in letters that may look like others.")
        is_agreed = await self._yes("Do you agree, and open it in your browser?", default=False)
        return ElicitResult("accept" if is_agreed else "decline")

    # A form

    async def _form(self, schema: Any) -> ElicitResult:
        form = ArgumentForm(schema)
        names = form.reader.names(form.root)[:MOST_FIELDS]
        if not names:
            return ElicitResult("accept", {}) if await self._yes("Agreed?", default=False) else ElicitResult("decline")
        self._printer.aside(f"({LEAVE})")
        required = form.reader.required(form.root)
        content = {}
        for name in names:
            value = await self._field(form, name, name in required)
            if value is not NOTHING:
                content[name] = value
        if await self._yes(f"Send this to {self._name}?", default=True):
            return ElicitResult("accept", content)
        return ElicitResult("decline")

    async def _field(self, form: ArgumentForm, name: str, is_required: bool) -> Any:
        schema = form.reader.member(form.root, name)
        default = schema.get("default", NOTHING)
        choices = form.reader.titled_choices(schema)
        self._introduce(name, schema, choices)
        prompt = f"  {one_line(name, 80)}{_hint(form.reader, schema, choices, default, is_required)}: "
        while True:
            text = await self._line(prompt)
            if not text.strip():
                if default is not NOTHING or not is_required:
                    return default
                self._printer.aside("    A value is required.")
                continue
            value = _read(form, schema, choices, text)
            mistakes = form.check(value, schema, f"arguments.{name}")
            if not mistakes:
                return value
            self._printer.aside(f"    {one_line(mistakes[0])}")

    def _introduce(self, name: str, schema: Schema, choices: Choices) -> None:
        words = schema.get("description") or schema.get("title") or ""
        if choices or (words and words != name):
            self._printer.aside(f"  {one_line(name, 80)}: {one_line(words)}".rstrip())
        for number, (_, title) in enumerate(choices, 1):
            self._printer.aside(f"    {number}) {one_line(title, 200)}")

    async def _yes(self, words: str, *, default: bool) -> bool:
        while True:
            answer = (await self._line(f"{words} [{'Y/n' if default else 'y/N'}] ")).strip().lower()
            if answer in ("", "y", "yes", "n", "no"):
                return default if not answer else answer.startswith("y")

    async def _line(self, prompt: str) -> str:
        self._printer.aside(prompt, end="")
        line = await read_line()
        if not line:
            raise InputClosed
        return line.rstrip("\r\n")


async def read_line() -> str:
    """One line from the terminal; empty when it was closed. Does not block the loop, so that Ctrl-C works."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[bytes] = loop.create_future()
    stdin = sys.stdin.fileno()

    def read() -> None:
        if not arrived.done():
            arrived.set_result(os.read(stdin, LONGEST_LINE))

    try:
        loop.add_reader(stdin, read)
    except NotImplementedError:
        return await asyncio.to_thread(sys.stdin.readline)
    try:
        return (await arrived).decode(errors="replace")
    finally:
        loop.remove_reader(stdin)


def _read(form: ArgumentForm, schema: Schema, choices: Choices, text: str) -> Any:
    """The value of what was typed. A choice is named by its number, value or title; several are separated by commas."""
    if form.reader.takes(schema, "array"):
        return [_chosen(choices, word.strip()) for word in text.split(",") if word.strip()]
    if choices:
        return _chosen(choices, text.strip())
    if form.reader.takes(schema, "boolean"):
        return WORDS.get(text.strip().lower(), text)
    return form.typed(text if form.reader.takes(schema, "string") else text.strip(), schema)


def _chosen(choices: Choices, word: str) -> Any:
    for value, title in choices:
        if word in (value, title):
            return value
    if word.isascii() and word.isdigit() and 0 < int(word) <= len(choices):
        return choices[int(word) - 1][0]
    return word


def _hint(reader: Inspector, schema: Schema, choices: Choices, default: Any, is_required: bool) -> str:
    """What a prompt says about the expected value and the default."""
    if not choices and reader.takes(schema, "boolean") and not reader.takes(schema, "string"):
        return f" [{'Y/n' if default is True else 'y/N' if default is False else 'y/n'}]"
    words = (
        [f"1 to {len(choices)}{', separated by commas' if reader.takes(schema, 'array') else ''}"] if choices else []
    )
    if not choices and not reader.takes(schema, "string"):
        words = [reader.words(schema)]
    if not is_required and default is NOTHING:
        words.append("may be left empty")
    shown = "" if default is NOTHING else f" [{one_line(_shown(default), 200)}]"
    return (f" ({', '.join(words)})" if words else "") + shown


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
