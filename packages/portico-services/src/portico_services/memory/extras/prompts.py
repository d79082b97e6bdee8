"""Prompts for working with memory. Their texts are in prompts.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from portico import Context
from portico.extend import CallerCompleter, Completer, CompletionBinding, Component, LazyPrompt
from portico_services import text as texts
from portico_services.database_service import choice_completer
from portico_services.memory.extras.model_fallback import ModelFallback
from portico_services.memory.store import statistics
from portico_services.memory.store.namespaces import (
    NAMESPACES,
    WRITABLE_NAMESPACES,
    suggest_namespace,
    validate_readable_namespace,
)
from portico_services.memory.store.records import MemoryRecord, format_provenance
from portico_services.memory.tools.context import Body, MemoryToolContext
from portico_services.memory.tools.resources import help_page, help_topic

SHOWN, MAX_REVIEW_MEMORIES = 10, 50
PROMPTS = Path(__file__).with_name("prompts.md")
_REVIEW_INSTRUCTIONS = {
    "summarize": "Summarise them in a few sentences.",
    "consolidate": "Say which belong together, then run {p}_consolidate dry and show what it would do.",
    "archive": "Say which are out of date and why, and after my consent archive them with {p}_update.",
    "cleanup": "Say which are wrong, double or empty, and after my consent delete them with {p}_delete.",
}
_SHAPES = {"markdown": "as Markdown", "outline": "as an outline", "steps": "as numbered steps"}


class MemoryPrompts:
    def __init__(self, access: MemoryToolContext, models: ModelFallback) -> None:
        self._access = access
        self._models = models

    def components(self) -> Iterator[Component]:
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
            yield self._prompt(fn, f"{self._access.prefix}_{name}")
        # Not prefixed: these names are known to clients of a compatible server.
        others: dict[str, Callable[..., Any]] = {
            "generate_decision": self._decision,
            "intent_search": self._intent_search,
            "query_suggest": self._query_suggest,
            "generate_tutorial": self._generate_tutorial,
            "context_capture": self._context_capture,
            "discover": self._discover,
        }
        for name, fn in others.items():
            yield self._prompt(fn, name)
        for name, argument in ((f"{self._access.prefix}_review", "namespace"), ("query_suggest", "namespace")):
            yield CompletionBinding(name, argument, Completer(choice_completer(NAMESPACES)))
        for name, argument in (("discover", "topic"), ("discover", "tag")):
            yield CompletionBinding(name, argument, CallerCompleter(self._access.complete_topic))

    def _prompt(self, body: Body, name: str) -> LazyPrompt:
        return LazyPrompt(lambda: self._access.wrap(body, f"the prompt {name}"), name=name)

    def _text(self, name: str, **values: Any) -> str:
        return texts.load_markdown_sections(PROMPTS)[name].format(p=self._access.prefix, **values)

    # The texts of this prompt are those of the documented system that the subcog profile reproduces.
    async def _capture(self, ctx: Context, content: Annotated[str, "Content to capture"]) -> str:
        """Guided memory capture"""
        best = suggest_namespace(content)
        others = ", ".join(name for name in WRITABLE_NAMESPACES if name != best)
        return self._text("capture", content=content, suggested=best, others=others)

    async def _recall(self, ctx: Context, query: Annotated[str, "Question to answer"]) -> str:
        """Search memory and answer from the results"""
        return self._text("recall", query=query)

    async def _session_start(self, ctx: Context) -> str:
        """Start a session with relevant memories"""
        # The newest instead of a search: at the start of a session there is nothing to search for yet.
        newest = await self._memories(ctx, "", SHOWN)
        memory_lines = "\n".join(
            f"- [{item.namespace}{format_provenance(item)}] {texts.truncate_preview(item.content, 200)} ({item.id})"
            for item in newest
        )
        return self._text("session_start", known=memory_lines or "(nothing yet)")

    async def _browse(
        self,
        ctx: Context,
        filter: Annotated[str, "Filter expression, e.g. ns:decisions since:7d"] = "",
        view: Annotated[Literal["dashboard", "list"], "dashboard (default) or list"] = "dashboard",
        top: Annotated[int, Meta(ge=1, le=100), "Number of memories"] = SHOWN,
    ) -> str:
        """Browse memories"""
        shape = "a dashboard: counts by namespace, the most frequent tags, then" if view == "dashboard" else "a list:"
        return self._text("browse", narrowed=_describe_filter(filter), view=shape, top=top)

    async def _list(
        self,
        ctx: Context,
        filter: Annotated[str, "Filter expression, e.g. tag:database"] = "",
        format: Annotated[Literal["table", "list"], "table (default) or list"] = "table",
        limit: Annotated[int, Meta(ge=1, le=1000), "Number of memories"] = 50,
    ) -> str:
        """List memories"""
        return self._text("list", narrowed=_describe_filter(filter), format=format, limit=limit)

    async def _review(
        self,
        ctx: Context,
        namespace: Annotated[str, "Namespace; default all"] = "",
        action: Annotated[
            Literal["summarize", "consolidate", "archive", "cleanup"],
            "summarize (default), consolidate, archive or cleanup",
        ] = "summarize",
    ) -> str:
        """Review memories and clean them up"""
        memories = await self._memories(
            ctx, f"ns:{validate_readable_namespace(namespace)}" if namespace else "", MAX_REVIEW_MEMORIES
        )
        memory_lines = "\n".join(
            f"- {memory.id} v{memory.version}{format_provenance(memory)} [{', '.join(memory.tags)}] "
            f"{texts.truncate_preview(memory.content, 200)}"
            for memory in memories
        )
        instructions = _REVIEW_INSTRUCTIONS[action].format(p=self._access.prefix)
        return self._text(
            "review", place=namespace or "all namespaces", known=memory_lines or "(there are none)", action=instructions
        )

    async def _tutorial(
        self,
        ctx: Context,
        familiarity: Annotated[
            Literal["beginner", "intermediate", "advanced"], "beginner, intermediate or advanced"
        ] = "beginner",
        focus: Annotated[
            Literal["overview", "capture", "search", "workflows"], "overview (default), capture, search or workflows"
        ] = "overview",
    ) -> str:
        """Learn how to use this memory"""
        about = help_topic(focus, self._access.prefix) or help_page(self._access.prefix)
        return self._text("tutorial", familiarity=familiarity, about=about)

    async def _decision(
        self,
        ctx: Context,
        decision: Annotated[str, "Decision"],
        context: Annotated[str, "Background"] = "",
        alternatives: Annotated[str, "Rejected alternatives"] = "",
    ) -> str:
        """Document a decision and store it"""
        # The prompt asks the user for missing parts instead of letting the model invent them.
        context, alternatives = context or "(ask me)", alternatives or "(ask me)"
        return self._text("generate_decision", decision=decision, context=context, alternatives=alternatives)

    async def _generate_tutorial(
        self,
        ctx: Context,
        topic: Annotated[str, "Topic"],
        level: Annotated[
            Literal["beginner", "intermediate", "advanced"], "beginner (default), intermediate or advanced"
        ] = "beginner",
        format: Annotated[Literal["markdown", "outline", "steps"], "markdown (default), outline or steps"] = "markdown",
    ) -> str:
        """Write a tutorial from stored memories"""
        memory_lines = await self._format_matches(ctx, topic)
        return self._text("generate_tutorial", topic=topic, level=level, shape=_SHAPES[format], known=memory_lines)

    async def _intent_search(
        self,
        ctx: Context,
        query: Annotated[str, "Question"],
        intent: Annotated[str, "howto, location, explanation, comparison, troubleshoot or general"] = "",
        context: Annotated[str, "Topic"] = "",
    ) -> str:
        """Search by the intent behind a question"""
        if not intent:
            # Imported here because only this prompt needs it.
            from portico_services.memory.extras import intent as intents

            intent = (await intents.detect_intent(query, self._models.for_call(ctx))).intent
        return self._text("intent_search", query=query, intent=intent, context=context or "(none)")

    async def _query_suggest(
        self,
        ctx: Context,
        query: Annotated[str, "Current query"],
        namespace: Annotated[str, "Namespace; default all"] = "",
    ) -> str:
        """Suggest better search queries"""
        memories = await self._access.store(ctx)
        # Tags in use, so that suggested queries contain words that can match.
        topics = ", ".join(await memories.read(lambda tx: statistics.list_topics(tx, 30, owner=memories.owner)))
        scope = f" in {validate_readable_namespace(namespace)}" if namespace else ""
        return self._text("query_suggest", query=query, scope=scope, topics=topics or "(none)")

    async def _context_capture(
        self,
        ctx: Context,
        conversation: Annotated[str, "Conversation text"],
        threshold: Annotated[str, "Minimum confidence, 0 to 1; default 0.7"] = "0.7",
    ) -> str:
        """Extract facts worth storing from a conversation"""
        return self._text("context_capture", conversation=conversation, threshold=threshold)

    async def _discover(
        self,
        ctx: Context,
        topic: Annotated[str, "Start topic"] = "",
        tag: Annotated[str, "Start tag"] = "",
    ) -> str:
        """Explore related memories and topics"""
        about = topic or (f"the tag {tag}" if tag else "anything")
        return self._text("discover", about=about, known=await self._format_matches(ctx, topic, tag))

    async def _format_matches(self, ctx: Context, words: str, tag: str = "") -> str:
        """Return the memories that match, one line each."""
        memories = await self._memories(ctx, words, SHOWN, tag)
        lines = (
            f"- {memory.id} [{memory.namespace}{format_provenance(memory)}] "
            f"{texts.truncate_preview(memory.content, 160)}"
            for memory in memories
        )
        return "\n".join(lines) or "(nothing was found)"

    async def _memories(self, ctx: Context, words: str, limit: int, tag: str = "") -> list[MemoryRecord]:
        memories = await self._access.store(ctx)
        page = await memories.recall("", memories.filter(words).with_condition("tag", tag or None), limit=limit)
        return [hit.record for hit in page.hits]


def _describe_filter(filter: str) -> str:
    return f" with the filter {filter!r}" if filter else ""
