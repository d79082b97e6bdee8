"""Translation of messages for older protocol versions: the tables, and the rules that use them.

Source: the schema of each revision; when each member appeared is also in the changelog of the revision that brought
it. The tables are compared with the official schemas themselves where those are at hand (`../shared/data/schema`).
"""

import functools
import json
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from portico.protocol import (
    client_features,
    content,
    lifecycle,
    meta,
    notifications,
    prompts,
    resources,
    tools,
    translation,
)
from portico.protocol.versions import (
    HANDSHAKE_VERSIONS,
    SUPPORTED_PROTOCOL_VERSIONS,
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
)
from support.paths import DATA

SCHEMAS = DATA / "schema"

ICONS = [meta.Icon(src="https://icons.test/a.png")]
OWN = {"test.portico/note": 1}
NOTES = content.Annotations(audience=["user"], priority=1.0, last_modified="2025-01-12T15:00:58Z")

PARAMS: dict[type[msgspec.Struct], str] = {
    notifications.ProgressParams: "ProgressNotification",
    client_features.CreateMessageParams: "CreateMessageRequest",
}


def written(said: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(said))


# The tables against the official schemas


@functools.cache
def definitions(revision: str) -> dict[str, Any]:
    document = json.loads((SCHEMAS / f"{revision}.json").read_bytes())
    response: dict[str, Any] = document.get("$defs") or document["definitions"]
    return response


def listed(struct: type[msgspec.Struct], revision: str) -> set[str] | None:
    """The members that a revision's definition has; None when it has no such definition."""
    result = definitions(revision)
    if struct in PARAMS:
        params = result.get(PARAMS[struct], {}).get("properties", {}).get("params", {})
        if "$ref" in params:
            params = result[params["$ref"].rpartition("/")[2]]
        return set(params.get("properties", {})) or None
    if struct is content.ResourceContents:
        # A client decodes either kind of contents into this Struct.
        return set(result["TextResourceContents"]["properties"]) | set(result["BlobResourceContents"]["properties"])
    name = struct.__name__
    if name == "Annotations" and name not in result:
        return set(result["Annotated"]["properties"]["annotations"]["properties"])
    return set(result[name]["properties"]) if name in result else None


STRUCTS = [one for one in translation.FIELD_VERSIONS if one is not client_features.ElicitUrlParams]


@pytest.mark.requirement("schema.members-by-revision")
@pytest.mark.skipif(not SCHEMAS.is_dir(), reason="the official schemas are not here: ../shared/data/schema is absent")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_member_table_matches_the_schemas(struct: type[msgspec.Struct], revision: str) -> None:
    official = listed(struct, revision)
    if official is None:
        pytest.skip(f"{revision} has no {struct.__name__}")
    names = dict(zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True))
    newer = {field for field, since in translation.FIELD_VERSIONS[struct].items() if revision < since}
    kept = {names[field] for field in names if field not in newer}
    # `execution` is dealt with by a rule of its own; extensions are tolerated in every handshake; what is called
    # tasks is only there when an author puts it there.
    excepted = {"execution", "extensions", "tasks"}
    if struct in PARAMS:
        # Any params may have it (Request and Notification), though not every definition says so again.
        excepted.add("_meta")
    assert kept - official <= excepted
    for field in newer:
        assert names[field] not in official


@pytest.mark.skipif(not SCHEMAS.is_dir(), reason="the official schemas are not here: ../shared/data/schema is absent")
@pytest.mark.parametrize(
    "kind,since", translation.CONTENT_TYPE_VERSIONS.items(), ids=lambda value: getattr(value, "__name__", value)
)
def test_kind_table_matches_the_schemas(kind: type[msgspec.Struct], since: str) -> None:
    for revision in SUPPORTED_PROTOCOL_VERSIONS:
        assert (kind.__name__ in definitions(revision)) == (revision >= since)


# Stripping


