"""Lower bound of a tools/call in Python: decode the JSON, add two numbers, encode the response. No protocol.

The bare servers around it are the limits of the HTTP table. The answer has the bytes that Portico's has.
"""

import msgspec


class Arguments(msgspec.Struct):
    a: int
    b: int


class Params(msgspec.Struct):
    name: str
    arguments: Arguments


class Request(msgspec.Struct):
    id: int
    method: str
    params: Params


class Text(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class Implementation(msgspec.Struct):
    name: str
    version: str


class Meta(msgspec.Struct):
    server: Implementation = msgspec.field(name="io.modelcontextprotocol/serverInfo")


class Structured(msgspec.Struct):
    result: int


class Result(msgspec.Struct, rename={"meta": "_meta", "structured": "structuredContent", "is_error": "isError"}):
    result_type: str = msgspec.field(name="resultType")
    meta: Meta
    content: list[Text]
    structured: Structured
    is_error: bool


class Response(msgspec.Struct, tag_field="jsonrpc", tag="2.0"):
    id: int
    result: Result


SERVER = Meta(Implementation("bench", "1.0.0"))

_decode = msgspec.json.Decoder(Request).decode
_encode = msgspec.json.Encoder().encode


def answer(body: bytes) -> bytes:
    request = _decode(body)
    total = request.params.arguments.a + request.params.arguments.b
    result = Result("complete", SERVER, [Text(str(total))], Structured(total), False)
    return _encode(Response(request.id, result))
