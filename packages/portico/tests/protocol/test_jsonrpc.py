"""JSON-RPC 2.0, as restricted by the five protocol versions of MCP (basic, Messages)."""

import bisect
import itertools
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from msgspec import UNSET, Raw

from portico.protocol import jsonrpc, methods
from portico.protocol.errors import (
    InvalidParams,
    InvalidRequest,
    MissingClientCapability,
    ParseError,
    ProtocolError,
    ResourceNotFound,
)
from portico.protocol.jsonrpc import EMPTY_RAW, ErrorObject, JsonRpcMessage, MalformedMessage
from portico.protocol.versions import (
    HANDSHAKE_VERSIONS,
    SUPPORTED_PROTOCOL_VERSIONS,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
)
from support.paths import DATA

CASES = DATA / "json"

PARSE_ERROR, INVALID_REQUEST = -32700, -32600


def message(*members: str) -> bytes:
    """A message with these members after its version."""
    return "{{{}}}".format(",".join(['"jsonrpc":"2.0"', *members])).encode()


def frame(data: bytes) -> JsonRpcMessage:
    result = jsonrpc.decode_message(data)
    assert isinstance(result, JsonRpcMessage), result
    return result


def malformed(data: bytes) -> MalformedMessage:
    result = jsonrpc.decode_message(data)
    assert isinstance(result, MalformedMessage), result
    return result


# Requests and notifications


def test_request_has_an_id_a_method_and_undecoded_params() -> None:
    result = frame(message('"id":1', '"method":"tools/list"', '"params":{"cursor": "a"}'))
    assert (result.id, result.method, bytes(result.params)) == (1, "tools/list", b'{"cursor": "a"}')


def test_message_without_an_id_is_a_notification() -> None:
    """JSON-RPC 2.0, 4.1: "A Notification is a Request object without an "id" member"."""
    result = frame(message('"method":"notifications/initialized"'))
    assert result.id is UNSET
    assert result.params is EMPTY_RAW


def test_whitespace_between_json_tokens_is_ignored() -> None:
    result = frame(b' {\t"jsonrpc" : "2.0" ,\r "id" : 1 , "method":"x", "params" :   { } } ')
    assert bytes(result.params) == b"{ }"


def test_unknown_members_are_accepted() -> None:
    assert frame(message('"id":1', '"method":"x"', '"extra":{"deep":[1]}')).method == "x"


def test_escapes_in_names_and_methods_are_read() -> None:
    result = frame(b'{"jsonrpc":"2.0","\\u0069d":1,"m\\u0065thod":"tools\\/list"}')
    assert (result.id, result.method) == (1, "tools/list")


# Ids


@pytest.mark.parametrize(
    "written,id",
    [
        ("1", 1),
        ("0", 0),
        ("-1", -1),
        ("-0", 0),
        (str(2**53 + 1), 2**53 + 1),
        (str(2**63 - 1), 2**63 - 1),
        (str(-(2**63)), -(2**63)),
        ('"1"', "1"),
        ('""', ""),
        ('"null"', "null"),
        ('"id-\\u00e9\\n"', "id-é\n"),
        ('"' + "x" * 10_000 + '"', "x" * 10_000),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_request_id_type_is_preserved(written: str, id: int | str) -> None:
    """All revisions, basic, Requests: "Requests MUST include a string or integer ID"; responses repeat it."""
    result = frame(message(f'"id":{written}', '"method":"x"')).id
    assert (type(result), result) == (type(id), id)
    assert isinstance(result, int | str)
    data = json.loads(jsonrpc.encode(jsonrpc.ResultResponse(result, Raw(b"{}"))))["id"]
    assert (type(data), data) == (type(id), id)
    data = json.loads(jsonrpc.encode_error(result, InvalidRequest("no")))["id"]
    assert (type(data), data) == (type(id), id)


@pytest.mark.parametrize(
    "written",
    ["null", "true", "false", "1.0", "1.5", "1e2", "-0.0", "{}", "[]", '{"id":1}', "[1]", str(2**63), "1" * 400],
    ids=lambda written: written[:30],
)
def test_any_other_id_is_an_invalid_request_and_is_not_repeated(written: str) -> None:
    """basic, Requests: "Unlike base JSON-RPC, the ID MUST NOT be null"."""
    result = malformed(message(f'"id":{written}', '"method":"x"'))
    assert (result.error.code, result.id) == (INVALID_REQUEST, None)


def test_id_of_thousands_of_digits_is_rejected() -> None:
    result = malformed(message('"id":' + "9" * 5000, '"method":"x"'))
    assert result.error.code in (INVALID_REQUEST, PARSE_ERROR)
    assert result.id is None


# What is wrong with a message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"\n",
        b"{",
        b"}",
        b'{"jsonrpc":"2.0"',
        b'{"jsonrpc":"2.0",}',
        b"{'jsonrpc':'2.0'}",
        b"nonsense",
        b"\x00",
        b"\xff\xfe{\x00}\x00",
        b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"x"}',
        message('"id":1', '"method":"x"') + b"x",
        message('"id":1', '"method":"x"') * 2,
        message('"id":1', '"method":"x"') + b"\x00",
        b'{"jsonrpc":"2.0","id":01,"method":"x"}',
        b'{"jsonrpc":"2.0","id":1,"method":"a\tb"}',
    ],
)
def test_invalid_json_is_a_parse_error_without_an_id(data: bytes) -> None:
    """JSON-RPC 2.0, 5.1: -32700, "Invalid JSON was received by the server"."""
    result = malformed(data)
    assert (result.error.code, result.id) == (PARSE_ERROR, None)


