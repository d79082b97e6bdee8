"""Change notifications: per session before 2026-07-28, per subscription since."""

import asyncio

import pytest


@pytest.mark.revisions(until="2025-11-25")
async def test_session_is_notified_of_list_changes(connect):
    async with connect("changing") as peer:
        before = len(await peer.tools())
        await peer.call("grow")
        for kind in ("tools", "prompts", "resources"):
            await peer.heard.wait_for(lambda kind=kind: peer.heard.of(f"{kind}/list_changed"))
        assert len(await peer.tools()) == before + 1


@pytest.mark.revisions(since="2026-07-28")
async def test_listener_is_notified_only_of_the_lists_it_requested(connect):
    async with connect("changing") as peer, peer.listen(tools_list_changed=True) as events:
        assert events.honored.tools_list_changed
        before = len(await peer.tools())
        assert not events.honored.prompts_list_changed
        await peer.call("grow")
        async with asyncio.timeout(10):
            assert type(await anext(events)).__name__ == "ToolsListChanged"
        await peer.heard.wait_for(lambda: peer.heard.of("tools/list_changed"))
        assert peer.heard.of("prompts/list_changed") == []
        assert len(await peer.tools()) == before + 1


@pytest.mark.revisions(until="2025-11-25")
async def test_subscriber_is_notified_until_it_unsubscribes(connect):
    async with connect("changing") as peer:
        await peer.subscribe("notes://today")
        await peer.call("touch", {"uri": "notes://other"})
        await peer.call("touch", {"uri": "notes://today"})
        await peer.heard.wait_for(lambda: peer.heard.of("resources/updated"))
        await peer.unsubscribe("notes://today")
        await peer.call("touch", {"uri": "notes://today"})
        # Notices come in the order in which things happened, so this one would be the later.
        await peer.call("grow")
        await peer.heard.wait_for(lambda: peer.heard.of("tools/list_changed"))
        assert [str(item.params.uri) for item in peer.heard.of("resources/updated")] == ["notes://today"]


@pytest.mark.revisions(since="2026-07-28")
async def test_listener_is_notified_of_its_resources_until_it_stops(connect):
    async with connect("changing") as peer:
        async with peer.listen(resource_subscriptions=["notes://today"]) as events:
            assert events.honored.resource_subscriptions == ["notes://today"]
            await peer.call("touch", {"uri": "notes://other"})
            await peer.call("touch", {"uri": "notes://today"})
            async with asyncio.timeout(10):
                assert (await anext(events)).uri == "notes://today"
        async with peer.listen(tools_list_changed=True) as events:
            await peer.call("touch", {"uri": "notes://today"})
            await peer.call("grow")
            async with asyncio.timeout(10):
                assert type(await anext(events)).__name__ == "ToolsListChanged"
        assert [str(item.params.uri) for item in peer.heard.of("resources/updated")] == ["notes://today"]


@pytest.mark.revisions(since="2026-07-28")
async def test_changes_are_not_notified_without_a_subscription(connect):
    async with connect("changing") as peer:
        before = len(await peer.tools())
        await peer.call("grow")
        assert len(await peer.tools()) == before + 1
        assert peer.heard.notices == []