@pytest.mark.requirement("schema.members-by-revision")
@pytest.mark.parametrize(
    "revision,members",
    [
        (V2024_11_05, {"name", "inputSchema"}),
        (V2025_03_26, {"name", "inputSchema", "annotations"}),
        (V2025_06_18, {"name", "inputSchema", "annotations", "title", "_meta", "outputSchema"}),
        (V2025_11_25, {"name", "inputSchema", "annotations", "title", "_meta", "outputSchema", "icons", "execution"}),
        (V2026_07_28, {"name", "inputSchema", "annotations", "title", "_meta", "outputSchema", "icons"}),
    ],
)
def test_tool_members_depend_on_the_protocol_version(revision: str, members: set[str]) -> None:
    """`execution` is in 2025-11-25 alone."""
    whole = tools.Tool(
        name="t",
        title="T",
        input_schema={"type": "object"},
        output_schema={"type": "object"},
        annotations=tools.ToolAnnotations(read_only_hint=True),
        icons=ICONS,
        execution={"taskSupport": "optional"},
        meta=OWN,
    )
    assert set(written(translation.translate_tool(whole, revision))) == members


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
def test_tool_without_newer_fields_is_not_copied(revision: str) -> None:
    """A tool without anything new is the same object on every revision."""
    plain = tools.Tool(name="t", input_schema={"type": "object"})
    assert translation.strip_unknown_fields(plain, revision) is plain


def test_translating_leaves_the_original_unchanged() -> None:
    whole = tools.Tool(
        name="t", title="T", icons=ICONS, input_schema={"type": "object"}, output_schema={"type": "array"}
    )
    before = msgspec.json.encode(whole)
    for revision in HANDSHAKE_VERSIONS:
        translation.translate_result(tools.ListToolsResult(tools=[whole], ttl_ms=1, cache_scope="public"), revision)
    assert msgspec.json.encode(whole) == before


@pytest.mark.requirement("caching.older")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
def test_lists_lose_their_cache_hints_and_keep_their_cursor(revision: str) -> None:
    """`ttlMs` and `cacheScope` are words of 2026-07-28 (server/utilities/caching)."""
    hints: dict[str, Any] = {"ttl_ms": 5, "cache_scope": "public"}
    messages = [
        tools.ListToolsResult(tools=[], next_cursor="n", **hints),
        resources.ListResourcesResult(resources=[], next_cursor="n", **hints),
        resources.ListResourceTemplatesResult(resource_templates=[], next_cursor="n", **hints),
        prompts.ListPromptsResult(prompts=[], next_cursor="n", **hints),
        resources.ReadResourceResult(contents=[], **hints),
    ]
    for item in messages:
        result = written(translation.translate_result(item, revision))
        assert result.keys().isdisjoint({"ttlMs", "cacheScope"})
        assert result.get("nextCursor", "n") == "n"


def test_2026_07_28_is_reported_everything() -> None:
    result = tools.ListToolsResult(tools=[], ttl_ms=5, cache_scope="public")
    assert translation.translate_result(result, V2026_07_28) is result


@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
def test_resources_and_their_annotations_are_stripped_together(revision: str) -> None:
    result = resources.Resource(uri="a://b", name="b", title="B", annotations=NOTES, icons=ICONS, meta=OWN, size=1)
    family = resources.ResourceTemplate(uri_template="a://{b}", name="b", title="B", annotations=NOTES, icons=ICONS)
    message = written(translation.translate_result(resources.ListResourcesResult(resources=[result]), revision))[
        "resources"
    ][0]
    also = written(
        translation.translate_result(resources.ListResourceTemplatesResult(resource_templates=[family]), revision)
    )
    for found in (message, also["resourceTemplates"][0]):
        assert ("title" in found) == ("lastModified" in found["annotations"]) == (revision >= V2025_06_18)
        assert ("icons" in found) == (revision >= V2025_11_25)
        assert found["annotations"]["audience"] == ["user"]


@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
def test_prompts_are_stripped_down_to_their_arguments(revision: str) -> None:
    argument = prompts.PromptArgument(name="a", title="A", description="an argument", required=True)
    result = prompts.Prompt(name="p", title="P", arguments=[argument], icons=ICONS, meta=OWN)
    (found,) = written(translation.translate_result(prompts.ListPromptsResult(prompts=[result]), revision))["prompts"]
    assert ("title" in found) == ("title" in found["arguments"][0]) == ("_meta" in found) == (revision >= V2025_06_18)
    assert ("icons" in found) == (revision >= V2025_11_25)
    assert found["arguments"][0]["required"] is True