@pytest.mark.parametrize("data", [b"null", b"true", b"1", b"1.5", b'"ping"', b"-1e3"])
def test_json_scalars_are_invalid_requests(data: bytes) -> None:
    assert (malformed(data).error.code, malformed(data).id) == (INVALID_REQUEST, None)


@pytest.mark.parametrize("version", ['"1.0"', '"2.00"', '"2"', '""', "2.0", "2", "null", "true", '["2.0"]'])
def test_version_must_be_exactly_the_text_2_0(version: str) -> None:
    """JSON-RPC 2.0, 4: jsonrpc "MUST be exactly "2.0""."""
    result = malformed(f'{{"jsonrpc":{version},"id":7,"method":"x"}}'.encode())
    assert (result.error.code, result.id) == (INVALID_REQUEST, 7)


def test_missing_jsonrpc_version_is_an_invalid_request_with_its_id() -> None:
    result = malformed(b'{"id":"a","method":"x"}')
    assert (result.error.code, result.id) == (INVALID_REQUEST, "a")
    assert malformed(b"{}").error.code == INVALID_REQUEST


@pytest.mark.parametrize("method", ["1", "null", "true", "{}", "[]", "1.5"])
def test_method_is_text(method: str) -> None:
    result = malformed(message('"id":7', f'"method":{method}'))
    assert (result.error.code, result.id) == (INVALID_REQUEST, 7)


@pytest.mark.parametrize("params", ["null", "[]", "[1]", "1", "true", '"{}"', "1.5"])
def test_params_are_an_object(params: str) -> None:
    """The schemas of all revisions: `params` is an object. Positional parameters, which JSON-RPC has, MCP has not."""
    result = malformed(message('"id":7', '"method":"x"', f'"params":{params}'))
    assert (result.error.code, result.id, result.is_notification) == (INVALID_REQUEST, 7, False)
    # Without an id it is a notification, which is never answered.
    assert malformed(message('"method":"x"', f'"params":{params}')).is_notification


@pytest.mark.parametrize("members", [[], ['"id":7'], ['"id":7', '"params":{}']])
def test_message_without_method_or_result_is_an_invalid_request(members: list[str]) -> None:
    assert malformed(message(*members)).error.code == INVALID_REQUEST


# Responses


def test_response_has_a_result_left_undecoded() -> None:
    result = frame(message('"id":"a"', '"result":{"x": 1}'))
    assert (result.id, result.method, bytes(result.result), result.error) == ("a", UNSET, b'{"x": 1}', UNSET)


@pytest.mark.requirement("jsonrpc.error-shape")
def test_error_response_has_a_code_a_message_and_maybe_data() -> None:
    error = frame(message('"id":1', '"error":{"code":-1,"message":"rejected","data":[1]}'))
    assert error.error == ErrorObject(-1, "rejected", [1])
    assert error.result is EMPTY_RAW


@pytest.mark.parametrize("id", ['"id":null', '"extra":1'])
def test_error_response_may_have_no_id_in_either_spelling(id: str) -> None:
    """2025-11-25 lets the id be left out, JSON-RPC 2.0 wants null; both are met and neither is an error."""
    assert isinstance(frame(message(id, '"error":{"code":-32700,"message":"no"}')).error, ErrorObject)


@pytest.mark.requirement("jsonrpc.one-answer")
@pytest.mark.parametrize(
    "members",
    [
        ['"result":{}', '"error":{"code":1,"message":"x"}'],
        ['"error":{"code":"1","message":"x"}'],
        ['"error":{"code":1.5,"message":"x"}'],
        ['"error":{"message":"x"}'],
        ['"error":{"code":1}'],
        ['"error":null'],
        ['"error":"no"'],
    ],
)
def test_response_has_one_result_or_one_whole_error(members: list[str]) -> None:
    """JSON-RPC 2.0, 5: "Either the result member or error member MUST be included, but both members MUST NOT"."""
    assert malformed(message('"id":1', *members)).error.code == INVALID_REQUEST


# Members given twice


def refusal(data: bytes) -> ProtocolError:
    """What a message is refused with: as a message, or as the request that it is."""
    frame = jsonrpc.decode_message(data)
    if isinstance(frame, MalformedMessage):
        return frame.error
    assert isinstance(frame, JsonRpcMessage) and isinstance(frame.method, str)
    with pytest.raises(ProtocolError) as refused:
        methods.decode_params(frame.method, frame.params)
    return refused.value


