"""From what was typed to a Client."""

from __future__ import annotations

import argparse
import os
import re
from typing import Any
from urllib.parse import urlsplit

import msgspec

from portico import __version__
from portico.auth.addresses import names_loopback
from portico.auth.errors import AuthorizationFailed
from portico.cli.printer import Printer
from portico.cli.questions import Questions, can_ask
from portico.client.client import Client
from portico.wire.errors import UsageError
from portico.wire.notices import MessageParams

ARROWS = {"sent": "→", "received": "←"}

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def client_for(target: str | list[str], options: argparse.Namespace, printer: Printer) -> Client:
    """A Client for a TARGET, or for the words behind `--`. It is not open yet."""
    if options.cwd is not None and not os.path.isdir(options.cwd):
        raise UsageError(f"there is no folder {options.cwd}")
    questions = Questions(printer) if can_ask() else None
    given: dict[str, Any] = {}
    if options.timeout is not None:
        given["timeout"] = options.timeout
    if options.trace:
        given["trace"] = lambda way, message: printer.aside(f"{ARROWS.get(way, way)} {_decoded(message)}")
    if options.verbose:
        given["log_handler"] = lambda said: printer.aside(_logged(said))
    if questions is not None:
        given["elicitation_handler"] = questions.answer
    client = Client(
        target,
        name="portico",
        version=__version__,
        revision=options.revision,
        headers=_headers(options.header),
        env=_environment(options.env),
        cwd=options.cwd,
        auth=_auth(target, options),
        browser=None if questions is not None else _nobody,
        **given,
    )
    if questions is not None:
        questions.client = client
    return client


def is_url(target: str | list[str]) -> bool:
    return isinstance(target, str) and target.lower().startswith(("http://", "https://"))


def _auth(target: str | list[str], options: argparse.Namespace) -> str | None:
    """A token of the environment is for servers at a URL; others find it there themselves.

    PORTICO_TOKEN is what `portico serve` wants to see, so it is shown to this machine only.
    """
    if options.oauth:
        return "oauth"
    if options.token is not None:
        return str(options.token)
    if not isinstance(target, str) or not is_url(target):
        return None
    local = names_loopback(urlsplit(target).hostname or "")
    return os.environ.get("PORTICO_CLIENT_TOKEN") or (os.environ.get("PORTICO_TOKEN") if local else None) or None


async def _nobody(url: str, redirect_uri: str) -> str:
    raise AuthorizationFailed("Somebody has to log in, and nobody is here. Run this once at a terminal.")


def _headers(words: list[str]) -> dict[str, str]:
    found = {}
    for word in words:
        name, mark, value = word.partition(":")
        if not mark or not _NAME.fullmatch(name) or not value.strip().isprintable():
            raise UsageError(f"--header {word!r} is not 'Name: value'")
        found[name] = value.strip()
    return found


def _environment(words: list[str]) -> dict[str, str] | None:
    found = {}
    for word in words:
        name, mark, value = word.partition("=")
        if not mark or not name or "\0" in word:
            raise UsageError(f"--env {word!r} is not NAME=VALUE")
        found[name] = value
    return found or None


def _decoded(message: bytes) -> str:
    return message.decode(errors="replace").rstrip("\n")


def _logged(said: MessageParams) -> str:
    words = said.data if isinstance(said.data, str) else msgspec.json.encode(said.data).decode()
    return f"{said.level}{f' {said.logger}' if said.logger else ''}: {words}"