@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
@pytest.mark.parametrize(
    "kind",
    [content.TextResourceContents, content.BlobResourceContents, content.ResourceContents],
    ids=lambda kind: kind.__name__,
)
def test_contents_have_a_meta_since_2025_06_18(kind: Any, revision: str) -> None:
    body = {"blob": "aGk="} if kind is content.BlobResourceContents else {"text": "t"}
    result = kind(uri="a://b", meta=OWN, **body)
    (read,) = written(translation.translate_result(resources.ReadResourceResult(contents=[result]), revision))[
        "contents"
    ]
    embedded = written(translation.translate_content_block(content.EmbeddedResource(resource=result), revision))[
        "resource"
    ]
    assert ("_meta" in read) == ("_meta" in embedded) == (revision >= V2025_06_18)


@pytest.mark.requirement("progress.message-since")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
def test_progress_has_a_message_since_2025_03_26(revision: str) -> None:
    """2025-03-26, changelog: "Added a message field to ProgressNotification"."""
    result = notifications.ProgressParams(progress_token="t", progress=1, total=2, message="half")
    found = written(translation.translate_notification(result, revision))
    assert ("message" in found) == (revision >= V2025_03_26)
    assert (found["progressToken"], found["progress"], found["total"]) == ("t", 1, 2)
    assert translation.translate_notification(None, revision) is None


@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
def test_greeting_is_stripped(revision: str) -> None:
    result = lifecycle.InitializeResult(
        protocol_version=revision,
        capabilities=meta.ServerCapabilities(tools={}, completions={}),
        server_info=meta.Implementation("n", "1", "T", "D", "https://w.test", ICONS),
    )
    found = written(translation.translate_result(result, revision))
    assert ("completions" in found["capabilities"]) == (revision >= V2025_03_26)
    assert ("title" in found["serverInfo"]) == (revision >= V2025_06_18)
    for member in ("description", "websiteUrl", "icons"):
        assert (member in found["serverInfo"]) == (revision >= V2025_11_25)


# Content


def content_of(blocks: list[Any], revision: str) -> list[Any]:
    """The blocks of a tool's result and those of a prompt, which must not differ."""
    called = translation.translate_result(tools.CallToolResult(content=blocks, is_error=False), revision)
    messages = [prompts.PromptMessage("user", block) for block in blocks]
    got = translation.translate_result(prompts.GetPromptResult(messages=messages), revision)
    result: list[Any] = written(called)["content"]
    assert [message["content"] for message in written(got)["messages"]] == result
    return result


@pytest.mark.requirement("content.audio-since")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
def test_audio_is_text_to_2024_11_05(revision: str) -> None:
    (result,) = content_of([content.AudioContent(data="aGVsbG8=", mime_type="audio/wav")], revision)
    if revision == V2024_11_05:
        assert result["type"] == "text"
        assert "audio/wav" in result["text"]
    else:
        assert result == {"type": "audio", "data": "aGVsbG8=", "mimeType": "audio/wav"}


@pytest.mark.requirement("content.link-since")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
def test_resource_link_is_text_until_2025_06_18_and_has_icons_from_2025_11_25_on(revision: str) -> None:
    link = content.ResourceLink(uri="a://b", name="b", title="B", icons=ICONS, annotations=NOTES, meta=OWN)
    (result,) = content_of([link], revision)
    if revision < V2025_06_18:
        assert (result["type"], "a://b" in result["text"]) == ("text", True)
    else:
        assert (result["type"], result["uri"], "_meta" in result) == ("resource_link", "a://b", True)
        assert ("icons" in result) == (revision >= V2025_11_25)


@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
@pytest.mark.parametrize(
    "block",
    [
        content.TextContent(text="t", annotations=NOTES, meta=OWN),
        content.ImageContent(data="aGk=", mime_type="image/png", annotations=NOTES, meta=OWN),
        content.EmbeddedResource(
            resource=content.TextResourceContents(uri="a://b", text="t"), annotations=NOTES, meta=OWN
        ),
    ],
    ids=lambda block: type(block).__name__,
)
def test_blocks_have_a_meta_and_a_last_modified_since_2025_06_18(block: Any, revision: str) -> None:
    (result,) = content_of([block], revision)
    known_names = revision >= V2025_06_18
    assert ("_meta" in result, "lastModified" in result["annotations"]) == (known_names, known_names)
    assert result["annotations"]["priority"] == 1.0


# Structured content