@pytest.mark.parametrize(
    "data",
    [
        message('"id":1', '"id":2', '"method":"x"'),
        message('"id":1', '"method":"x"', '"method":"y"'),
        message('"id":1', '"method":"x"', '"params":{}', '"params":{"name":"a"}'),
        message('"id":1', '"method":"x"', '"params":{"name":"a","name":"b"}'),
        message('"id":1', '"method":"x"', '"params":{"name":"a","arguments":{},"arguments":{"b":1}}'),
        message('"id":1', '"method":"x"', '"params":{"uri":"a://b","uri":"c://d"}'),
        message('"id":1', '"method":"x"', '"params":{"_meta":{},"_meta":{"progressToken":1}}'),
        message('"method":"x"', '"method":"x"'),
    ],
)
def test_member_that_steers_the_message_and_is_duplicated_is_rejected(data: bytes) -> None:
    """RFC 8259, 4: "names within an object SHOULD be unique"; which one counts is not said, so neither does."""
    assert refusal(data).code == INVALID_REQUEST


@pytest.mark.parametrize(
    "data",
    [
        message('"id":1', '"method":"ping"', '"m\\u0065thod":"tools/call"'),
        message('"id":1', '"\\u0069d":2', '"method":"x"'),
        message('"id":1', '"method":"x"', '"params":{"name":"harmless","n\\u0061me":"dangerous"}'),
    ],
)
def test_escape_does_not_hide_that_a_member_is_duplicated(data: bytes) -> None:
    assert refusal(data).code == INVALID_REQUEST


@pytest.mark.parametrize(
    "data",
    [
        message('"id":1', '"method":"ping"', '"Method":"tools/call"'),
        message('"id":1', '"method":"x"', '"PARAMS":{"name":"b"}'),
        message('"id":1', '"method":"tools/call"', '"params":{"name":"a","Name":"b"}'),
        message('"id":1', '"method":"tools/call"', '"params":{"name":"a","N\\u0041ME":"b"}'),
        message('"id":1', '"method":"tools/call"', '"params":{"name":"a","arguments":{},"argument\u017f":{"b":1}}'),
        message('"id":1', '"method":"tools/call"', '"params":{"name":"a","Arguments":{"b":1}}'),
        message('"id":1', '"method":"tools/call"', '"params":{"name":"a","arguments":{},"_meta":{},"_META":{}}'),
        message('"id":1', '"method":"tools/call"', '"params":{"name":"a","RequestState":"b"}'),
        message('"id":1', '"method":"prompts/get"', '"params":{"name":"a","nAme":"b"}'),
        message('"id":1', '"method":"resources/read"', '"params":{"uri":"a://b","URI":"c://d"}'),
        message('"id":1', '"method":"tasks/get"', '"params":{"taskId":"a","TaskID":"b"}'),
        message('"id":1', '"method":"tas\u212as/get"', '"params":{"taskId":"a","tas\u212aId":"b"}'),
        message('"id":1', '"method":"completion/complete"', '"params":{"ref":{"type":"a"},"Ref":{"type":"b"}}'),
    ],
)
def test_steering_member_in_another_case_is_rejected(data: bytes) -> None:
    """Go's encoding/json ignores case, so such an upstream would run something that no rule has seen."""
    assert refusal(data).code == INVALID_REQUEST


def test_steering_names_in_values_and_deeper_objects_are_let_pass() -> None:
    data = message('"id":1', '"method":"tools/call"', '"params": {"name":"NAME","arguments":{"Name":1,"ä":"URI"}}')
    assert methods.decode_params("tools/call", frame(data).params)[0].name == "NAME"


def test_same_word_on_different_floors_is_not_twice() -> None:
    data = message('"id":1', '"method":"x"', '"params":{"name":"a","arguments":{"name":"b","id":2,"method":"c"}}')
    assert frame(data).method == "x"


@pytest.mark.parametrize("digits", [400, 5000, 100_000])
def test_looking_for_repetitions_survives_a_number_of_any_length(digits: int) -> None:
    """`name` stands twice, so the message is read a second time; that reading must not raise either."""
    data = message('"id":1', '"method":"x"', '"params":{"name":"a","arguments":{"name":1,"n":%s}}' % ("7" * digits))
    assert isinstance(jsonrpc.decode_message(data), JsonRpcMessage | MalformedMessage)


def test_looking_for_repetitions_survives_any_depth() -> None:
    """Two parsers have two limits; between them lies a depth that one can read and the other cannot."""

    def nested(depth: int, name: str) -> bytes:
        arguments = f'{{"{name}":{"[" * depth}{"]" * depth}}}'
        return message('"id":1', '"method":"x"', f'"params":{{"name":"a","arguments":{arguments}}}')

    deepest = bisect.bisect(
        range(100_000),
        False,
        key=lambda depth: isinstance(jsonrpc.decode_message(nested(depth, "n")), MalformedMessage),
    )
    for depth in range(max(0, deepest - 100), deepest + 10):
        assert isinstance(jsonrpc.decode_message(nested(depth, "name")), JsonRpcMessage | MalformedMessage)


# Numbers, text and depth


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "nan", "inf", "-NaN"])
def test_numbers_that_json_does_not_have_are_parse_errors(constant: str) -> None:
    """RFC 8259, 6: "Numeric values that cannot be represented in the grammar below (such as Infinity and NaN)
    are not permitted"."""
    for data in (
        message(f'"id":{constant}', '"method":"x"'),
        message('"id":1', '"method":"x"', f'"params":{{"x":{constant}}}'),
        message('"id":1', '"method":"x"', f'"extra":[{constant}]'),
    ):
        assert malformed(data).error.code == PARSE_ERROR


