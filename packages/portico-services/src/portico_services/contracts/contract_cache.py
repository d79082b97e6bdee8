"""What the tools of a Handler promise, worked out once for each list that it gives and not for each question."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from portico.extend import MODERN, Handler, members
from portico_services.contracts.definitions import Contract, contract_of

# An endless list is not followed further.
MOST_PAGES = 1000
# So many lists are kept where it depends on the caller what is listed.
MOST_LISTS = 16

Page = Callable[[dict[str, Any]], Awaitable[bytes]]


class KeptContracts:
    """The contracts of one Handler, by what was listed."""

    def __init__(self) -> None:
        # The list that the Handler has at hand, which is the same object until something changes.
        self._listed: Any = None
        self._contract = Contract()
        self._by_pages: OrderedDict[bytes, Contract] = OrderedDict()

    async def current(self, handler: Handler, page: Page, *, whole: bool = True) -> Contract:
        """What is promised now. `page` gives the result of `tools/list` for these parameters, as bytes; `whole`: they
        are those of all of the Handler, and not of a part of it."""
        at_hand = members(handler).listed("tools/list") if whole else None
        if at_hand is None or at_hand is not self._listed:
            contract = await self._from_pages(handler, page)
            if at_hand is None:
                return contract
            self._listed, self._contract = at_hand, contract
        return self._contract

    async def _from_pages(self, handler: Handler, page: Page) -> Contract:
        """The pages of a caller's list are asked for each time, and read if they are others."""
        pages: list[bytes] = []
        params: dict[str, Any] = {}
        for _ in range(MOST_PAGES):
            pages.append(await page(params))
            cursor = msgspec.json.decode(pages[-1], type=_ListedPage).nextCursor
            if cursor is None:
                break
            params = {"cursor": cursor}
        info = members(handler).info
        key = hashlib.sha256(b"\n".join((repr(info).encode(), *pages))).digest()
        kept = self._by_pages.get(key)
        if kept is None:
            listed = [tool for one in pages for tool in msgspec.json.decode(one).get("tools") or ()]
            name, version = ("", "") if info is None else (info.name, info.version)
            kept = contract_of(listed, server=name, version=version, revision=MODERN)
            self._by_pages[key] = kept
            while len(self._by_pages) > MOST_LISTS:
                self._by_pages.popitem(last=False)
        self._by_pages.move_to_end(key)
        return kept


class _ListedPage(msgspec.Struct):
    nextCursor: str | None = None
