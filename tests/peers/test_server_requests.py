"""Server-to-client requests before 2026-07-28, input requests in results since."""

import pytest


async def test_tool_asks_the_client_s_model(connect):
    async with connect() as peer:
        result = await peer.call("test_sampling", {"prompt": "What is the capital of France?"})
        assert result.content[0].text == "LLM response: Paris"
        (request,) = peer.person.asked
        assert request.messages[0].content.text == "What is the capital of France?"
        assert request.max_tokens == 100


async def test_tool_asks_for_the_roots(connect):
    async with connect() as peer:
        result = await peer.call("test_input_required_result_list_roots")
        assert result.content[0].text == "1 roots: file:///project"


@pytest.mark.revisions(since="2025-06-18")
async def test_tool_asks_the_user_with_a_form(connect):
    async with connect() as peer:
        peer.person.content = {"username": "alice", "email": "alice@example.com"}
        result = await peer.call("test_elicitation", {"message": "Who are you?"})
        assert "User(username='alice', email='alice@example.com')" in result.content[0].text
        (request,) = peer.person.asked
        assert request.message == "Who are you?"
        assert request.requested_schema["required"] == ["username", "email"]


@pytest.mark.revisions(since="2025-06-18")
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_user_may_decline_or_cancel_an_elicitation(connect, action):
    async with connect() as peer:
        peer.person.action = action
        result = await peer.call("test_elicitation", {"message": "Who are you?"})
        assert result.content[0].text == f"User response: action={action}, content=None"


@pytest.mark.revisions(since="2025-11-25")
async def test_form_has_defaults_and_all_kinds_of_choices(connect):
    async with connect() as peer:
        peer.person.content = {"name": "Bob"}
        await peer.call("test_elicitation_sep1034_defaults")
        defaults = {name: field["default"] for name, field in _fields(peer.person.asked[0]).items()}
        assert defaults == {"name": "John Doe", "age": 30, "score": 95.5, "status": "active", "verified": True}
        await peer.call("test_elicitation_sep1330_enums")
        choices = _fields(peer.person.asked[1])
        assert choices["titledSingle"]["oneOf"][0] == {"const": "value1", "title": "First Option"}
        assert choices["untitledMulti"]["items"]["enum"] == ["option1", "option2", "option3"]


def _fields(asked):
    return asked.requested_schema["properties"]


@pytest.mark.revisions(since="2025-11-25")
async def test_tool_sends_the_user_to_a_page(connect):
    async with connect("small") as peer:
        result = await peer.call("visit")
        assert result.content[0].text == "accept"
        (request,) = peer.person.asked
        assert (request.mode, request.url) == ("url", "https://example.com/sign-in")


@pytest.mark.revisions(until="2025-06-18")
async def test_page_is_not_asked_of_a_revision_that_has_only_forms(connect):
    async with connect("small") as peer:
        result = await peer.call("visit")
        assert result.is_error
        assert "elicitation" in result.content[0].text
        assert peer.person.asked == []


@pytest.mark.revisions(until="2025-03-26")
async def test_form_is_not_sent_to_versions_without_elicitation(connect):
    async with connect() as peer:
        result = await peer.call("test_elicitation", {"message": "Who are you?"})
        assert result.is_error
        assert "elicitation" in result.content[0].text
        assert peer.person.asked == []


@pytest.mark.revisions(since="2025-06-18")
async def test_three_input_requests_are_sent_together(connect):
    async with connect() as peer:
        peer.person.content = {"name": "Alice"}
        result = await peer.call("test_input_required_result_multiple_inputs")
        assert result.content[0].text == "Paris Alice, you have 1 roots."
        assert len(peer.person.asked) == 2


@pytest.mark.revisions(since="2025-06-18")
async def test_second_elicitation_does_not_repeat_the_first(connect):
    async with connect() as peer:
        peer.person.content = {"name": "Alice", "color": "blue"}
        result = await peer.call("test_input_required_result_multi_round")
        assert result.content[0].text == "Alice likes blue."
        assert [item.message[:6] for item in peer.person.asked] == ["Step 1", "Step 2"]


@pytest.mark.revisions(since="2025-06-18")
async def test_prompt_elicits_before_rendering(connect):
    async with connect() as peer:
        peer.person.content = {"context": "a holiday"}
        (message,) = (await peer.prompt("test_input_required_result_prompt")).messages
        assert message.content.text == "Use this context: a holiday"


async def test_server_does_not_request_undeclared_client_capabilities(connect):
    async with connect(able=False) as peer:
        if peer.modern:
            with pytest.raises(Exception, match="sampling") as raised:
                await peer.call("test_missing_capability")
            assert raised.value.error.code == -32021
            assert raised.value.error.data == {"requiredCapabilities": {"sampling": {}}}
        else:
            result = await peer.call("test_missing_capability")
            assert result.is_error
            assert "sampling" in result.content[0].text
        other = await peer.call("test_input_required_result_capabilities")
        assert other.content[0].text == "This client cannot be asked anything."


@pytest.mark.revisions(until="2025-11-25", client="official")
async def test_client_s_rejection_is_the_tool_s_failure_and_not_the_caller_s(connect):
    async with connect() as peer:
        peer.person.refusal = "User rejected sampling request"
        result = await peer.call("test_sampling", {"prompt": "What is the capital of France?"})
        assert result.is_error
