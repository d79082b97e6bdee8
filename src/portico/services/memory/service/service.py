"""Memory as tools, resources and prompts. This and its neighbours `service_*` know that there is a protocol; the rest
of the folder does not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from portico.server.context import Context
from portico.server.service import Offered
from portico.server.tools import Tool
from portico.services.memory.errors import UnknownNamespace
from portico.services.memory.service import results
from portico.services.memory.service.models import Provider, provider_named
from portico.services.memory.service.opening import Codes, answered, who
from portico.services.memory.service.prompts import Prompting
from portico.services.memory.service.resources import Reading
from portico.services.memory.service.upkeep import Upkeep, position
from portico.services.memory.share import repository
from portico.services.memory.store import moments, screening_policy, statistics, texts
from portico.services.memory.store.capture import Draft, OnDuplicate
from portico.services.memory.store.filters import LONGEST as LONGEST_FILTER
from portico.services.memory.store.memories import MOST_RESULTS
from portico.services.memory.store.namespaces import NAMESPACES, WRITABLE, checked_namespace
from portico.wire.errors import UsageError

LIST_LIMIT, SEARCH_LIMIT = 50, 10

Content = Annotated[
    str, Meta(min_length=1, description="What is to be remembered: one fact, decision or finding, in full sentences")
]
# The schema names them; that an unknown one is refused in our own words is our business.
NamespaceName = Annotated[str, Meta(extra_json_schema={"enum": list(WRITABLE)})]
Id = Annotated[str, Meta(min_length=1, max_length=300, description="The id of a memory, or its URN")]
Tags = Annotated[list[str] | None, "Words to find it by, such as database or auth"]
FilterText = Annotated[
    str | None,
    Meta(
        max_length=LONGEST_FILTER,
        description="Conditions, with spaces: ns:decisions tag:db,sql -tag:old since:7d until:2026-01-31 source: "
        "project: branch: path:src/ status: author: thread: entity:. A comma is or; a key twice is and",
    ),
]
DomainName = Annotated[
    Literal["project", "user", "org"], "Who it belongs to: this project, the user everywhere, or the organisation"
]

READ = {"readOnlyHint": True, "openWorldHint": False}
WRITE = {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False}
DESTROY = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": False}


class Named(NamedTuple):
    """A tool: its name behind the prefix, its hints, and whether it is listed as a rule."""

    name: str
    hints: Mapping[str, Any]
    usual: bool = True
    also: tuple[str, ...] = ()
    # Where the name is none that a method can have.
    method: str = ""
    # Names that it is known by elsewhere, without a prefix.
    alone: tuple[str, ...] = ()


class Memory(Upkeep, Reading, Prompting):
    """What an assistant should still know tomorrow: `server.add(Memory("memory.db"))`.

    `store` is a path or a URL, of SQLite or PostgreSQL. `offered` says whether to list the usual tools or all of them.
    `secrets` and `personal` say what becomes of secrets and of personal data in what is to be stored, `screening` what
    becomes of some by name. `project` is whose memories are meant by "project"; without it, the git repository that
    `folder` is in says it. `naming` and `codes` are for clients that were written for another server: which names are
    listed, and whether this service's own error numbers are JSON-RPC's on the revision they were made for.
    `provider(question, tokens)` is a model to ask where the client has none; a string names it as `module:function`.
    """

    name = "memory"

    def __init__(
        self,
        store: str | os.PathLike[str] = ":memory:",
        *,
        offered: Literal["usual", "all"] = "usual",
        secrets: screening_policy.Policy = "block",
        personal: screening_policy.Policy = "allow",
        screening: Mapping[str, screening_policy.Policy] | None = None,
        project: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        naming: str = "memory",
        codes: Codes = "result",
        read_only: bool = False,
        provider: Provider | str | None = None,
        models: str | os.PathLike[str] | None = None,
    ) -> None:
        for word, known in ((offered, ("usual", "all")), (codes, ("result", "protocol"))):
            if word not in known:
                raise UsageError(f"{word!r} is none of {', '.join(known)}")
        guard = screening_policy.Guard(secrets, personal, screening)
        super().__init__(
            store,
            guard,
            project=project,
            folder=folder,
            naming=naming,
            codes=codes,
            read_only=read_only,
            models=models,
        )
        self._listed = offered
        self.provider = provider_named(provider)

    # Tools

    @answered
    async def capture(
        self,
        ctx: Context,
        content: Content,
        namespace: Annotated[NamespaceName, "What kind of memory it is"],
        tags: Tags = None,
        source: Annotated[str | None, "Where it comes from: a file, a URL, a ticket"] = None,
        ttl: Annotated[str | None, "How long it is to be kept: 7d, 24h, 60m, 3600s; for ever when left out"] = None,
        domain: DomainName = "project",
        thread: Annotated[
            str | None, "The conversation, file or session it belongs to; its neighbours help to find it"
        ] = None,
        author: Annotated[str | None, "Who said it, such as user, assistant or a name"] = None,
        at: Annotated[str | None, "When it was said or happened, if not now: 2026-01-31T12:00:00Z"] = None,
        branch: Annotated[str | None, "The git branch it is about"] = None,
        path: Annotated[str | None, "The file it is about"] = None,
        on_duplicate: Annotated[
            OnDuplicate,
            "When it is known already: skip (keep the old one), merge (add to it), supersede (replace it), "
            "error, keep (both)",
        ] = "skip",
    ) -> results.Captured:
        """Store a memory: a decision, a finding, a preference, anything worth knowing in a later conversation.

        One thought per memory. Answers with its id and URN, with the memory that says the same if there is one, and
        with memories that seem to say otherwise. Secrets are refused or blacked out.
        """
        memories = await self.writing()
        checked_namespace(namespace)
        passed = await self.guard.check(texts.bounded(content), source, thread, author, branch, path, *(tags or ()))
        kept, kept_source, kept_thread, kept_author, kept_branch, kept_path, *kept_tags = passed.texts
        draft = Draft(
            content=kept,
            namespace=namespace,
            tags=kept_tags,
            domain=domain,
            source=kept_source,
            ttl=ttl,
            thread=kept_thread,
            author=kept_author or None,
            at=at,
            branch=kept_branch or (repository.branch(memories.root) if domain == "project" else None),
            path=repository.within(kept_path, memories.root),
            on_duplicate=on_duplicate,
        )
        taken = await memories.capture(draft, who=who(ctx, draft.author))
        ctx.info(f"Captured memory {taken.record.id}" if taken.is_new else f"Known as {taken.record.id}", self.prefix)
        return results.captured(taken, self.scheme, passed, texts.replaced(content))

    @answered
    async def recall(
        self,
        ctx: Context,
        query: Annotated[
            str | None, "What to look for, in plain words or as a question; left out or *: the newest"
        ] = None,
        filter: FilterText = None,
        namespace: Annotated[NamespaceName | None, "Only of this kind"] = None,
        mode: Annotated[Literal["hybrid", "vector", "text"], "How to look: by words, by meaning, or both"] = "hybrid",
        detail: Annotated[
            Literal["light", "medium", "everything"], "How much of each: a line, a paragraph, or all of it"
        ] = "medium",
        limit: Annotated[
            int | None, Meta(ge=1, le=MOST_RESULTS, description="At most so many; 10 for a search, 50 for a list")
        ] = None,
        offset: Annotated[int, Meta(ge=0, le=1_000_000, description="Leave out so many at the beginning")] = 0,
        cursor: Annotated[str | None, "nextCursor of the answer before, for what comes next"] = None,
        entity: Annotated[str | None, "Only what mentions this person, technology or file"] = None,
        as_of: Annotated[str | None, "What was known at this moment: 2026-01-31T12:00:00Z"] = None,
    ) -> results.Recalled:
        """Find memories by what they say, best first. Without a query, list them, newest first.

        Look here before asking the user something they may have said before, and before deciding anything that may
        have been decided. Content may be cut; memory_get gives all of it.
        """
        memories = await self.memories()
        if namespace is not None and namespace not in NAMESPACES:
            raise UnknownNamespace(namespace, tuple(NAMESPACES))
        wanted = memories.filter(filter).also("ns", namespace).also("entity", entity)
        searching = (query or "").strip() not in ("", "*") or bool(wanted.words)
        count = limit or (SEARCH_LIMIT if searching else LIST_LIMIT)
        start = position(cursor) if cursor is not None else offset
        moment = None if as_of is None else moments.moment(as_of)
        page = await memories.recall(query or "", wanted, limit=count, offset=start, as_of=moment, mode=mode)
        shown = [results.found(hit.record, self.scheme, detail, hit.score if searching else None) for hit in page.hits]
        return results.Recalled(
            count=len(shown),
            memories=shown,
            mode=memories.mode(mode),
            next_cursor=str(start + count) if page.more else None,
        )

    @answered
    async def get(self, ctx: Context, memory_id: Id) -> results.Whole:
        """One memory with all of its content and everything known about it."""
        return results.whole(await (await self.memories()).get(memory_id), self.scheme)

    @answered
    async def update(
        self,
        ctx: Context,
        memory_id: Id,
        content: Annotated[str | None, "The new content; all of it"] = None,
        tags: Annotated[list[str] | None, "The new tags; all of them"] = None,
        namespace: Annotated[NamespaceName | None, "Move it to this namespace"] = None,
        status: Annotated[Literal["active", "archived", "superseded", "pending"] | None, "Its new state"] = None,
        ttl: Annotated[str | None, "From now on, keep it this long: 7d, 24h; 0 for ever"] = None,
        expected_version: Annotated[int | None, "The version you have read; refused if it has changed since"] = None,
        reason: Annotated[str, "Why, for its history"] = "",
    ) -> results.Whole:
        """Change a memory. What it said before stays in its history."""
        memories = await self.writing()
        passed = await self.guard.check(texts.bounded(content or ""), reason, *(tags or ()))
        kept, kept_reason, *kept_tags = passed.texts
        after = await memories.update(
            memory_id,
            content=None if content is None else kept,
            tags=None if tags is None else kept_tags,
            namespace=namespace,
            status=status,
            ttl=ttl,
            expected_version=expected_version,
            who=who(ctx),
            reason=texts.label(kept_reason, "reason") or "",
        )
        return results.whole(after, self.scheme, [*passed.notes(), *texts.replaced(content or "")])

    @answered
    async def delete(
        self,
        ctx: Context,
        memory_id: Id,
        hard: Annotated[bool, "For good, with its history; otherwise memory_restore can bring it back"] = False,
        expected_version: Annotated[int | None, "The version you have read; refused if it has changed since"] = None,
        reason: Annotated[str, "Why, for its history"] = "",
    ) -> results.Deleted:
        """Delete a memory: softly, or for good."""
        memories = await self.writing()
        (kept_reason,) = (await self.guard.check(reason)).texts
        gone = await memories.delete(
            memory_id,
            hard=hard,
            expected_version=expected_version,
            who=who(ctx),
            reason=texts.label(kept_reason, "reason") or "",
        )
        note = "It is gone for good." if hard else f"{self.prefix}_restore brings it back."
        return results.Deleted(id=gone.id, deleted=True, hard=hard, note=note)

    @answered
    async def restore(self, ctx: Context, memory_id: Id) -> results.Whole:
        """Bring back a memory that was deleted, archived, superseded or merged into another."""
        return results.whole(await (await self.writing()).restore(memory_id, who=who(ctx)), self.scheme)

    @answered
    async def history(
        self, ctx: Context, memory_id: Id, limit: Annotated[int, Meta(ge=1, le=MOST_RESULTS)] = 20
    ) -> results.Past:
        """What a memory said before, and who changed it when; the newest change first."""
        return results.past(*await (await self.memories()).history(memory_id, limit))

    @answered
    async def delete_all(
        self,
        ctx: Context,
        filter: Annotated[
            str, Meta(max_length=LONGEST_FILTER, description="Which: as for memory_recall; conditions only")
        ],
        dry_run: Annotated[bool, "Only say what would be deleted"] = True,
        hard: Annotated[bool, "For good, with their histories"] = False,
    ) -> results.Swept:
        """Delete every memory that a filter lets through. Run it dry first, and show the user what would go."""
        memories = await (self.memories() if dry_run else self.writing())
        swept = await memories.delete_all(memories.filter(filter), dry_run=dry_run, hard=hard, who=who(ctx))
        note = "Nothing was deleted. Call it again with dry_run=false." if dry_run else "Deleted."
        return results.Swept(count=swept.count, ids=swept.ids, dry_run=dry_run, note=note)

    @answered
    async def status(self, ctx: Context) -> results.Standing:
        """How many memories there are, of which kinds, and how they are kept."""
        return await self.standing()

    @answered
    async def namespaces(self, ctx: Context) -> results.Namespaces:
        """The namespaces: what each is for, and how many memories it has."""
        counts = await (await self.memories()).read(statistics.counts)
        return results.Namespaces(
            namespaces=[
                results.NamespaceCount(
                    name=one.name,
                    about=one.about,
                    signals=list(one.signals),
                    writable=one.writable,
                    count=counts.by_namespace.get(one.name, 0),
                )
                for one in NAMESPACES.values()
            ]
        )

    # Offering

    def offers(self) -> Iterator[Offered]:
        for one in TOOLS:
            if one.usual or self._listed == "all":
                yield self._tool(one)
        yield from self._resources()
        yield from self._prompts()
        yield from super().offers()

    def _tool(self, named: Named) -> Tool:
        names = (named.name, *named.also)
        aliases = {f"{prefix}{name}" for name in names for prefix in ("memory_", "memory.", "subcog_", "subcog.")}
        aliases |= set(named.alone)
        listed = f"{self.prefix}_{named.name}"
        body = getattr(self, named.method or named.name)
        return Tool(body, name=listed, aliases=sorted(aliases - {listed}), annotations=named.hints)


TOOLS = (
    Named("capture", WRITE),
    Named("recall", READ, also=("list",)),
    Named("get", READ),
    Named("update", DESTROY),
    Named("delete", DESTROY),
    Named("restore", WRITE),
    Named("history", READ),
    Named("delete_all", DESTROY),
    Named("status", READ),
    Named("namespaces", READ),
    Named("consolidate", DESTROY),
    Named("enrich", WRITE),
    Named("conflicts", DESTROY),
    Named("prompts", DESTROY, also=("templates",)),
    Named("graph", READ),
    Named("export", READ, also=("gdpr_export",)),
    Named("import", DESTROY, method="import_"),
    Named("sync", {**DESTROY, "openWorldHint": True}),
    Named("gc", DESTROY, usual=False),
    Named("reindex", {**WRITE, "idempotentHint": True}, usual=False),
    Named("erase", DESTROY, usual=False),
    Named("summary", READ, usual=False, also=("get_summary",)),
    Named("init", READ, usual=False),
    Named("guide", READ, usual=False, alone=("prompt_understanding",)),
)
