"""How to test what a server asks, says and changes. This file is part of our own tests, too."""

import asyncio

import library
import pytest
import travel
import workshop
from progress import server as progress

from portico import Client, ProtocolError, ToolError
from portico.types import ElicitParams, SubscriptionFilter

ELICITING = ["2025-06-18", "2025-11-25", "2026-07-28"]


def answer(question: ElicitParams) -> dict[str, object] | None:
    """The fields of the form to accept, None to decline."""
    if question.message == "Which seat?":
        return {"value": "window"}
    return {"value": True} if "Pay now?" in question.message else None


@pytest.mark.parametrize("revision", ELICITING)
async def test_a_seat_is_reserved_once_on_every_revision(revision: str) -> None:
    travel.reserved.clear()
    async with Client(travel.server, protocol_version=revision, elicitation_handler=answer) as client:
        result = await client.call_tool("book", {"destination": "Bergen"})
    assert result.text == "Reservation 1 is paid."
    assert travel.reserved == ["Bergen, window"]


async def test_nothing_is_booked_when_the_user_declines() -> None:
    async with Client(travel.server, elicitation_handler=lambda question: None) as client:
        with pytest.raises(ToolError, match="did not choose a seat"):
            await client.call_tool("book", {"destination": "Bergen"})


async def test_a_client_that_cannot_be_asked_is_told_what_is_missing() -> None:
    async with Client(travel.server) as client:
        with pytest.raises(ProtocolError, match="elicitation"):
            await client.call_tool("book", {"destination": "Bergen"})


async def test_the_model_is_a_function_here() -> None:
    async with Client(travel.server, sampling_handler=lambda request: "A journey.") as client:
        assert (await client.call_tool("summarise", {"text": "A long text."})).text == "A journey."


async def test_progress_and_log_messages_can_be_heard() -> None:
    steps, said = [], []
    async with Client(progress, log_level="info", log_handler=lambda message: said.append(message.data)) as client:
        await client.call_tool("count", {"to": 2, "pause": 0}, progress_handler=lambda *step: steps.append(step))
    assert steps == [(1, 2, "at 1"), (2, 2, "at 2")]
    assert said == ["counted to 2"]


async def test_a_change_is_heard() -> None:
    heard = asyncio.Event()
    changes = SubscriptionFilter(resource_subscriptions=["library://books/3"])

    def listen(method: str, params: object) -> None:
        if method == "notifications/resources/updated":
            heard.set()

    async with Client(library.server, message_handler=listen) as client, client.listen(changes):
        await client.call_tool("give_back", {"number": 3})
        async with asyncio.timeout(5):
            await heard.wait()


async def test_the_lifespan_is_part_of_the_test() -> None:
    async with Client(workshop.server) as client:
        await client.call_tool("add_part", {"name": "bolt"})
        assert (await client.call_tool("count_parts")).data == 1
