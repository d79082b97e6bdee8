"""The handshake, and the discovery that replaced it."""

import pytest


async def test_client_gets_the_requested_version_server_info_and_capabilities(connect, request):
    _, _, revision = request.node.callspec.params["connect"]
    async with connect("small") as peer:
        assert peer.revision == revision
        assert (peer.session.server_info.name, peer.session.server_info.version) == ("small", "2.1.0")
        assert peer.session.instructions == "For tests."
        can = peer.session.server_capabilities
        assert can.tools.list_changed
        assert can.prompts.list_changed
        assert can.resources.list_changed
        assert can.resources.subscribe
        assert can.logging is not None
        # 2025-03-26 brought the flag; before, completion was there without one.
        assert (can.completions is not None) == (peer.revision >= "2025-03-26")


@pytest.mark.revisions(since="2026-07-28")
async def test_client_with_known_version_skips_discovery(connect):
    async with connect("small", mode="2026-07-28") as peer:
        assert (await peer.call("add", {"a": 1, "b": 2})).content[0].text == "3"


@pytest.mark.revisions(until="2025-11-25")
async def test_ping_is_answered(connect):
    async with connect("small") as peer:
        assert await peer.ping()