@pytest.mark.requirement("tools.structured-object")
@pytest.mark.parametrize("value", [Raw(b"[1]"), Raw(b"3"), Raw(b"null"), Raw(b'"x"'), [1], 3, None, "x", True])
def test_non_object_structured_content_is_wrapped_until_2025_11_25(value: Any) -> None:
    """server/tools: `structuredContent` is a JSON object in 2025-06-18 and 2025-11-25, any JSON in 2026-07-28."""
    error = tools.CallToolResult(content=[], structured_content=value, is_error=False)
    plain = written(value)
    for revision in (V2025_06_18, V2025_11_25):
        assert written(translation.translate_result(error, revision))["structuredContent"] == {"result": plain}
    for revision in (V2024_11_05, V2025_03_26):
        assert "structuredContent" not in written(translation.translate_result(error, revision))
    assert written(translation.translate_result(error, V2026_07_28))["structuredContent"] == plain


@pytest.mark.parametrize("value", [Raw(b'{"a":1}'), {"a": 1}])
def test_structured_content_that_is_an_object_stays_unchanged(value: Any) -> None:
    error = tools.CallToolResult(content=[], structured_content=value, is_error=False)
    for revision in (V2025_06_18, V2025_11_25):
        assert written(translation.translate_result(error, revision))["structuredContent"] == {"a": 1}


def test_result_without_structured_content_gets_none() -> None:
    error = tools.CallToolResult(content=[], is_error=False)
    for revision in SUPPORTED_PROTOCOL_VERSIONS:
        assert "structuredContent" not in written(translation.translate_result(error, revision))
    assert error.structured_content is UNSET


@pytest.mark.requirement("tools.structured-object")
@pytest.mark.parametrize("revision", [V2025_06_18, V2025_11_25])
@pytest.mark.parametrize(
    "schema",
    [{"type": "array", "items": {"type": "integer"}}, {"type": "integer"}, {"type": "null"}, {"enum": ["a", "b"]}],
)
def test_non_object_output_schema_is_wrapped_until_2025_11_25(schema: dict[str, Any], revision: str) -> None:
    """Tool.outputSchema has `type: "object"` at its root in 2025-06-18 and 2025-11-25."""
    output = translation.translate_tool(
        tools.Tool(name="t", input_schema={"type": "object"}, output_schema=schema), revision
    )
    assert output.output_schema is not None
    assert output.output_schema["type"] == "object"
    assert output.output_schema["properties"] == {"result": schema}
    assert output.output_schema["required"] == ["result"]


def test_schema_definitions_remain_at_referenced_paths() -> None:
    schema = {"type": "array", "items": {"$ref": "#/$defs/Node"}, "$defs": {"Node": {"type": "integer"}}}
    wrapped = translation.wrap_output_schema(schema)
    assert wrapped["$defs"] == {"Node": {"type": "integer"}}
    assert "$defs" not in wrapped["properties"]["result"]


# Questions


@pytest.mark.requirement("sampling.messages-by-revision")
@pytest.mark.parametrize("revision", HANDSHAKE_VERSIONS)
def test_sampling_request_is_reduced_to_its_last_message(revision: str) -> None:
    """CreateMessageRequest: `tools` and `toolChoice`, and `_meta` on a message, since 2025-11-25; `_meta` on a content
    block since 2025-06-18."""
    block = content.TextContent(text="t", meta=OWN, annotations=NOTES)
    result = client_features.CreateMessageParams(
        messages=[client_features.SamplingMessage("user", block, meta=OWN)],
        max_tokens=5,
        tools=[tools.Tool(name="t", input_schema={"type": "object"})],
        tool_choice=tools.ToolChoice("auto"),
    )
    response = written(translation.translate_client_request(result, revision))
    assert ("tools" in response) == ("toolChoice" in response) == (revision >= V2025_11_25)
    (message,) = response["messages"]
    assert ("_meta" in message) == (revision >= V2025_11_25)
    assert ("_meta" in message["content"]) == (revision >= V2025_06_18)
    assert ("lastModified" in message["content"]["annotations"]) == (revision >= V2025_06_18)


@pytest.mark.requirement("sampling.messages-by-revision")
@pytest.mark.parametrize("revision", [V2024_11_05, V2025_03_26, V2025_06_18])
def test_before_2025_11_25_a_message_has_one_block(revision: str) -> None:
    """SamplingMessage.content is an array, too, since 2025-11-25."""
    result = client_features.CreateMessageParams(
        messages=[client_features.SamplingMessage("user", [content.TextContent(text="t")])], max_tokens=5
    )
    (message,) = written(translation.translate_client_request(result, revision))["messages"]
    assert message["content"] == {"type": "text", "text": "t"}
