"""The tools that look after memories: putting in order, sharing, moving, forgetting."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from portico import Context, __version__
from portico_services import text as texts
from portico_services import timestamps
from portico_services.database_service import copied, requester
from portico_services.memory import export_import
from portico_services.memory.errors import InvalidInput
from portico_services.memory.export_import import LONGEST_IMPORT, MOST_EXPORTED, Brought
from portico_services.memory.extras import consolidation, enrichment, saved_prompts
from portico_services.memory.extras import graph as graphs
from portico_services.memory.extras import intent as intents
from portico_services.memory.extras.consolidation import Strategy
from portico_services.memory.extras.model_fallback import ModelLadder
from portico_services.memory.extras.saved_prompts import PromptVariable
from portico_services.memory.store import garbage_collection, validation
from portico_services.memory.store.entities import Kind
from portico_services.memory.store.filters import LONGEST as LONGEST_FILTER
from portico_services.memory.store.filters import Condition
from portico_services.memory.store.garbage_collection import Collected
from portico_services.memory.store.namespaces import checked_namespace
from portico_services.memory.sync import engine as sync
from portico_services.memory.sync.engine import Direction, Synced
from portico_services.memory.sync.serialization import Format
from portico_services.memory.tools.context import Access, FilterChoice, Id
from portico_services.memory.tools.dynamic_components import ServerListings

DryRun = Annotated[bool, "Only say what would be done"]


class Group(Struct, frozen=True):
    """Memories that would become one."""

    ids: Annotated[list[str], "Their ids"]
    content: Annotated[str, "What they would say together"]
    by: Annotated[str, "Who found the words: a model or a rule"]


class Consolidated(Struct, frozen=True, kw_only=True, omit_defaults=True):
    looked_at: Annotated[int, "How many were looked at"]
    groups: Annotated[list[Group], "Those that become one"]
    dry_run: Annotated[bool, "Whether nothing was done"]
    note: Annotated[str, "What was left out, or what to do"]
    run: Annotated[str | None, "What takes it back"] = None
    kept: Annotated[list[str], "The ids of the memories that say it now"] = field(default_factory=list)
    superseded: Annotated[list[str], "The ids of those that gave way"] = field(default_factory=list)
    left_out: Annotated[list[str], "The ids of similar memories that contradict others: nothing is done with them"] = (
        field(default_factory=list)
    )


class Enriched(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: Annotated[str, "Its id"]
    tags: Annotated[list[str], "Its tags now"]
    added_tags: Annotated[list[str], "The tags that are new"]
    content: Annotated[str, "What it says now"]
    entities: Annotated[list[str], "The people, things and places it speaks of"]
    by: Annotated[str, "Who found them: a model or a rule"]
    dry_run: Annotated[bool, "Whether nothing was done"]
    note: Annotated[str | None, "What could not be done"] = None


class Exported(Struct, frozen=True, kw_only=True, omit_defaults=True):
    format: Annotated[str, "The format of the data"]
    count: Annotated[int, "How many memories are in it"]
    data: Annotated[str, "The memories in this format"]
    next_cursor: Annotated[str | None, "Pass it as cursor for the next part; null on the last"] = field(
        default=None, name="nextCursor"
    )


class Saved(Struct, frozen=True, kw_only=True):
    name: Annotated[str, "Its name"]
    domain: Annotated[str, "Whose it is"]
    description: Annotated[str, "What it is for"]
    variables: Annotated[dict[str, PromptVariable], "What is filled in, by name"]
    version: Annotated[int, "How often it was changed, from 1"]
    content: Annotated[str, "Its text"]


class Prompts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    prompts: Annotated[list[Saved], "The prompts"] = field(default_factory=list)
    text: Annotated[str | None, "The prompt with everything filled in"] = None
    note: Annotated[str | None, "What was done, or what to do"] = None


class Drawn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    nodes: Annotated[list[graphs.EntityNode], "The people, things and places"]
    edges: Annotated[list[graphs.Edge], "How they belong together"]
    picture: Annotated[str | None, "The same as a diagram of Mermaid"] = None
    note: Annotated[str | None, "What was left out, or what to do"] = None


class Count(Struct, frozen=True, kw_only=True):
    count: Annotated[int, "How many"]
    note: Annotated[str, "What was done"]


class IntentFound(Struct, frozen=True, kw_only=True):
    intent: Annotated[intents.Intent, "What is wanted"]
    by: Annotated[str, "Who found it out: client, provider or local"]
    namespaces: Annotated[list[str], "Where the answers to such questions are"]


class UpkeepTools:
    def __init__(self, access: Access, models: ModelLadder, listings: ServerListings) -> None:
        self._access = access
        self._models = models
        self._listings = listings

    async def consolidate(
        self,
        ctx: Context,
        namespaces: Annotated[list[str] | None, "Only these namespaces"] = None,
        strategy: Annotated[
            Strategy,
            "merge: one of them takes over what the others add; summarize: a new memory; dedupe: the newest stays",
        ] = "merge",
        query: Annotated[str | None, "Only memories found by this filter, such as tag:db"] = None,
        days: Annotated[int | None, Meta(ge=1, le=36_500, description="Only of the last days")] = None,
        min_memories: Annotated[int, Meta(ge=2, le=20, description="The smallest group")] = 2,
        similarity: Annotated[
            float, Meta(gt=0, le=1, description="How alike they must be")
        ] = consolidation.USUAL_LIKENESS,
        include_conflicts: Annotated[
            bool, "Also those that contradict each other: the newest wins. Left out otherwise"
        ] = False,
        dry_run: DryRun = True,
        undo: Annotated[str | None, "Take back this run: the run that an earlier call answered with"] = None,
    ) -> Consolidated:
        """Put together memories that say nearly the same. Run it dry first; a run can be taken back with undo.

        Memories that contradict others are left out: decide those with memory_conflicts.
        """
        if undo is not None:
            back = await consolidation.undo(await self._access.writable(ctx), undo, who=requester(ctx))
            return Consolidated(looked_at=0, groups=[], dry_run=False, kept=back, note="Taken back.")
        memories = await (self._access.memories(ctx) if dry_run else self._access.writable(ctx))
        wanted = memories.filter(query)
        if namespaces:
            values = tuple(checked_namespace(one) for one in namespaces)
            wanted = replace(wanted, conditions=(*wanted.conditions, Condition("ns", values)))
        if days is not None:
            since = timestamps.now() - days * 86_400 * timestamps.SECOND_MS
            wanted = replace(wanted, since=max(since, wanted.since or 0))
        plan = await consolidation.plan(
            memories,
            wanted,
            strategy=strategy,
            similarity=similarity,
            least=min_memories,
            ask=self._models.ask(ctx),
            include_conflicts=include_conflicts,
        )
        contradicting = self._about_conflicts(plan.left_out)
        groups = [
            Group([one.id for one in each.members], texts.preview(each.content, 500), each.by) for each in plan.clusters
        ]
        if dry_run:
            note = "Nothing was changed. Call it again with dry_run=false." if groups else "Nothing belongs together."
            return Consolidated(
                looked_at=plan.looked_at, groups=groups, dry_run=True, note=note + contradicting, left_out=plan.left_out
            )
        done = await consolidation.carry_out(memories, plan, who=requester(ctx))
        return Consolidated(
            looked_at=plan.looked_at,
            groups=groups,
            dry_run=False,
            run=done.run,
            kept=done.kept,
            superseded=done.superseded,
            note=(f"Call it with undo={done.run} to take it back." if done.kept else "Nothing was changed.")
            + contradicting,
            left_out=plan.left_out,
        )

    def _about_conflicts(self, left_out: list[str]) -> str:
        if not left_out:
            return ""
        prefix = self._access.prefix
        return (
            f" {len(left_out)} were left out because they contradict others: decide with {prefix}_conflicts, or pass "
            "include_conflicts=true."
        )

    async def enrich(
        self,
        ctx: Context,
        memory_id: Id,
        enrich_tags: Annotated[bool, "Add tags"] = True,
        enrich_structure: Annotated[bool, "Write it more clearly, if there is a model to do that"] = False,
        add_context: Annotated[bool, "Add what related memories say"] = False,
        dry_run: DryRun = False,
    ) -> Enriched:
        """Make a memory easier to find: tags, and if wanted a clearer text and its context.

        Asks the client's model where it can be asked, and goes by rules where not. Only a model can write a clearer
        text.
        """
        memories = await (self._access.memories(ctx) if dry_run else self._access.writable(ctx))
        proposed = await enrichment.enrich(
            memories,
            memory_id,
            tags=enrich_tags,
            structure=enrich_structure,
            context=add_context,
            ask=self._models.ask(ctx),
        )
        after = proposed.record if dry_run else await enrichment.apply(memories, proposed, who=requester(ctx))
        return Enriched(
            id=after.id,
            tags=[*proposed.record.tags, *proposed.tags],
            added_tags=proposed.tags,
            content=proposed.content,
            entities=proposed.entities,
            by=proposed.by,
            dry_run=dry_run,
            note=_left_undone(proposed),
        )

    async def intent(
        self,
        ctx: Context,
        query: Annotated[str, Meta(min_length=1, max_length=LONGEST_FILTER, description="The question")],
    ) -> IntentFound:
        """What a question is after: how to do something, where it is, why it is so, which is better, or what is wrong.
        Asks the client's model where it can be asked, and goes by the words where not."""
        found = await intents.detect(query, self._models.ask(ctx))
        return IntentFound(intent=found.intent, by=found.by, namespaces=list(intents.NAMESPACES[found.intent]))

    async def gc(
        self,
        ctx: Context,
        dry_run: DryRun = True,
        branch: Annotated[str | None, "Archive the memories of this branch, which is done with"] = None,
        purge: Annotated[bool, "Remove for good what was deleted long ago"] = False,
        older_than: Annotated[str | None, "How long ago: 30d when left out"] = None,
    ) -> Collected:
        """Collect what has expired, what belongs to a finished branch, and what was deleted long ago."""
        memories = await (self._access.memories(ctx) if dry_run else self._access.writable(ctx))
        return await garbage_collection.collect(
            memories, dry_run=dry_run, branch=branch, purge=purge, older_than=older_than, done=ctx.report_progress
        )

    async def sync(
        self,
        ctx: Context,
        direction: Annotated[Direction, "push: send ours; fetch: take theirs; full: both"] = "full",
        remote: Annotated[str | None, "A remote of the repository; origin when left out"] = None,
        confirm: Annotated[bool, "Also if others have removed many memories, which are then deleted here"] = False,
        undo: Annotated[
            str | None, "Bring back what an earlier sync has deleted here: the run it answered with"
        ] = None,
    ) -> Synced:
        """Share the project's memories with its other clones, through a ref of its git repository.

        What was changed on both sides is merged; what could not be is listed in conflicts, and the text that lost is in
        the memory's history. What comes from others says so: origin names the commit and its author.
        """
        memories = await self._access.writable(ctx)
        if undo is not None:
            back = await sync.undo(memories, undo, who=requester(ctx))
            return Synced(remote=remote or "", restored=len(back))
        guard = self._access.guard
        return await sync.sync(
            memories,
            direction=direction,
            remote=remote,
            screen=guard.passed,
            lens=f"{__version__} {guard.rules}",
            who=requester(ctx),
            confirm=confirm,
        )

    async def export(
        self,
        ctx: Context,
        filter: FilterChoice = None,
        format: Annotated[Format, "jsonl: one memory a line; markdown: for people"] = "jsonl",
        limit: Annotated[int, Meta(ge=1, le=MOST_EXPORTED, description="At most so many")] = 100,
        cursor: Annotated[str | None, "nextCursor of the answer before"] = None,
    ) -> Exported:
        """Return memories as a text that memory_import reads: those of this project, the user and the organisation.
        The filter project:* adds those of all other projects."""
        memories = await self._access.memories(ctx)
        after = None if cursor is None else validation.behind(cursor)
        data, count, last = await export_import.export(
            memories, memories.filter(filter), format, limit=limit, after=after
        )
        return Exported(format=format, count=count, data=data, next_cursor=last and validation.cursor_behind(last))

    async def import_(
        self,
        ctx: Context,
        data: Annotated[str, Meta(max_length=LONGEST_IMPORT, description="What memory_export gave")],
        format: Annotated[Format, "As it was exported"] = "jsonl",
        dry_run: DryRun = False,
    ) -> Brought:
        """Take in what memory_export gave. What is here already is changed only by a newer version of itself."""
        memories = await (self._access.memories(ctx) if dry_run else self._access.writable(ctx))
        return await export_import.bring(
            memories,
            data,
            format,
            screen=self._access.guard.passed,
            who=requester(ctx),
            dry_run=dry_run,
            done=ctx.report_progress,
        )

    async def prompts(
        self,
        ctx: Context,
        action: Annotated[Literal["list", "get", "save", "run", "render", "delete"], "render is run"] = "list",
        name: Annotated[str | None, "The prompt's name"] = None,
        content: Annotated[str | None, "For save: the text, with places to fill in such as {{file}}"] = None,
        description: Annotated[str, "For save: what it is for"] = "",
        variables_def: Annotated[dict[str, PromptVariable] | None, "For save: what the places are"] = None,
        variables: Annotated[dict[str, str] | None, "For run: what to fill in"] = None,
        domain: Annotated[Literal["project", "user", "org", "global"], "For save: whose it is"] = "project",
    ) -> Prompts:
        """Keep prompts with places to fill in. Each saved one is also a prompt of this server."""
        if action == "list":
            memories = await self._access.memories(ctx)
            found = await memories.read(lambda tx: saved_prompts.visible(tx, memories.homes, memories.owner))
            return Prompts(prompts=[copied(one, Saved, timestamps.written) for one in found])
        if name is None:
            raise InvalidInput(f"The action {action} needs the name of a prompt.")
        if action == "save":
            return await self._save_prompt(ctx, name, content, description, variables_def or {}, domain)
        memories = await (self._access.writable(ctx) if action == "delete" else self._access.memories(ctx))
        found_one = await memories.read(lambda tx: saved_prompts.get(tx, name, memories.homes, memories.owner))
        if action in ("run", "render"):
            return Prompts(text=saved_prompts.filled(found_one, variables or {}))
        if action == "delete":
            await memories.write(lambda tx: saved_prompts.delete(tx, found_one))
            await self._listings.refresh_prompts(await self._access.shared_memories())
            return Prompts(note=f"The prompt {name} is deleted.")
        return Prompts(prompts=[copied(found_one, Saved, timestamps.written)])

    async def _save_prompt(
        self,
        ctx: Context,
        name: str,
        content: str | None,
        description: str,
        variables: dict[str, PromptVariable],
        domain: str,
    ) -> Prompts:
        memories = await self._access.writable(ctx)
        if self._listings.is_taken(name):
            raise InvalidInput(f"The server has a prompt {name!r} of its own. Choose another name.")
        checked = await self._access.guard.check(
            saved_prompts.bounded(content or ""), saved_prompts.bounded(description, "A description")
        )
        kept, about = checked.texts
        template = saved_prompts.made(
            domain=domain,
            project=memories.project,
            name=name,
            content=kept,
            description=about,
            variables=variables,
            now=timestamps.now(),
            owner=memories.owner,
        )
        saved = await memories.write(lambda tx: saved_prompts.save(tx, template))
        # The event of this change comes later than the answer, and the client may use the prompt at once.
        await self._listings.refresh_prompts(await self._access.shared_memories())
        note = f"It can be used as the prompt {name}."
        if not self._listings.lists_prompt(ctx.server, saved):
            note = "It is not in the list of prompts, which is the same for all clients: use it with the action run."
        return Prompts(prompts=[copied(saved, Saved, timestamps.written)], note=note)

    async def graph(
        self,
        ctx: Context,
        operation: Annotated[
            Literal["entities", "neighbors", "path", "visualize"], "entities: list them; path: from entity to to_entity"
        ] = "entities",
        entity: Annotated[str | None, "A person, technology, file, …"] = None,
        to_entity: Annotated[str | None, "For path: where to"] = None,
        kind: Annotated[Kind | None, "For entities: only these"] = None,
        depth: Annotated[int, Meta(ge=1, le=graphs.MOST_DEPTH, description="How far from it")] = 1,
        format: Annotated[graphs.Picture, "For visualize: how to draw it"] = "mermaid",
        limit: Annotated[int, Meta(ge=1, le=graphs.MOST_EDGES, description="At most so many")] = 50,
    ) -> Drawn:
        """Who and what memories speak of, and how it hangs together. The filter entity: finds the memories."""
        memories = await self._access.memories(ctx)
        if operation == "entities":
            return Drawn(
                nodes=await memories.read(lambda tx: graphs.entities(tx, kind, limit, owner=memories.owner)), edges=[]
            )
        if entity is None or (operation == "path" and to_entity is None):
            raise InvalidInput(
                f"The operation {operation} needs entity{' and to_entity' if operation == 'path' else ''}."
            )
        start, end = entity, to_entity or ""
        if operation == "path":
            found = await memories.read(lambda tx: graphs.path(tx, start, end, owner=memories.owner))
            note = None if found.nodes else "There is no way from one to the other."
            return Drawn(nodes=found.nodes, edges=found.edges, note=note)
        found = await memories.read(lambda tx: graphs.neighbours(tx, start, depth, limit, owner=memories.owner))
        picture = graphs.drawn(found, format) if operation == "visualize" else None
        return Drawn(nodes=found.nodes, edges=found.edges, picture=picture)

    async def erase(
        self,
        ctx: Context,
        memory_id: Annotated[str | None, "One memory"] = None,
        author: Annotated[str | None, "Everything that one author said"] = None,
        filter: FilterChoice = None,
        confirm: Annotated[bool, "Nothing is erased without it"] = False,
    ) -> Count:
        """Erase memories for good, with their histories and whatever was noted about them, as the law may demand."""
        memories = await self._access.writable(ctx)
        if not confirm:
            raise InvalidInput("This cannot be undone. Ask the user, then call it again with confirm=true.")
        wanted = None if filter is None else memories.filter(f"project:* {filter}")
        count = await garbage_collection.erase(
            memories, id=memory_id, author=author, filter=wanted, done=ctx.report_progress
        )
        return Count(count=count, note="They are gone. Clones that were synced with delete them at their next sync.")

    async def reindex(self, ctx: Context) -> Count:
        """Build the index anew from the memories themselves."""
        memories = await self._access.writable(ctx)

        def done(count: int, total: int) -> None:
            ctx.report_progress(count, total)

        return Count(count=await memories.reindex(done), note="The index is new.")


def _left_undone(proposed: enrichment.Enrichment) -> str | None:
    """Return what an enrichment did not do, None if it did all that was asked for."""
    parts = ["No model wrote a clearer text."] if proposed.not_written else []
    if proposed.changes_nothing:
        parts.append("Nothing was changed.")
    return " ".join(parts) or None
