"""Folders that the client works in, which its user lets us look into."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from portico import Context
from portico_services.system.errors import Outside

if TYPE_CHECKING:
    from portico_services.system.machine import Machine

MOST_ASKED = 20
LONGEST_PATH = 4096


class ClientRoots:
    """Asks a client for its roots, and its user whether they may be looked into, when a call needs one of them.

    Only where one client can be meant, as on stdio: it runs as the user whose files these are. Over HTTP a client would
    name folders of a machine that is not its own. What the user has said of a folder holds as long as the service.
    """

    def __init__(self, machine: Callable[[], Machine], allow: Callable[[list[str]], None]) -> None:
        self._machine = machine
        self._allow = allow
        # What was said of each folder.
        self._answers: dict[str, bool] = {}
        # One question at a time: calls side by side would ask the same.
        self._asking = asyncio.Lock()

    async def allow(self, ctx: Context, path: str | None) -> bool:
        """Whether to look again: the user has agreed to a folder with this path in it, or to any for None."""
        if ctx.address is not None or ctx.capabilities.roots is None:
            return False
        async with self._asking:
            folders = [folder for root in await ctx.roots(key="roots") if (folder := _folder(root.uri)) is not None]
            wanted = [folder for folder in folders if path is None or _is_below(path, folder)][:MOST_ASKED]
            unknown = [folder for folder in wanted if folder not in self._answers]
            if unknown and not ctx.capabilities.can_elicit("form"):
                raise Outside(
                    "This is in a folder that the client works in, but the client cannot ask its user about "
                    "it. The operator of this server can allow it: portico serve --root PATH."
                )
            if unknown:
                await self._ask(ctx, unknown)
            return any(self._answers[folder] for folder in wanted)

    async def _ask(self, ctx: Context, folders: list[str]) -> None:
        listed = "\n".join(f"- {folder}" for folder in folders)
        question = f"May the tools of {ctx.server.name!r} look into these folders?\n{listed}"
        answer = await ctx.elicit(question, ["yes", "no"], key="roots-consent")
        agreed = answer.action == "accept" and answer.data == "yes"
        await ctx.in_thread(self._settle, folders, agreed)
        self._answers |= dict.fromkeys(folders, agreed)

    def _settle(self, folders: list[str], agreed: bool) -> None:
        self._machine().audit.add("roots", {"folders": "\n".join(folders)}, "ok" if agreed else "denied")
        if agreed:
            self._allow(folders)


def _folder(uri: str) -> str | None:
    """The folder of this machine that a URI names, if there is one."""
    try:
        place = urlsplit(uri)
        path = url2pathname(place.path)
    except ValueError:
        return None
    is_here = place.scheme == "file" and place.netloc in ("", "localhost")
    if not is_here or "\0" in path or len(path) > LONGEST_PATH or not os.path.isabs(path):
        return None
    path = os.path.normpath(path)
    return path if path.isprintable() and os.path.isdir(path) else None


def _is_below(path: str, folder: str) -> bool:
    """Whether a path is in a folder, by its name; one that is not absolute may be in any."""
    if not os.path.isabs(path):
        return True
    normal = os.path.normcase(os.path.normpath(path))
    top = os.path.normcase(folder)
    return normal == top or normal.startswith(top.rstrip(os.sep) + os.sep)