@pytest.mark.parametrize("number", ["7" * 400, "-" + "7" * 400, "1e400", "-1e-400", "0." + "7" * 400], ids=range(5))
def test_number_of_any_size_may_stand_in_params(number: str) -> None:
    assert bytes(frame(message('"id":1', '"method":"x"', f'"params":{{"x":{number}}}')).params).endswith(b"}")


@pytest.mark.parametrize("escape", ["\\ud800", "\\udc00", "\\ud800\\ud800", "\\udc00\\ud800", "\\ud800x"])
def test_half_a_surrogate_pair_is_no_text(escape: str) -> None:
    """basic, Messages: "JSON-RPC messages MUST be UTF-8 encoded", which half a pair cannot be."""
    for data in (
        message(f'"id":"{escape}"', '"method":"x"'),
        message('"id":1', f'"method":"{escape}"'),
        message('"id":1', '"method":"x"', f'"params":{{"x":"{escape}"}}'),
    ):
        assert malformed(data).error.code == PARSE_ERROR


def test_whole_surrogate_pair_is_one_character() -> None:
    assert frame(message('"id":"\\ud83d\\ude00"', '"method":"x"')).id == "😀"


@pytest.mark.requirement("jsonrpc.utf-8")
@pytest.mark.parametrize(
    "bad",
    [
        b"\xff",
        b"\x80",
        b"\xc3",
        b"\xc0\xaf",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xf8\x88\x80\x80\x80",
    ],
    ids=lambda bad: bad.hex(),
)
@pytest.mark.parametrize(
    "around",
    [
        b'{"jsonrpc":"2.0","id":"%s","method":"x"}',
        b'{"jsonrpc":"2.0","id":1,"method":"%s"}',
        b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"%s"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"%s":1}}',
        b'{"jsonrpc":"2.0","id":1,"method":"x","unknown":"%s"}',
        b'{"jsonrpc":"2.0","id":1,"method":"x","%s":1}',
        b'{"jsonrpc":"2.0","id":1,"result":{"deep":[{"a":"%s"}]}}',
        b'[{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"%s"}}]',
        b"%s",
    ],
)
def test_invalid_utf_8_is_a_parse_error_anywhere(bad: bytes, around: bytes) -> None:
    """basic, Messages: "MUST be UTF-8 encoded". A decoder that skips what it is not asked for would not look."""
    result = malformed(around % bad)
    assert (result.error.code, result.id) == (PARSE_ERROR, None)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        message('"id":1', '"method":"x"', '"params":{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
        message('"id":1', '"method":"x"', '"extra":' + "[" * 100_000 + "]" * 100_000),
        message('"id":' + "[" * 100_000 + "]" * 100_000, '"method":"x"'),
        b"[" + message('"id":1', '"method":"x"', '"params":{"a":' + "[" * 100_000 + "]" * 100_000 + "}") + b"]",
    ],
    ids=range(8),
)
def test_hundred_thousand_brackets_are_a_parse_error(data: bytes) -> None:
    assert (malformed(data).error.code, malformed(data).id) == (PARSE_ERROR, None)


DEPTHS = (300, 5_000, 100_000)


def nested(levels: int) -> str:
    return '{"properties":{"a":' * levels + '{"type":"string"}' + "}}" * levels


@pytest.mark.parametrize("levels", DEPTHS)
@pytest.mark.parametrize("body", ['"result":{"structuredContent":%s}', '"result":%s', '"error":{"code":1,"data":%s}'])
def test_responses_nested_too_deeply_are_rejected(body: str, levels: int) -> None:
    result = malformed(message('"id":7', body % nested(levels)))
    # Beyond the recursion limit of the parser the id cannot be read either.
    assert (result.id, result.is_response) == ((7, True) if levels < 1_000 else (None, False))
    assert "at most 128 levels" in result.error.message


@pytest.mark.parametrize("levels", [1, 100, 126])
def test_message_within_the_limit_is_read(levels: int) -> None:
    data = message('"id":1', '"method":"x"', '"params":{"a":' + "[" * levels + "]" * levels + "}")
    assert isinstance(jsonrpc.decode_message(data), JsonRpcMessage)
    wide = message('"id":1', '"method":"x"', '"params":{"a":[' + ",".join(["[{}]"] * 50_000) + "]}")
    assert isinstance(jsonrpc.decode_message(wide, jsonrpc.MAX_JSON_NODES), JsonRpcMessage)


