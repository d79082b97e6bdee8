"""The prompts: ways of working with memory that a person can start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from msgspec import Meta

from portico.server.calling.completion import Completer
from portico.server.calling.prompts import Prompt
from portico.server.registry.service import Completes, Component
from portico.services.memory.service import wording
from portico.services.memory.service.access import Access
from portico.services.memory.store import statistics
from portico.services.memory.store.namespaces import NAMESPACES
from portico.services.memory.store.records import Record

SHOWN = 10


class MemoryPrompts:
    def __init__(self, access: Access) -> None:
        self._access = access

    def offers(self) -> Iterator[Component]:
        own: dict[str, Callable[..., Any]] = {
            "capture": self._capture,
            "recall": self._recall,
            "session_start": self._session_start,
            "browse": self._browse,
            "list": self._list,
            "review": self._review,
            "tutorial": self._tutorial,
        }
        for name, fn in own.items():
            yield Prompt(fn, name=f"{self._access.prefix}_{name}")
        others: dict[str, Callable[..., Any]] = {
            "generate_decision": self._decision,
            "intent_search": self._intent_search,
            "query_suggest": self._query_suggest,
            "generate_tutorial": self._generate_tutorial,
            "context_capture": self._context_capture,
            "discover": self._discover,
        }
        for name, fn in others.items():
            yield Prompt(fn, name=name)
        for name, argument in ((f"{self._access.prefix}_review", "namespace"), ("query_suggest", "namespace")):
            yield Completes(name, argument, Completer(_namespaces))
        for name, argument in (("discover", "topic"), ("discover", "tag")):
            yield Completes(name, argument, Completer(self._access.complete_topic))

    async def _capture(self, content: Annotated[str, "Content to capture"]) -> str:
        """Guided memory capture"""
        return wording.capture(content, self._access.prefix)

    async def _recall(self, query: Annotated[str, "What to find out"]) -> str:
        """Guided search in memory"""
        return wording.recall(query, self._access.prefix)

    async def _session_start(self) -> str:
        """Begin a session with what is known"""
        return wording.session_start(await self._found("", SHOWN), self._access.prefix)

    async def _browse(
        self,
        filter: Annotated[str, "Which memories, such as ns:decisions since:7d"] = "",
        view: Annotated[Literal["dashboard", "list"], "How to show them"] = "dashboard",
        top: Annotated[int, Meta(ge=1, le=100), "How many"] = SHOWN,
    ) -> str:
        """Look around in memory"""
        return wording.browse(filter, view, top, self._access.prefix)

    async def _list(
        self,
        filter: Annotated[str, "Which memories, such as tag:database"] = "",
        format: Annotated[Literal["table", "list"], "How to show them"] = "table",
        limit: Annotated[int, Meta(ge=1, le=1000), "How many"] = 50,
    ) -> str:
        """List memories"""
        return wording.listing(filter, format, limit, self._access.prefix)

    async def _review(
        self,
        namespace: Annotated[str, "Only this namespace"] = "",
        action: Annotated[
            Literal["summarize", "consolidate", "archive", "cleanup"], "What to do with them"
        ] = "summarize",
    ) -> str:
        """Go through memories and put them in order"""
        found = await self._found(f"ns:{namespace}" if namespace in NAMESPACES else "", 50)
        return wording.review(namespace, action, found, self._access.prefix)

    async def _tutorial(
        self,
        familiarity: Annotated[
            Literal["beginner", "intermediate", "advanced"], "How much is known already"
        ] = "beginner",
        focus: Annotated[Literal["overview", "capture", "search", "workflows"], "What about"] = "overview",
    ) -> str:
        """Learn to use this memory"""
        return wording.tutorial(familiarity, focus, self._access.prefix)

    async def _decision(
        self,
        decision: Annotated[str, "What was decided"],
        context: Annotated[str, "What led to it"] = "",
        alternatives: Annotated[str, "What else was considered"] = "",
    ) -> str:
        """Document a decision"""
        return wording.decision(decision, context, alternatives, self._access.prefix)

    async def _generate_tutorial(
        self,
        topic: Annotated[str, "What it is to be about"],
        level: Annotated[Literal["beginner", "intermediate", "advanced"], "For whom"] = "beginner",
        format: Annotated[Literal["markdown", "outline", "steps"], "How it is to be written"] = "markdown",
    ) -> str:
        """Write a tutorial out of what is remembered"""
        return wording.generated_tutorial(topic, level, format, await self._found(topic, SHOWN), self._access.prefix)

    async def _intent_search(
        self,
        query: Annotated[str, "What to look for"],
        intent: Annotated[str, "What it is for: how to, where, why"] = "",
        context: Annotated[str, "What it is about"] = "",
    ) -> str:
        """Search for what is meant, not only for what is said"""
        return wording.intent_search(query, intent, context, self._access.prefix)

    async def _query_suggest(
        self, query: Annotated[str, "A search"], namespace: Annotated[str, "Only in this namespace"] = ""
    ) -> str:
        """Better searches"""
        memories = await self._access.memories()
        topics = await memories.read(lambda tx: statistics.topics(tx, 30))
        return wording.query_suggest(query, namespace, list(topics))

    async def _context_capture(
        self,
        conversation: Annotated[str, "A conversation, or a part of one"],
        threshold: Annotated[str, "How sure to be, 0 to 1"] = "0.7",
    ) -> str:
        """Pick what is worth remembering out of a conversation"""
        return wording.context_capture(conversation, threshold, self._access.prefix)

    async def _discover(
        self, topic: Annotated[str, "Where to begin"] = "", tag: Annotated[str, "A tag to begin with"] = ""
    ) -> str:
        """See what hangs together"""
        return wording.discover(topic, tag, await self._found(topic, SHOWN, tag), self._access.prefix)

    async def _found(self, words: str, limit: int, tag: str = "") -> list[Record]:
        memories = await self._access.memories()
        wanted = memories.filter(words)
        if tag:
            wanted = wanted.also("tag", tag)
        page = await memories.recall("", wanted, limit=limit)
        return [hit.record for hit in page.hits]


def _namespaces(typed: str) -> list[str]:
    return [one for one in NAMESPACES if one.startswith(typed)]
