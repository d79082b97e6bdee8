"""The prompts, ways of working with memory that a person can start, and the help. Their texts are in Markdown files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from portico import Context
from portico._lazy import LazyModule
from portico.extend import CallerCompleter, Completer, Completes, Component, LatePrompt
from portico_services import text as texts
from portico_services.database_service import among
from portico_services.memory.extras.model_fallback import ModelLadder
from portico_services.memory.store import statistics
from portico_services.memory.store.namespaces import NAMESPACES, WRITABLE, known_namespace, suggested
from portico_services.memory.store.records import Record, whence
from portico_services.memory.tools.context import Access
from portico_services.memory.tools.wrapper import Body

if TYPE_CHECKING:
    from portico_services.memory.extras import intent as intents
else:
    intents = LazyModule("portico_services.memory.extras.intent")

SHOWN, REVIEWED = 10, 50
HELP, PROMPTS = Path(__file__).with_name("help.md"), Path(__file__).with_name("prompts.md")
_REVIEWS = {
    "summarize": "Summarise them in a few sentences.",
    "consolidate": "Say which belong together, then run {p}_consolidate dry and show what it would do.",
    "archive": "Say which are out of date and why, and after my consent archive them with {p}_update.",
    "cleanup": "Say which are wrong, double or empty, and after my consent delete them with {p}_delete.",
}
_SHAPES = {"markdown": "as Markdown", "outline": "as an outline", "steps": "as numbered steps"}


class MemoryPrompts:
    def __init__(self, access: Access, models: ModelLadder) -> None:
        self._access = access
        self._models = models

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
            yield self._prompt(fn, f"{self._access.prefix}_{name}")
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
            yield Completes(name, argument, Completer(among(NAMESPACES)))
        for name, argument in (("discover", "topic"), ("discover", "tag")):
            yield Completes(name, argument, CallerCompleter(self._access.complete_topic))

    def _prompt(self, body: Body, name: str) -> LatePrompt:
        return LatePrompt(lambda: self._access.speaking(body, f"the prompt {name}"), name=name)

    def _text(self, name: str, **values: Any) -> str:
        return texts.sections(PROMPTS)[name].format(p=self._access.prefix, **values)

    async def _capture(self, ctx: Context, content: Annotated[str, "Content to capture"]) -> str:
        """Guided memory capture"""
        best = suggested(content)
        others = ", ".join(name for name in WRITABLE if name != best)
        return self._text("capture", content=content, suggested=best, others=others)

    async def _recall(self, ctx: Context, query: Annotated[str, "What to find out"]) -> str:
        """Guided search in memory"""
        return self._text("recall", query=query)

    async def _session_start(self, ctx: Context) -> str:
        """Begin a session with what is known"""
        newest = await self._memories(ctx, "", SHOWN)
        known = "\n".join(
            f"- [{one.namespace}{whence(one)}] {texts.preview(one.content, 200)} ({one.id})" for one in newest
        )
        return self._text("session_start", known=known or "(nothing yet)")

    async def _browse(
        self,
        ctx: Context,
        filter: Annotated[str, "Which memories, such as ns:decisions since:7d"] = "",
        view: Annotated[Literal["dashboard", "list"], "How to show them"] = "dashboard",
        top: Annotated[int, Meta(ge=1, le=100), "How many"] = SHOWN,
    ) -> str:
        """Look around in memory"""
        shape = "a dashboard: counts by namespace, the most frequent tags, then" if view == "dashboard" else "a list:"
        return self._text("browse", narrowed=_narrowed(filter), view=shape, top=top)

    async def _list(
        self,
        ctx: Context,
        filter: Annotated[str, "Which memories, such as tag:database"] = "",
        format: Annotated[Literal["table", "list"], "How to show them"] = "table",
        limit: Annotated[int, Meta(ge=1, le=1000), "How many"] = 50,
    ) -> str:
        """List memories"""
        return self._text("list", narrowed=_narrowed(filter), format=format, limit=limit)

    async def _review(
        self,
        ctx: Context,
        namespace: Annotated[str, "Only this namespace"] = "",
        action: Annotated[
            Literal["summarize", "consolidate", "archive", "cleanup"], "What to do with them"
        ] = "summarize",
    ) -> str:
        """Go through memories and put them in order"""
        memories = await self._memories(ctx, f"ns:{known_namespace(namespace)}" if namespace else "", REVIEWED)
        known = "\n".join(
            f"- {one.id} v{one.version}{whence(one)} [{', '.join(one.tags)}] {texts.preview(one.content, 200)}"
            for one in memories
        )
        asked = _REVIEWS[action].format(p=self._access.prefix)
        return self._text(
            "review", place=namespace or "all namespaces", known=known or "(there are none)", action=asked
        )

    async def _tutorial(
        self,
        ctx: Context,
        familiarity: Annotated[
            Literal["beginner", "intermediate", "advanced"], "How much is known already"
        ] = "beginner",
        focus: Annotated[Literal["overview", "capture", "search", "workflows"], "What about"] = "overview",
    ) -> str:
        """Learn to use this memory"""
        about = help_topic(focus, self._access.prefix) or help_page(self._access.prefix)
        return self._text("tutorial", familiarity=familiarity, about=about)

    async def _decision(
        self,
        ctx: Context,
        decision: Annotated[str, "What was decided"],
        context: Annotated[str, "What led to it"] = "",
        alternatives: Annotated[str, "What else was considered"] = "",
    ) -> str:
        """Document a decision"""
        context, alternatives = context or "(ask me)", alternatives or "(ask me)"
        return self._text("generate_decision", decision=decision, context=context, alternatives=alternatives)

    async def _generate_tutorial(
        self,
        ctx: Context,
        topic: Annotated[str, "What it is to be about"],
        level: Annotated[Literal["beginner", "intermediate", "advanced"], "For whom"] = "beginner",
        format: Annotated[Literal["markdown", "outline", "steps"], "How it is to be written"] = "markdown",
    ) -> str:
        """Write a tutorial out of what is remembered"""
        known = await self._known(ctx, topic)
        return self._text("generate_tutorial", topic=topic, level=level, shape=_SHAPES[format], known=known)

    async def _intent_search(
        self,
        ctx: Context,
        query: Annotated[str, "What to look for"],
        intent: Annotated[str, "What it is for: how to, where, why"] = "",
        context: Annotated[str, "What it is about"] = "",
    ) -> str:
        """Search for what is meant, not only for what is said"""
        if not intent:
            intent = (await intents.detect(query, self._models.ask(ctx))).intent
        return self._text("intent_search", query=query, intent=intent, context=context or "(none)")

    async def _query_suggest(
        self, ctx: Context, query: Annotated[str, "A search"], namespace: Annotated[str, "Only in this namespace"] = ""
    ) -> str:
        """Better searches"""
        memories = await self._access.memories(ctx)
        topics = ", ".join(await memories.read(lambda tx: statistics.topics(tx, 30, owner=memories.owner)))
        scope = f" in {known_namespace(namespace)}" if namespace else ""
        return self._text("query_suggest", query=query, scope=scope, topics=topics or "(none)")

    async def _context_capture(
        self,
        ctx: Context,
        conversation: Annotated[str, "A conversation, or a part of one"],
        threshold: Annotated[str, "How sure to be, 0 to 1"] = "0.7",
    ) -> str:
        """Pick what is worth remembering out of a conversation"""
        return self._text("context_capture", conversation=conversation, threshold=threshold)

    async def _discover(
        self,
        ctx: Context,
        topic: Annotated[str, "Where to begin"] = "",
        tag: Annotated[str, "A tag to begin with"] = "",
    ) -> str:
        """See what hangs together"""
        about = topic or (f"the tag {tag}" if tag else "anything")
        return self._text("discover", about=about, known=await self._known(ctx, topic, tag))

    async def _known(self, ctx: Context, words: str, tag: str = "") -> str:
        memories = await self._memories(ctx, words, SHOWN, tag)
        lines = (f"- {one.id} [{one.namespace}{whence(one)}] {texts.preview(one.content, 160)}" for one in memories)
        return "\n".join(lines) or "(nothing was found)"

    async def _memories(self, ctx: Context, words: str, limit: int, tag: str = "") -> list[Record]:
        memories = await self._access.memories(ctx)
        page = await memories.recall("", memories.filter(words).also("tag", tag or None), limit=limit)
        return [hit.record for hit in page.hits]


def _narrowed(filter: str) -> str:
    return f" with the filter {filter!r}" if filter else ""


# Help


def help_page(prefix: str) -> str:
    parts = ["# Memory", "What should still be known in a later conversation."]
    parts += [f"## {name}\n\n{text.format(p=prefix)}" for name, text in texts.sections(HELP).items()]
    table = "\n".join(f"| {one.name} | {one.about} |" for one in NAMESPACES.values())
    return "\n\n".join([*parts, f"## namespaces\n\n| name | for |\n|---|---|\n{table}\n"])


def beginning(prefix: str) -> str:
    """In a few lines what an assistant has to know; the whole is in the help."""
    topics = texts.sections(HELP)
    return "\n".join(f"{name}: {topics[name].format(p=prefix)}" for name in ("workflows", "capture", "search"))


def help_topic(topic: str, prefix: str) -> str | None:
    text = texts.sections(HELP).get(topic)
    return None if text is None else f"# {topic}\n\n{text.format(p=prefix)}\n"