@pytest.mark.parametrize("other", ["0", '"["', '"]"', '"]["', "[[]]", '{"":{}}'])
@pytest.mark.parametrize("place", ["params", "result", "unknown"])
def test_depth_limit_is_exact_for_all_brackets(place: str, other: str) -> None:
    """The brackets of small messages are not counted, and none of those may be too deep."""
    for levels, arrays, alternating in itertools.product((125, 126, 127, 128, 129), (0, 1, 20, 60, 125), (False, True)):
        objects = levels - arrays
        kinds = "{[" * min(objects, arrays) if alternating else ""
        kinds += "{" * (objects - kinds.count("{")) + "[" * (arrays - kinds.count("["))
        value = kinds.replace("{", '{"":') + "0" + kinds[::-1].translate(str.maketrans("{[", "}]"))
        body = {
            "params": f'"method":"x","params":{{"a":{value},"t":{other}}}',
            "result": f'"result":{{"t":{other},"a":{value}}}',
            "unknown": f'"method":"x","t":{other},"a":{value}',
        }[place]
        around = 1 if place == "unknown" else 2
        decoded = jsonrpc.decode_message(message('"id":1', body))
        assert isinstance(decoded, MalformedMessage) is (levels + around > 128), body


# Batches


def test_batch_members_are_parsed_separately() -> None:
    """2025-03-26, basic, Batching."""
    result = jsonrpc.decode_message(
        b"[" + b",".join([message('"id":1', '"method":"ping"'), b"1", b"{}", message('"method":"n"')]) + b"]"
    )
    assert isinstance(result, list)
    assert [type(item) for item in result] == [JsonRpcMessage, MalformedMessage, MalformedMessage, JsonRpcMessage]
    assert [item.error.code for item in result if isinstance(item, MalformedMessage)] == [INVALID_REQUEST] * 2


def test_batch_inside_a_batch_is_one_invalid_member() -> None:
    result = jsonrpc.decode_message(b"[[" + message('"id":1', '"method":"ping"') + b"]]")
    assert isinstance(result, list)
    (member,) = result
    assert isinstance(member, MalformedMessage)
    assert (member.error.code, member.id) == (INVALID_REQUEST, None)


def test_empty_array_is_a_batch_without_members() -> None:
    assert jsonrpc.decode_message(b"[]") == []


@pytest.mark.parametrize("member", [b"1", b"{}", b"[]", b'""'])
def test_members_are_counted_before_they_are_read(member: bytes) -> None:
    """Two exceptions for each of two million members took eight seconds."""
    data = b"[" + b",".join([member] * 1_000_000) + b"]"
    began = time.process_time()
    result = jsonrpc.decode_message(data)
    assert time.process_time() - began < 1
    assert isinstance(result, MalformedMessage) and "at most 1000 members" in result.error.message
    assert len(jsonrpc.decode_message(b"[" + b",".join([member] * 1000) + b"]")) == 1000  # type: ignore[arg-type]


MANY = jsonrpc.MAX_JSON_NODES // 2 + 1


@pytest.mark.parametrize("inside", ['{"a":1}', "[[]]", '{"":{}}'])
def test_messages_with_too_many_json_nodes_are_rejected(inside: str) -> None:
    data = message('"id":1', '"method":"m"', f'"params":{{"of":[{",".join([inside] * MANY)}]}}')
    result = jsonrpc.decode_message(data, jsonrpc.MAX_JSON_NODES)
    assert isinstance(result, MalformedMessage) and "at most 200000" in result.error.message
    assert isinstance(jsonrpc.decode_message(data), JsonRpcMessage), "a client reads what it has asked for"


@pytest.mark.parametrize("value", ["1", '"a"', "null"])
def test_values_are_counted_too(value: str) -> None:
    for many, reads in ((jsonrpc.MAX_JSON_COMMAS - 9, True), (jsonrpc.MAX_JSON_COMMAS + 2, False)):
        data = message('"id":1', '"method":"m"', f'"params":{{"of":[{",".join([value] * many)}]}}')
        result = jsonrpc.decode_message(data, jsonrpc.MAX_JSON_NODES)
        assert isinstance(result, JsonRpcMessage if reads else MalformedMessage)


@pytest.mark.parametrize("text", ["{[:", '\\"{[:', "\\\\{[:", ',"{', "1"])
def test_brackets_inside_strings_do_not_count_as_nodes(text: str) -> None:
    texts = ",".join([json.dumps(text * 50_000), *[json.dumps(text)] * MANY])
    data = message('"id":1', '"method":"m"', f'"params":{{"of":[{texts}]}}')
    assert isinstance(jsonrpc.decode_message(data, jsonrpc.MAX_JSON_NODES), JsonRpcMessage)


@pytest.mark.parametrize("length", range(40))
def test_no_name_is_long_enough_to_hide_behind(length: int) -> None:
    """A call without arguments, or without `_meta`, is not taken for one that has them because it is as long."""
    for rest in ("", ',"arguments":{}', ',"_meta":{}'):
        params = msgspec.Raw(f'{{"name":"{"a" * length}","name":"b"{rest}}}'.encode())
        with pytest.raises(InvalidRequest, match="given twice"):
            methods.decode_params("tools/call", params)


CALLING = ("tools/call", "prompts/get")


