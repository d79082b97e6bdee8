"""Shortened results are valid for other clients, which can read the rest."""

import re

import pytest


@pytest.mark.parametrize("size", [1_000, 100_000, 3_000_000])
async def test_long_text_is_shortened_and_the_rest_can_be_read(connect, size):
    async with connect("bounded") as peer:
        result = await peer.call("long_text", {"size": size})
        texts = [block.text for block in result.content if block.type == "text"]
        if size == 1_000:
            assert len(texts[0]) == size
            return
        assert sum(map(len, texts)) < 20_000
        id = re.search(r"result://([\w-]{32})", texts[-1] + texts[-2])[1]
        linked = [block.uri for block in result.content if block.type == "resource_link"]
        assert [str(uri) for uri in linked] == ([f"result://{id}"] if peer.revision >= "2025-06-18" else [])
        read = await peer.call("read_result", {"id": id, "offset": size - 20})
        assert read.content[0].text == "A line of the text.\n"
        [contents] = await peer.read(f"result://{id}")
        assert len(contents.text) == size


async def test_shortened_structured_content_passes_the_client_s_validation(connect):
    async with connect("bounded") as peer:
        await peer.tools()
        result = await peer.call("long_list", {"count": 5_000})
        assert not result.is_error
        if peer.revision >= "2025-06-18":
            assert 10 < len(result.structured_content["result"]) < 5_000
