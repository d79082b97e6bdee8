"""What can be typed: a form for each command, by subject. Nothing heavy is imported here, because completion and hooks
read them too."""

from __future__ import annotations

import argparse

from portico._lazy import load_module
from portico.cli.commands import plugin_commands
from portico.cli.specs import client, serving, setup, store
from portico.cli.specs.parser import CommandForm, Parser
from portico.transports.short_urls import with_scheme

FORMS: dict[str, CommandForm] = {
    **serving.FORMS,
    **client.FORMS,
    **store.FORMS,
    **setup.FORMS,
}


def form_for(command: str) -> CommandForm:
    """Return the arguments of a command, of this package or of another one."""
    found: CommandForm = FORMS.get(command) or load_module(plugin_commands()[command].forms).FORMS[command]
    return found


def parser_for(command: str, *, with_target: bool = True) -> Parser:
    return form_for(command).parser(command, with_target=with_target)


def parse(command: str, words: list[str]) -> argparse.Namespace:
    """The arguments of a command that talks to a server. What stands behind `--` is a command in place of TARGET."""
    child: list[str] | None = None
    if "--" in words:
        at = words.index("--")
        words, child = words[:at], words[at + 1 :]
    parser = parser_for(command, with_target=child is None)
    if child == []:
        parser.error("a command is expected behind --")
    arguments = parser.read(words)
    check_text(parser, [getattr(arguments, name, "") for name in ("tool", "uri", "name")])
    if child is not None:
        arguments.target = child
    elif isinstance(getattr(arguments, "target", None), str):
        arguments.target = with_scheme(arguments.target)
    return arguments


def complete_serving(arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments of `serve` with what was left out: a place to listen at means HTTP."""
    places = (arguments.host, arguments.port, arguments.unix, arguments.fd, arguments.workers)
    if arguments.transport is None:
        arguments.transport = "stdio" if all(one is None for one in places) else "http"
    arguments.host = "127.0.0.1" if arguments.host is None else arguments.host
    arguments.port = 8080 if arguments.port is None else arguments.port
    return arguments


def check_text(parser: Parser, words: list[str]) -> None:
    for one in words:
        if not is_text(one):
            parser.error(f"{one!r} is not text in UTF-8")


def is_text(word: str) -> bool:
    """Whether a word is valid UTF-8. Python turns other bytes of a command line into lone surrogates."""
    return not any("\ud800" <= char <= "\udfff" for char in word)