@pytest.mark.parametrize("method", CALLING)
@pytest.mark.parametrize(
    "arguments", ['{"a":"1","a":"2"}', '{"a":"1", "b":"2", "a":"3"}', '{"a":"1","\\u0061":"2"}', '{"":"1","":"1"}']
)
def test_argument_that_is_duplicated_is_rejected(method: str, arguments: str) -> None:
    """What an auditor reads must be what runs."""
    for spaced in ("", " "):
        params = msgspec.Raw(f'{{{spaced}"name":"n","arguments":{arguments}}}'.encode())
        with pytest.raises(InvalidRequest, match="given twice"):
            methods.decode_params(method, params)


@pytest.mark.parametrize("method", CALLING)
@pytest.mark.parametrize(
    "arguments", ["{}", "{ }", '{"a":"1","b":"1"}', '{ "a" : "1" , "b" : "a" }', '{"\\u0061":"1","b":"a"}', "null"]
)
def test_unique_arguments_are_accepted(method: str, arguments: str) -> None:
    assert methods.decode_params(method, msgspec.Raw(f'{{"name":"n","arguments":{arguments}}}'.encode()))[0] is not None


@pytest.mark.parametrize("method", CALLING)
@pytest.mark.parametrize("depth", [100, 800, 900, 950, 980, 1000, 5000, 100_000])
def test_looking_into_arguments_survives_any_depth(method: str, depth: int) -> None:
    nested = "[" * depth + "]" * depth
    # Either is right; a RecursionError is not.
    with suppress(InvalidRequest):
        methods.decode_params(method, msgspec.Raw(f'{{"name":"n","arguments":{{"a": {nested}}}}}'.encode()))


def test_batch_that_is_not_json_is_one_parse_error() -> None:
    """JSON-RPC 2.0, 7: the example "rpc call Batch, invalid JSON" is answered by one error."""
    assert malformed(b"[" + message('"id":1', '"method":"ping"') + b',{"jsonrpc"').error.code == PARSE_ERROR


# What we say


@pytest.mark.parametrize("revision", [None, *SUPPORTED_PROTOCOL_VERSIONS])
def test_id_that_could_not_be_read_is_null_up_to_2025_06_18_and_left_out_after(revision: str | None) -> None:
    """JSON-RPC 2.0, 5: "it MUST be Null"; from 2025-11-25 on JSONRPCErrorResponse forbids null and does not require
    the id."""
    data = json.loads(jsonrpc.encode_error(None, ParseError("no"), revision))
    if revision is None or revision <= V2025_06_18:
        assert data == {"jsonrpc": "2.0", "id": None, "error": {"code": PARSE_ERROR, "message": "no"}}
    else:
        assert data == {"jsonrpc": "2.0", "error": {"code": PARSE_ERROR, "message": "no"}}


def test_error_without_data_omits_data() -> None:
    assert "data" not in json.loads(jsonrpc.encode_error(1, InvalidParams("no")))["error"]
    assert json.loads(jsonrpc.encode_error(1, InvalidParams("no", {"a": 1})))["error"]["data"] == {"a": 1}


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
def test_missing_resource_has_its_own_code_until_2025_11_25(revision: str) -> None:
    """server/resources, Error Handling: -32002; 2026-07-28: -32602, and -32002 MUST NOT be emitted."""
    code = json.loads(jsonrpc.encode_error(1, ResourceNotFound("a://b"), revision))["error"]["code"]
    assert code == (-32602 if revision == V2026_07_28 else -32002)


@pytest.mark.parametrize("revision", SUPPORTED_PROTOCOL_VERSIONS)
def test_error_codes_of_2026_07_28_are_not_sent_to_older_versions(revision: str) -> None:
    code = json.loads(jsonrpc.encode_error(1, MissingClientCapability({"roots": {}}), revision))["error"]["code"]
    assert (code == -32021) == (revision not in HANDSHAKE_VERSIONS)


@pytest.mark.requirement("jsonrpc.notification-id")
def test_notification_has_no_id_and_a_message_without_params_no_params() -> None:
    assert json.loads(jsonrpc.encode_notification("n", None)) == {"jsonrpc": "2.0", "method": "n"}
    assert json.loads(jsonrpc.encode_notification("n", {"a": 1})) == {
        "jsonrpc": "2.0",
        "method": "n",
        "params": {"a": 1},
    }
    assert json.loads(jsonrpc.encode_request(1, "m", None)) == {"jsonrpc": "2.0", "id": 1, "method": "m"}
    assert json.loads(jsonrpc.encode_request("1", "m", {})) == {
        "jsonrpc": "2.0",
        "id": "1",
        "method": "m",
        "params": {},
    }


@pytest.mark.requirement("stdio.lines")
@given(st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(st.characters(exclude_categories=["Cs"]))))
def test_encoded_messages_have_no_newlines_and_round_trip(id: int | str) -> None:
    """basic/transports, stdio: "Messages are delimited by newlines, and MUST NOT contain embedded newlines"."""
    messages = [
        jsonrpc.encode(jsonrpc.ResultResponse(id, Raw(b"{}"))),
        jsonrpc.encode_error(id, InvalidRequest(f"about {id}"), V2025_11_25),
        jsonrpc.encode_request(id, "m", {"x": id}),
    ]
    for data in messages:
        assert b"\n" not in data
        assert frame(data).id == id


