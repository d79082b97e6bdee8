"""Tools of the extras: consolidation, enrichment, intent, saved prompts, entity graph, groups and webhooks."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from portico import Context
from portico_services import text as texts, timestamps
from portico_services.database_service import actor_name, copy_to_result
from portico_services.memory.errors import InvalidInput
from portico_services.memory.extras import (
    consolidation,
    enrichment,
    graph as graphs,
    groups,
    intent as intents,
    saved_prompts,
)
from portico_services.memory.extras.consolidation import Strategy
from portico_services.memory.extras.groups import Role, UserGroup
from portico_services.memory.extras.model_fallback import ModelFallback
from portico_services.memory.extras.resources import SummaryDetail, get_summary
from portico_services.memory.extras.saved_prompts import PromptVariable
from portico_services.memory.extras.webhooks import WebhookDispatcher, WebhookStatus
from portico_services.memory.store.entities import EntityKind
from portico_services.memory.store.filters import MAX_FILTER_CHARS, FilterCondition
from portico_services.memory.store.namespaces import validate_namespace
from portico_services.memory.sync import state
from portico_services.memory.tools.context import DryRun, MemoryId, MemoryToolContext
from portico_services.memory.tools.dynamic_components import DynamicComponents


class Group(Struct, frozen=True):
    """Near-duplicate memories to merge."""

    ids: Annotated[list[str], "Memory ids"]
    content: Annotated[str, "Merged content"]
    by: Annotated[str, "Origin of the text: a model or a rule"]


class ConsolidationReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    looked_at: Annotated[int, "Memories compared"]
    groups: Annotated[list[Group], "Groups to merge"]
    dry_run: Annotated[bool, "Whether this was a dry run"]
    note: Annotated[str, "Limitation of the result, or next step"]
    run: Annotated[str | None, "Run id, for undo"] = None
    kept: Annotated[list[str], "Ids of the remaining memories"] = field(default_factory=list)
    superseded: Annotated[list[str], "Ids of superseded memories"] = field(default_factory=list)
    left_out: Annotated[list[str], "Ids of similar memories that were skipped because they contradict others"] = field(
        default_factory=list
    )


class EnrichmentReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: Annotated[str, "Memory id"]
    tags: Annotated[list[str], "All tags"]
    added_tags: Annotated[list[str], "New tags"]
    content: Annotated[str, "New content"]
    entities: Annotated[list[str], "Entities it mentions"]
    by: Annotated[str, "Source: a model or a rule"]
    dry_run: Annotated[bool, "Whether this was a dry run"]
    note: Annotated[str | None, "Requested changes that were not made"] = None


class IntentReport(Struct, frozen=True, kw_only=True):
    intent: Annotated[intents.Intent, "Detected intent"]
    by: Annotated[str, "Source: client, provider or local rules"]
    namespaces: Annotated[list[str], "Namespaces to search"]


class SavedPromptDetail(Struct, frozen=True, kw_only=True):
    name: Annotated[str, "Name"]
    domain: Annotated[str, "Owning domain"]
    description: Annotated[str, "Description"]
    variables: Annotated[dict[str, PromptVariable], "Variables by name"]
    version: Annotated[int, "Version, starting at 1"]
    content: Annotated[str, "Template text"]


class SavedPromptsResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    prompts: Annotated[list[SavedPromptDetail], "Saved prompts"] = field(default_factory=list)
    text: Annotated[str | None, "Rendered prompt"] = None
    note: Annotated[str | None, "Outcome, or next step"] = None


class GraphResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    nodes: Annotated[list[graphs.EntityNode], "Entities"]
    edges: Annotated[list[graphs.EntityEdge], "Relations between the entities"]
    picture: Annotated[str | None, "Diagram in the requested format"] = None
    note: Annotated[str | None, "Limitation of the result, or next step"] = None


class GroupList(Struct, frozen=True, kw_only=True, omit_defaults=True):
    groups: Annotated[list[UserGroup], "Matching groups"]
    note: Annotated[str | None, "Outcome"] = None


class WebhookList(Struct, frozen=True, kw_only=True, omit_defaults=True):
    webhooks: Annotated[list[WebhookStatus], "Webhooks with their status"]
    note: Annotated[str | None, "Outcome"] = None


class ExtraTools:
    def __init__(self, access: MemoryToolContext, models: ModelFallback, listings: DynamicComponents) -> None:
        self._access = access
        self._models = models
        self._listings = listings

    async def consolidate(
        self,
        ctx: Context,
        namespaces: Annotated[list[str] | None, "Namespaces to consolidate; default all"] = None,
        strategy: Annotated[
            Strategy,
            "merge (default, one memory absorbs the others), summarize (create a new memory) or "
            "dedupe (keep the newest)",
        ] = "merge",
        query: Annotated[str | None, "Filter expression, e.g. tag:db"] = None,
        days: Annotated[int | None, Meta(ge=1, le=36_500, description="Only memories of the last N days")] = None,
        min_memories: Annotated[int, Meta(ge=2, le=20, description="Minimum group size")] = 2,
        similarity: Annotated[
            float, Meta(gt=0, le=1, description="Similarity threshold, 0 to 1")
        ] = consolidation.DEFAULT_SIMILARITY,
        include_conflicts: Annotated[
            bool, "Also merge contradictory memories, keeping the newest; default false"
        ] = False,
        dry_run: DryRun = True,
        undo: Annotated[str | None, "Run id to revert"] = None,
    ) -> ConsolidationReport:
        """Merge near-duplicate memories. Runs as a dry run by default and returns the planned groups.

        A completed run can be reverted with `undo`. Contradictory memories are skipped: resolve them with
        memory_conflicts.
        """
        if undo is not None:
            back = await consolidation.undo_consolidation(
                await self._access.writable_store(ctx), undo, who=actor_name(ctx)
            )
            return ConsolidationReport(looked_at=0, groups=[], dry_run=False, kept=back, note="Reverted.")
        memories = await (self._access.store(ctx) if dry_run else self._access.writable_store(ctx))
        filter = memories.filter(query)
        if namespaces:
            values = tuple(validate_namespace(item) for item in namespaces)
            filter = replace(filter, conditions=(*filter.conditions, FilterCondition("ns", values)))
        if days is not None:
            since = timestamps.now_ms() - days * 86_400 * timestamps.MS_PER_SECOND
            # The narrower of the two limits applies.
            filter = replace(filter, since=max(since, filter.since or 0))
        plan = await consolidation.plan_consolidation(
            memories,
            filter,
            strategy=strategy,
            similarity=similarity,
            minimum=min_memories,
            ask=self._models.for_call(ctx),
            include_conflicts=include_conflicts,
        )
        # Contradictory memories are near-duplicates by wording (“port 80”, “port 8080”); merging them would lose one
        # side.
        contradicting = self._about_conflicts(plan.left_out)
        groups = [
            # A preview: the full text is written when the plan is applied.
            Group([item.id for item in parameter.members], texts.truncate_preview(parameter.content, 500), parameter.by)
            for parameter in plan.clusters
        ]
        if dry_run:
            note = (
                "Nothing was changed. Repeat the call with dry_run=false to apply."
                if groups
                else "No near-duplicates found."
            )
            return ConsolidationReport(
                looked_at=plan.looked_at, groups=groups, dry_run=True, note=note + contradicting, left_out=plan.left_out
            )
        done = await consolidation.apply_consolidation(memories, plan, who=actor_name(ctx))
        return ConsolidationReport(
            looked_at=plan.looked_at,
            groups=groups,
            dry_run=False,
            run=done.run,
            kept=done.kept,
            superseded=done.superseded,
            note=(f"To revert, call with undo={done.run}." if done.kept else "Nothing was changed.") + contradicting,
            left_out=plan.left_out,
        )

    def _about_conflicts(self, left_out: list[str]) -> str:
        if not left_out:
            return ""
        prefix = self._access.prefix
        return (
            f" {len(left_out)} contradictory memories were skipped: resolve them with {prefix}_conflicts, or pass "
            "include_conflicts=true."
        )

    async def summary(
        self,
        ctx: Context,
        memory_id: Annotated[str, Meta(min_length=1, max_length=300, description="Summary id or URN")],
    ) -> SummaryDetail:
        """Return a summary created by memory_consolidate together with the memories it replaces."""
        return await get_summary(self._access, memory_id, ctx)

    async def enrich(
        self,
        ctx: Context,
        memory_id: MemoryId,
        enrich_tags: Annotated[bool, "Add tags; default true"] = True,
        enrich_structure: Annotated[bool, "Rewrite the text more clearly (needs a model)"] = False,
        add_context: Annotated[bool, "Add context from related memories"] = False,
        dry_run: DryRun = False,
    ) -> EnrichmentReport:
        """Improve how well a memory can be found by adding tags and, optionally, a clearer text and related context.

        Uses the client's model through sampling if available, otherwise rules; rewriting requires a model. Returns the
        changed memory.
        """
        memories = await (self._access.store(ctx) if dry_run else self._access.writable_store(ctx))
        # Outside of any transaction: a model may take minutes.
        proposed = await enrichment.propose_enrichment(
            memories,
            memory_id,
            tags=enrich_tags,
            structure=enrich_structure,
            context=add_context,
            ask=self._models.for_call(ctx),
        )
        after = (
            proposed.record if dry_run else await enrichment.apply_enrichment(memories, proposed, who=actor_name(ctx))
        )
        return EnrichmentReport(
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
        query: Annotated[str, Meta(min_length=1, max_length=MAX_FILTER_CHARS, description="Question to classify")],
    ) -> IntentReport:
        """Classify a question as howto, location, explanation, comparison, troubleshoot or general, and suggest
        namespaces to search.

        Uses the client's model if available, otherwise keywords.
        """
        intent = await intents.detect_intent(query, self._models.for_call(ctx))
        return IntentReport(
            intent=intent.intent, by=intent.by, namespaces=list(intents.NAMESPACES_BY_INTENT[intent.intent])
        )

    async def prompts(
        self,
        ctx: Context,
        action: Annotated[
            Literal["list", "get", "save", "run", "render", "delete"], "list, get, save, run (alias render) or delete"
        ] = "list",
        name: Annotated[str | None, "Template name"] = None,
        content: Annotated[str | None, "For save: text with variables such as {{file}}"] = None,
        description: Annotated[str, "For save: purpose of the template"] = "",
        variables_def: Annotated[
            dict[str, PromptVariable] | None, "For save: variable name -> description, default and choices"
        ] = None,
        variables: Annotated[dict[str, str] | None, "For run: variable name -> value"] = None,
        domain: Annotated[Literal["project", "user", "org", "global"], "For save: owner; default project"] = "project",
    ) -> SavedPromptsResult:
        """Manage reusable prompt templates with {{variables}}.

        Every saved template is also listed as an MCP prompt of this server.
        """
        if action == "list":
            memories = await self._access.store(ctx)
            result = await memories.read(
                lambda tx: saved_prompts.list_visible(tx, memories.project_scopes, memories.owner)
            )
            return SavedPromptsResult(
                prompts=[copy_to_result(item, SavedPromptDetail, timestamps.format_iso) for item in result]
            )
        if name is None:
            raise InvalidInput(f"The action {action} requires name.")
        if action == "save":
            return await self._save_prompt(ctx, name, content, description, variables_def or {}, domain)
        memories = await (self._access.writable_store(ctx) if action == "delete" else self._access.store(ctx))
        found_one = await memories.read(
            lambda tx: saved_prompts.get_prompt(tx, name, memories.project_scopes, memories.owner)
        )
        if action in ("run", "render"):
            return SavedPromptsResult(text=saved_prompts.render(found_one, variables or {}))
        if action == "delete":
            await memories.write(lambda tx: saved_prompts.delete_prompt(tx, found_one))
            await self._listings.refresh_prompts(await self._access.shared_memories())
            return SavedPromptsResult(note=f"Deleted the prompt {name}.")
        return SavedPromptsResult(prompts=[copy_to_result(found_one, SavedPromptDetail, timestamps.format_iso)])

    async def _save_prompt(
        self,
        ctx: Context,
        name: str,
        content: str | None,
        description: str,
        variables: dict[str, PromptVariable],
        domain: str,
    ) -> SavedPromptsResult:
        memories = await self._access.writable_store(ctx)
        # Checked before the text is stored, because a listed prompt of the server would hide the saved one.
        if self._listings.is_name_taken(name):
            raise InvalidInput(f"The server already has a prompt {name!r}. Choose another name.")
        checked = await self._access.screening.screen(
            saved_prompts.check_length(content or ""), saved_prompts.check_length(description, "A description")
        )
        screened, about = checked.texts
        template = saved_prompts.build_prompt(
            domain=domain,
            project=memories.project,
            name=name,
            content=screened,
            description=about,
            variables=variables,
            now=timestamps.now_ms(),
            owner=memories.owner,
        )
        saved = await memories.write(lambda tx: saved_prompts.save_prompt(tx, template))
        # The change event arrives after the response, but the client may use the prompt immediately.
        await self._listings.refresh_prompts(await self._access.shared_memories())
        note = f"Available as the prompt {name}."
        if not self._listings.lists_prompt(ctx.server, saved):
            note = (
                "It is not listed as an MCP prompt, because that list is the same for all clients. Use the action run."
            )
        return SavedPromptsResult(prompts=[copy_to_result(saved, SavedPromptDetail, timestamps.format_iso)], note=note)

    async def graph(
        self,
        ctx: Context,
        operation: Annotated[
            Literal["entities", "neighbors", "path", "visualize"],
            "entities (list), neighbors, path (entity to to_entity) or visualize",
        ] = "entities",
        entity: Annotated[str | None, "Start entity"] = None,
        to_entity: Annotated[str | None, "For path: target entity"] = None,
        kind: Annotated[EntityKind | None, "For entities: entity type"] = None,
        depth: Annotated[int, Meta(ge=1, le=graphs.MAX_DEPTH, description="Number of hops; default 1")] = 1,
        format: Annotated[graphs.DiagramFormat, "For visualize: mermaid (default), dot or text"] = "mermaid",
        limit: Annotated[int, Meta(ge=1, le=graphs.MAX_EDGES, description="Maximum number of entities or edges")] = 50,
    ) -> GraphResult:
        """Explore the entity graph extracted from memories: people, organisations, technologies, concepts and files.

        To read the memories about an entity, use memory_recall with `entity`.
        """
        memories = await self._access.store(ctx)
        if operation == "entities":
            return GraphResult(
                nodes=await memories.read(lambda tx: graphs.list_entities(tx, kind, limit, owner=memories.owner)),
                edges=[],
            )
        if entity is None or (operation == "path" and to_entity is None):
            raise InvalidInput(
                f"The operation {operation} requires entity{' and to_entity' if operation == 'path' else ''}."
            )
        start, end = entity, to_entity or ""
        if operation == "path":
            result = await memories.read(lambda tx: graphs.shortest_path(tx, start, end, owner=memories.owner))
            note = None if result.nodes else "No path connects the two entities."
            return GraphResult(nodes=result.nodes, edges=result.edges, note=note)
        result = await memories.read(lambda tx: graphs.neighbours(tx, start, depth, limit, owner=memories.owner))
        picture = graphs.render_graph(result, format) if operation == "visualize" else None
        return GraphResult(nodes=result.nodes, edges=result.edges, picture=picture)

    async def groups(
        self,
        ctx: Context,
        action: Annotated[
            Literal["list", "get", "create", "add_member", "remove_member", "update_role", "delete"],
            "list, get, create, add_member, remove_member, update_role or delete",
        ] = "list",
        name: Annotated[str | None, Meta(max_length=200, description="Group name")] = None,
        description: Annotated[str, Meta(max_length=500, description="For create: description of the group")] = "",
        member: Annotated[str | None, Meta(max_length=200, description="Member name, as used in `author`")] = None,
        role: Annotated[Role, "For add_member and update_role: read, write or admin"] = "read",
    ) -> GroupList:
        """Manage groups of users who share this memory. Find a group's memories with memory_recall and the filter
        author:.
        """
        memories = await (
            self._access.store(ctx, any_project=True)
            if action in ("list", "get")
            else self._access.writable_store(ctx, any_project=True)
        )
        await state.prepare(memories)
        if action == "list":
            result = await memories.read(groups.list_groups)
            return GroupList(groups=result, note=None if result else "No groups exist yet.")
        if name is None:
            raise InvalidInput(f"The action {action} requires name.")
        # Without authentication everybody is the same local user, so roles are not enforced.
        group, by = name, None if ctx.principal is None else actor_name(ctx)
        if action == "get":
            return GroupList(groups=[await memories.read(lambda tx: groups.get_group(tx, group))])
        if action == "create":
            group_row = await memories.write(lambda tx: groups.create_group(tx, group, description, actor_name(ctx)))
            return GroupList(groups=[group_row], note="Created.")
        if action == "delete":
            await memories.write(lambda tx: groups.delete_group(tx, group, by))
            return GroupList(groups=[], note=f"Deleted the group {group}. Memories of its members are unchanged.")
        if member is None:
            raise InvalidInput(f"The action {action} requires member.")
        member_name = member
        if action == "remove_member":
            left = await memories.write(lambda tx: groups.remove_member(tx, group, member_name, by))
            return GroupList(groups=[left])
        return GroupList(groups=[await memories.write(lambda tx: groups.set_member(tx, group, member_name, role, by))])

    async def webhooks(
        self,
        ctx: Context,
        action: Annotated[Literal["list", "test"], "list (default) or test"] = "list",
        name: Annotated[str | None, Meta(max_length=200, description="For test: webhook name")] = None,
    ) -> WebhookList:
        """Show webhook delivery status or send a test event. Webhooks are configured by the operator; this tool cannot
        add one.
        """
        # Without settings the tool still answers, with an empty list.
        hooks = WebhookDispatcher({}) if self._access.webhooks is None else self._access.webhooks
        if action == "list":
            result = hooks.statuses()
            return WebhookList(webhooks=result, note=None if result else "No webhooks are configured.")
        tried = await hooks.send_test(name or "")
        if tried is None:
            raise InvalidInput(f"Webhook {(name or '')[:80]!r} not found. Use the action list to see all webhooks.")
        # `last` is an HTTP status or the name of an exception.
        answered = tried.last.isdigit()
        note = f"Delivered; the receiver returned {tried.last}." if answered else f"Delivery failed: {tried.last}."
        return WebhookList(webhooks=[tried], note=note)


def _left_undone(proposed: enrichment.EnrichmentProposal) -> str | None:
    """Return a note about requested changes that were not made, or None if all were."""
    parts = ["No model wrote a clearer text."] if proposed.not_written else []
    if proposed.changes_nothing:
        parts.append("Nothing was changed.")
    return " ".join(parts) or None
