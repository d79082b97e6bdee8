"""Test elicitation, sampling, progress, logging and change notifications."""

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
    """Return the fields of the form to accept, or None to decline."""
    if question.message == "Which seat?":
        return {"value": "window"}
    return {"value": True} if "Pay now?" in question.message else None


@pytest.mark.parametrize("revision", ELICITING)
async def test_seat_is_reserved_once_with_every_protocol_version(revision: str) -> None:
    travel.reserved.clear()
    async with Client(travel.server, protocol_version=revision, elicitation_handler=answer) as client:
        result = await client.call_tool("book", {"destination": "Bergen"})
    assert result.text == "Reservation 1 is paid."
    assert travel.reserved == ["Bergen, window"]


async def test_declining_books_nothing() -> None:
    async with Client(travel.server, elicitation_handler=lambda question: None) as client:
        with pytest.raises(ToolError, match="did not choose a seat"):
            await client.call_tool("book", {"destination": "Bergen"})


async def test_client_without_elicitation_gets_an_error() -> None:
    async with Client(travel.server) as client:
        with pytest.raises(ProtocolError, match="elicitation"):
            await client.call_tool("book", {"destination": "Bergen"})


async def test_sampling_handler_answers_for_the_model() -> None:
    async with Client(travel.server, sampling_handler=lambda request: "A journey.") as client:
        assert (await client.call_tool("summarise", {"text": "A long text."})).text == "A journey."


async def test_progress_and_log_messages_are_received() -> None:
    steps, messages = [], []
    async with Client(progress, log_level="info", log_handler=lambda message: messages.append(message.data)) as client:
        await client.call_tool("count", {"to": 2, "pause": 0}, progress_handler=lambda *step: steps.append(step))
    assert steps == [(1, 2, "at 1"), (2, 2, "at 2")]
    assert messages == ["counted to 2"]


async def test_subscriber_receives_the_change() -> None:
    updated = asyncio.Event()
    changes = SubscriptionFilter(resource_subscriptions=["library://books/3"])

    def listen(method: str, params: object) -> None:
        if method == "notifications/resources/updated":
            updated.set()

    async with Client(library.server, message_handler=listen) as client, client.listen(changes):
        await client.call_tool("give_back", {"number": 3})
        async with asyncio.timeout(5):
            await updated.wait()


async def test_lifespan_runs_in_the_test() -> None:
    async with Client(workshop.server) as client:
        await client.call_tool("add_part", {"name": "bolt"})
        assert (await client.call_tool("count_parts")).data == 1