@given(st.binary() | st.text().map(lambda text: text.encode(errors="surrogatepass")))
def test_decoding_never_raises(data: bytes) -> None:
    result = jsonrpc.decode_message(data)
    for item in result if isinstance(result, list) else [result]:
        assert isinstance(item, JsonRpcMessage | MalformedMessage)


# The 318 files of the JSON Parsing Test Suite: y_ must be accepted, n_ rejected, i_ is up to the parser

absent = pytest.mark.skipif(not CASES.is_dir(), reason="the JSON parsing cases are not here: ../shared/data/json")


def _files(prefix: str) -> list[Any]:
    return [pytest.param(path, id=path.stem) for path in sorted(CASES.glob(f"{prefix}_*.json"))]


def _inside(data: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"x":' + data + b"}}"


@absent
def test_all_the_cases_are_present() -> None:
    assert [len(_files(prefix)) for prefix in "yni"] == [95, 188, 35]


@absent
@pytest.mark.parametrize("path", _files("y"))
def test_json_that_must_be_accepted_is_accepted_in_params(path: Path) -> None:
    data = path.read_bytes()
    result = frame(_inside(data))
    assert json.loads(bytes(result.params)) == {"x": json.loads(data)}


@absent
@pytest.mark.parametrize("path", _files("y"))
def test_valid_json_is_never_a_parse_error(path: Path) -> None:
    """None of them is a message, so each is an invalid request, or a batch of such."""
    result = jsonrpc.decode_message(path.read_bytes())
    for item in result if isinstance(result, list) else [result]:
        assert isinstance(item, MalformedMessage)
        assert item.error.code == INVALID_REQUEST


@absent
@pytest.mark.parametrize("path", _files("n"))
def test_json_test_suite_n_files_are_parse_errors(path: Path) -> None:
    data = path.read_bytes()
    for written in (data, _inside(data), b"[" + _inside(data) + b"]"):
        result = malformed(written)
        assert (result.error.code, result.id) == (PARSE_ERROR, None)


@absent
@pytest.mark.parametrize("path", _files("i"))
def test_json_test_suite_i_files_are_accepted_or_rejected(path: Path) -> None:
    data = path.read_bytes()
    whole = jsonrpc.decode_message(data)
    assert isinstance(whole, list | MalformedMessage)
    inside = jsonrpc.decode_message(_inside(data))
    if isinstance(inside, MalformedMessage):
        assert inside.error.code == PARSE_ERROR
    else:
        # What is let in can be passed on: a gateway writes it back as it came.
        assert isinstance(inside, JsonRpcMessage)
        assert bytes(inside.params) in msgspec.json.encode({"params": inside.params})


# One reading


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n", "\t:  ")])
def test_honest_message_is_not_read_again(separators: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is spaced and escaped: looking for members that stand twice is no second parse of all of it."""
    monkeypatch.setattr(jsonrpc, "_decode_pairs", lambda text: pytest.fail("it was read again"))
    nested = [
        {"name": f"ä{n}", "id": n, "method": "x", "params": {"a": [1, {"a": 2}], "\u1234": '\\u0041"}'}}
        for n in range(50)
    ]
    arguments = {"params": nested, "id": {"arguments": 1}, "ü": "{", "e": {}, "n": None}
    params = {"name": "t", "arguments": arguments, "_meta": {"name": 1, "arguments": 2}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    data = json.dumps(message, separators=separators).encode()
    frame = jsonrpc.decode_message(data)
    assert isinstance(frame, jsonrpc.JsonRpcMessage)
    typed, _ = methods.decode_params("tools/call", frame.params)
    assert json.loads(bytes(typed.arguments)) == arguments


@pytest.mark.parametrize(
    "text, twice",
    [
        ('{"a": 1, "a": 2}', True),
        ('{"a": 1, "a": 1}', True),
        ('{"a": {"b": 1}, "c": 1, "a": {"b": 1}}', True),
        ('{"a" : 1 , "\\u0061" : 2 }', True),
        ('{"a": 1, "b": {"a": 1, "c": {"a": 2}}}', False),
        ('{"a": "\\"a\\": 1", "b": ":{,"}', False),
        ('{"a\\"": 1, "a": 2, "": 3}', False),
        ("{ }", False),
    ],
)
def test_duplicate_member_is_found_with_any_whitespace(text: str, twice: bool) -> None:
    assert jsonrpc.has_duplicate_keys(msgspec.Raw(text.encode())) is twice


FRAME_MEMBERS = {"jsonrpc": '"2.0"', "id": "1", "method": '"tools/call"', "params": "{}"}
CALL_MEMBERS = {"name": '"t"', "arguments": '{"a": "{}"}', "_meta": '{"b": {}}'}
OTHER_NAMES = ["Name", "n\\u0061me", "ARGUMENTS", "_META", "_m\\u0065ta", "ID", "i\\u0064", "Params", "x", 'x\\"']
VALUES = ["{}", '{"a": "{}"}', '{"b": {}}', "1", '"t"', '"{}"', '""']


@pytest.mark.parametrize("place", [0, 1, 9])
@pytest.mark.parametrize("space", ["", " ", "\n"])
def test_no_spacing_hides_a_routing_member_that_is_duplicated_or_spelled_otherwise(space: str, place: int) -> None:
    def write(members: dict[str, str], name: str, value: str) -> bytes:
        pairs = [*members.items()]
        pairs.insert(place, (name, value))
        return ("{" + f",{space}".join(f'"{name}":{space}{value}' for name, value in pairs) + "}").encode()

    def is_refused(text: bytes, params: bool) -> bool:
        if not params:
            return isinstance(jsonrpc.decode_message(text), MalformedMessage)
        try:
            methods.decode_params("tools/call", Raw(text))
        except InvalidRequest:
            return True
        return False

    for params, members in ((False, FRAME_MEMBERS), (True, CALL_MEMBERS)):
        routing = {name for name in members if name != "jsonrpc"}
        for name, value in itertools.product([*members, *OTHER_NAMES], VALUES):
            text = write(members, name, value)
            # A value that is invalid by itself is refused, too, if it is the last.
            if json.loads(f'"{name}"').casefold() in routing:
                assert is_refused(text, params), text
            elif name != "jsonrpc":
                assert not is_refused(text, params), text


# A tools/call that is read in one decode says what it would have said in two


META = '"_meta":{"progressToken":1}'
PLAIN = message('"id":7', '"method":"tools/call"', '"params":{"name":"n","arguments":{"a":1,"b":"}"},' + META + "}")


def read_twice(data: bytes) -> tuple[Any, ...]:
    result = frame(data)
    typed, meta = methods.decode_params(str(result.method), result.params)
    return result.id, result.method, bytes(result.params), typed, bytes(meta)


@pytest.mark.parametrize(
    "data",
    [
        PLAIN,
        PLAIN.replace(b'"id":7', b'"id":"params"'),
        PLAIN.replace(b'"id":7', b'"id":-9223372036854775807'),
        message('"params":{' + META + ',"arguments":{"params":{}},"name":"p"}', '"method":"tools/call"', '"id":"x"'),
        message('"params":{"name":"","arguments":[],"_meta":0}', '"id":0', '"method":"tools/call"'),
    ],
)
def test_plain_tools_call_is_read_at_once(data: bytes) -> None:
    response = methods.decode_tool_call(data)
    assert response is not None and response.typed is not None
    once = (response.id, response.method, bytes(response.params), response.typed, bytes(response.typed.meta))
    assert once == read_twice(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b"[" + PLAIN + b"]",
        PLAIN + b" ",
        PLAIN[:-1],
        PLAIN + PLAIN,
        PLAIN.replace(b"2.0", b"2.1"),
        PLAIN.replace(b"tools/call", b"tools/calm"),
        PLAIN.replace(b'"id":7,', b""),
        PLAIN.replace(b'"id":7', b'"id":null'),
        PLAIN.replace(b'"id":7', b'"id":-0'),
        PLAIN.replace(b'"id":7', b'"id":"\\u0061"'),
        PLAIN.replace(b'"id":7', b'"id":9223372036854775808'),
        PLAIN.replace(b'"id":7', b'"id":7,"id":7'),
        PLAIN.replace(b'"id":7', b'"id":7,"typed":null'),
        PLAIN.replace(b'"id":7', b'"id":7,"result":{}'),
        PLAIN.replace(b'"n"', b'"n","name":"m"'),
        PLAIN.replace(b'"n"', b'"n","n\\u0061me":"m"'),
        PLAIN.replace(b'"n"', b'"n","requestState":"s"'),
        PLAIN.replace(b'"n"', '"é"'.encode()),
        PLAIN.replace(b'"n"', b'"\xff"'),
        PLAIN.replace(b'"n"', b"1"),
        PLAIN.replace(b'"b"', b'"a"'),
        PLAIN.replace(b'"arguments":{"a":1,"b":"}"},', b""),
        PLAIN.replace(b"," + META.encode(), b""),
        PLAIN.replace(b'{"a":1', b'{"c":[%s1],"a":1' % (b"1," * 200_000)),
    ],
)
def test_unusual_request_uses_the_full_parser(data: bytes) -> None:
    """So what is refused there is refused, and in the same words."""
    assert methods.decode_tool_call(data) is None


# Lines

_LINE_TEXTS = st.text(st.sampled_from([*'\n\r\x85\u2028\u2029\x0b\x0c\x1c"\\ é日', "x"]), max_size=8)
_LINE_VALUES = st.recursive(
    st.one_of(st.integers(), _LINE_TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_LINE_TEXTS, inner, max_size=3),
    max_leaves=6,
)


@given(_LINE_VALUES, st.sampled_from(["", " ", "\n", "\r\n", "\r", "\t\n "]), st.booleans())
def test_any_message_becomes_one_line_with_equal_content(value: Any, gap: str, ascii: bool) -> None:
    written = json.dumps(value, indent=gap or None, ensure_ascii=ascii)
    line = jsonrpc.to_line(f"{gap}{written}{gap}".encode())
    assert len(line.decode().splitlines()) <= 1
    assert json.loads(line) == value


def test_message_without_line_breaks_is_not_copied() -> None:
    data = b'{"jsonrpc":"2.0","id":1,"result":{"text":"a\\nb"}}'
    assert jsonrpc.to_line(data) is data
