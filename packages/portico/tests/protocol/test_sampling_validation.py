"""Validation of sampling conversations with tools."""

from __future__ import annotations

import pytest

from portico.protocol.client_features import SamplingMessage
from portico.protocol.content import TextContent, ToolResultContent, ToolUseContent
from portico.protocol.errors import InvalidParams
from portico.protocol.sampling_validation import uses_tools, validate_tool_messages


def said(text: str) -> TextContent:
    return TextContent(text=text)


def use(id: str) -> ToolUseContent:
    return ToolUseContent(id=id, name="weather", input={})


def result(id: str) -> ToolResultContent:
    return ToolResultContent(tool_use_id=id, content=[])


def user(*blocks):
    return SamplingMessage("user", list(blocks) if len(blocks) != 1 else blocks[0])


def assistant(*blocks):
    return SamplingMessage("assistant", list(blocks) if len(blocks) != 1 else blocks[0])


BALANCED = {
    "nothing": [],
    "only words": [user(said("hello")), assistant(said("hi")), user(said("bye"))],
    "one use": [user(said("hello")), assistant(use("a")), user(result("a"))],
    "two uses in another order": [assistant(said("so"), use("a"), use("b")), user(result("b"), result("a"))],
    "one after the other": [assistant(use("a")), user(result("a")), assistant(use("b")), user(result("b"))],
    "an id that was used before": [assistant(use("a")), user(result("a")), assistant(use("a")), user(result("a"))],
    "a message without blocks": [user(), assistant(said("hi"))],
}

UNBALANCED = {
    "no result": ([assistant(use("a"))], "missing"),
    "one of two is missing": ([assistant(use("a"), use("b")), user(result("a"))], "missing"),
    "words before the result": ([assistant(use("a")), user(said("wait")), user(result("a"))], "missing"),
    "a wrong id": ([assistant(use("a")), user(result("b"))], "missing"),
    "a result too many": ([assistant(use("a")), user(result("a"), result("b"))], "without its tool use"),
    "a result twice": ([assistant(use("a")), user(result("a"), result("a"))], "without its tool use"),
    "a result of nothing": ([user(said("hello")), user(result("a"))], "without its tool use"),
    "a result first": ([user(result("a"))], "without its tool use"),
    "mixed": ([assistant(use("a")), user(result("a"), said("and"))], "mixed"),
    "results of the assistant": ([assistant(use("a")), assistant(result("a"))], "user"),
    "a use of the user": ([user(use("a")), user(result("a"))], "assistant"),
    "two uses with one id": ([assistant(use("a"), use("a")), user(result("a"), result("a"))], "same id"),
}


@pytest.mark.parametrize("messages", BALANCED.values(), ids=BALANCED)
def test_conversation_in_balance_passes(messages):
    validate_tool_messages(messages)


@pytest.mark.requirement("sampling.balance")
@pytest.mark.parametrize(("messages", "why"), UNBALANCED.values(), ids=UNBALANCED)
def test_conversation_out_of_balance_is_invalid_params(messages, why):
    with pytest.raises(InvalidParams, match=why):
        validate_tool_messages(messages)


def test_tools_member_is_found_in_any_order():
    assert not uses_tools([user(said("hello"))])
    assert uses_tools([assistant(said("so"), use("a"))])
    assert uses_tools([user(result("a"))])
