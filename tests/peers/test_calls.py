"""tools/call and the messages during a call."""

import asyncio
import json
from base64 import b64decode

import pytest

try:
    import fastmcp
    from fastmcp.client.transports import StreamableHttpTransport
    from fastmcp.server import create_proxy
except ImportError:
    pass  # conftest.py skips the tests, or fails them in CI


async def test_fifty_calls_in_threads_and_on_the_loop_each_get_their_own_answer(connect):
    async with connect("small") as peer:
        names = ["add", "multiply"] * 25
        results = await asyncio.gather(*(peer.call(name, {"a": at, "b": 2}) for at, name in enumerate(names)))
        expected = [str(at + 2 if name == "add" else at * 2) for at, name in enumerate(names)]
        assert [result.content[0].text for result in results] == expected


async def test_value_is_structured_from_2025_06_18_on_and_text_always(connect):
    async with connect("small") as peer:
        result = await peer.call("weather", {"city": "Paris"})
        assert json.loads(result.content[0].text) == {"city": "Paris", "degrees": 21.5}
        number = await peer.call("add", {"a": 1, "b": 2})
        assert number.content[0].text == "3"
        if peer.revision < "2025-06-18":
            assert result.structured_content is None
            assert number.structured_content is None
        else:
            assert result.structured_content == {"city": "Paris", "degrees": 21.5}
            assert number.structured_content == {"result": 3}


# How FastMCP's client is told which version to negotiate.
MODES = {"2025-11-25": "legacy", "2026-07-28": "auto"}
RESULTS = {
    "give_text": "words",
    "give_number": 3,
    "give_list": [1, 2],
    "give_nothing": None,
    "give_object": {"city": "Paris", "degrees": 21.5},
    "give_either": {"city": "Paris", "degrees": 21.5},
    "give_maybe": None,
}


async def test_results_of_every_kind_are_read(connect):
    """Both clients validate structured content by the output schema, and fail where it does not fit."""
    async with connect("small") as peer:
        schemas = {tool.name: tool.output_schema for tool in await peer.tools()}
        for name, value in RESULTS.items():
            result = await peer.call(name)
            assert not result.is_error
            expected = value if name == "give_object" else {"result": value}
            known_names = peer.revision >= "2025-06-18" and name != "give_nothing"
            assert result.structured_content == (expected if known_names else None)
            assert (schemas[name] is not None) is known_names


@pytest.mark.parametrize("inward", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("outward", ["2025-11-25", "2026-07-28"])
async def test_fastmcp_s_proxy_passes_results_of_every_kind_on(serve, inward, outward):
    with serve("small") as url:
        behind = fastmcp.Client(StreamableHttpTransport(url), mode=MODES[inward])
        proxy = create_proxy(behind)
        async with fastmcp.Client(proxy, mode=MODES[outward]) as client:
            for name, value in RESULTS.items():
                result = await client.call_tool(name)
                assert _plain(result.data) == value


def _plain(data):
    """FastMCP makes classes of the schemas of objects."""
    return {"city": data.city, "degrees": data.degrees} if hasattr(data, "city") else data


@pytest.mark.revisions(client="fastmcp")
async def test_fastmcp_makes_an_object_of_a_structured_value(connect):
    async with connect("small") as peer:
        assert (await peer.call("weather", {"city": "Paris"})).data.degrees == 21.5


async def test_images_sounds_and_resources_come_as_content(connect):
    async with connect() as peer:
        (image,) = (await peer.call("test_image_content")).content
        assert (image.type, image.mime_type, b64decode(image.data)[:4]) == ("image", "image/png", b"\x89PNG")
        (sound,) = (await peer.call("test_audio_content")).content
        # 2025-03-26 brought sound; before, it is mentioned.
        assert sound.type == ("audio" if peer.revision >= "2025-03-26" else "text")
        text, image, resource = (await peer.call("test_multiple_content_types")).content
        assert (text.type, image.type, resource.type) == ("text", "image", "resource")
        assert json.loads(resource.resource.text) == {"test": "data", "value": 123}


async def test_tool_error_is_returned_as_a_result(connect):
    async with connect() as peer:
        result = await peer.call("test_error_handling")
        assert result.is_error
        assert result.content[0].text == "This tool intentionally returns an error for testing."


async def test_exception_returns_an_error_id_without_its_text(connect):
    async with connect("small") as peer:
        result = await peer.call("crash")
        assert result.is_error
        assert "error id" in result.content[0].text
        assert "swordfish" not in result.content[0].text


async def test_unknown_tool_is_invalid_params(connect):
    async with connect("small") as peer:
        with pytest.raises(Exception, match="Unknown tool: addd") as raised:
            await peer.call("addd")
        assert raised.value.error.code == -32602
        assert raised.value.error.data["suggestions"] == ["add"]


async def test_wrong_argument_is_for_the_model_from_2025_11_25_on_and_an_error_before(connect):
    async with connect("small") as peer:
        if peer.revision >= "2025-11-25":
            result = await peer.call("add", {"a": 1, "b": "many"})
            assert result.is_error
            assert "'b'" in result.content[0].text
        else:
            with pytest.raises(Exception, match="'b'") as raised:
                await peer.call("add", {"a": 1, "b": "many"})
            assert raised.value.error.code == -32602


async def test_output_printed_by_a_tool_does_not_reach_the_client(connect):
    async with connect("small") as peer:
        assert (await peer.call("chatter")).content[0].text == "done"


# On the way


async def test_progress_is_reported(connect):
    steps = []

    async def on_progress(progress, total, message):
        steps.append((progress, total, message))

    async with connect() as peer:
        await peer.call("test_tool_with_progress", on_progress=on_progress)
        await peer.heard.wait_for(lambda: len(steps) == 3)
        # 2025-03-26 brought the message.
        words = peer.revision >= "2025-03-26"
        assert steps == [(at, 100, f"Completed step {at} of 100" if words else None) for at in (0, 50, 100)]


async def test_tool_s_log_messages_are_received(connect):
    async with connect() as peer:
        await peer.call("test_tool_with_logging")
        await peer.heard.wait_for(lambda: len(peer.heard.logs) == 3)
        assert peer.heard.logs[0] == ("info", "Tool execution started")


@pytest.mark.revisions(until="2025-11-25")
async def test_level_is_set_for_the_session(connect):
    async with connect() as peer:
        await peer.set_level("warning")
        await peer.call("test_logging_tool")
        await peer.set_level("debug")
        await peer.call("test_logging_tool")
        await peer.heard.wait_for(lambda: len(peer.heard.logs) == 6)
        levels = [level for level, _ in peer.heard.logs]
        assert levels == ["warning", "error", "debug", "info", "warning", "error"]


async def test_response_survives_a_closed_connection(connect):
    async with connect() as peer:
        result = await peer.call("test_reconnection")
        assert result.content[0].text == "Here it is, on another connection."


# Giving up


@pytest.mark.parametrize("body", ["wait_forever", "block"])
async def test_cancelled_call_stops_its_function(connect, body):
    started = asyncio.Event()

    async def on_progress(progress, total, message):
        started.set()

    async with connect("small") as peer:
        call = asyncio.create_task(peer.call(body, on_progress=on_progress))
        async with asyncio.timeout(10):
            await started.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await peer.call("multiply", {"a": 2, "b": 3})).content[0].text == "6"
        assert (await peer.call("was_stopped")).content[0].text == "true"
