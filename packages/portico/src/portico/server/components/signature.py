"""From a function to what a tool needs: the schemas, and a way from bytes to arguments.

Decoding the arguments is the validation. The parameters become the fields of one msgspec Struct, so a call costs one
decode in C, and the values come out in the order of the parameters. Only when that fails is Python's time spent, in
`mistakes.py`.
"""

from __future__ import annotations

import enum
import functools
import inspect
import typing
from collections.abc import Callable, Collection
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import astuple

from portico._lazy import LazyModule
from portico.jsonschema import SchemaError
from portico.jsonschema.decoding import Translator, hook, is_native
from portico.jsonschema.docstrings import Docstring, parse_docstring
from portico.jsonschema.generation import Field, object_schema, schema
from portico.jsonschema.type_hints import (
    is_field_info,
    is_literal,
    is_pydantic,
    is_union,
    resolve,
    shape_of,
    strip_annotations,
    union_of,
)
from portico.protocol.errors import UsageError
from portico.server.components.interop import is_foreign

if TYPE_CHECKING:
    from portico.jsonschema.argument_issues import Problem
    from portico.server.components import argument_repair
else:
    argument_repair = LazyModule("portico.server.components.argument_repair")

Function = Callable[..., Any]
Verify = Callable[[Any, bytes], None]

NO_KEYWORDS: dict[str, Any] = {}
# Of these no copy is needed.
_SHARED = frozenset({type(None), bool, int, float, str, bytes})
# A tool that returns these says it in content blocks; a schema would only repeat it.
PLAIN_RESULTS = (None, type(None), str, bytes, Any, object, Parameter.empty)


class ArgumentError(Exception):
    """The arguments do not fit the parameters. Its text is written for the model that sent them."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(problem.message for problem in self.problems)


class Signature(Struct, frozen=True, kw_only=True):
    """A function's parameters, read once when it is registered.

    `bind` gives a pair for `fn(*args, **kwargs)`. Nearly always everything is in `args`, in the order of the
    parameters, and `kwargs` is one empty dict that all calls share: it is for reading.
    """

    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    returns: Any
    summary: str
    context: str | None
    decode: Callable[[bytes | Raw], Struct]
    types: dict[str, Any]
    # Where the context stands among the values; -1 for nowhere.
    place: int
    # The last values can only be passed by name if the function has a `*`, or a parameter before them is skipped.
    by_name: tuple[str, ...]

    def bind(
        self, arguments: bytes | Raw, context: object, *, strict: bool = False
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments for the function. Raises ArgumentError for whatever else a client may have sent.

        With `strict`, values that only fit after a repair are refused too.
        """
        try:
            # MCP lets a client leave out the arguments of a tool that needs none.
            values = astuple(self.decode(arguments or b"{}"))
        except (ValueError, RecursionError):
            values = argument_repair.second_look(self, arguments, strict=strict)
        place = self.place
        if place < 0 and not self.by_name:
            return values, NO_KEYWORDS
        if place == len(values):
            values += (context,)
        elif place >= 0:
            values = (*values[:place], context, *values[place:])
        if not self.by_name:
            return values, NO_KEYWORDS
        names = self.by_name
        return values[: -len(names)], dict(zip(names, values[-len(names) :], strict=True))


class _Argument(Struct):
    """One parameter: what the client is told about it, or None for the one that takes the Context."""

    parameter: Parameter
    field: Field | None = None
    # How the Struct fills in what the client left out.
    initial: dict[str, Any] = {}


def signature_of(
    fn: Function, *, context_type: type, skip: Collection[str] = (), without_output: tuple[type, ...] = ()
) -> Signature:
    """Read a function. Raises UsageError if a client could not be told how to call it.

    Parameters in `skip` keep their defaults and are not shown. A result that contains one of the classes in
    `without_output` has no output schema.
    """
    try:
        return _signature(fn, context_type, skip, without_output)
    except SchemaError as error:
        raise UsageError(str(error)) from error


def _signature(fn: Function, context_type: type, skip: Collection[str], without_output: tuple[type, ...]) -> Signature:
    source = _source(fn)
    where = getattr(source, "__qualname__", repr(fn)).rpartition("<locals>.")[2]
    hints, doc = resolve(source), _doc(fn, source)
    parameters = _parameters(fn, where)
    hidden = {*skip, *_given(fn)}
    arguments = [_argument(each, hints, doc, context_type) for each in parameters if each.name not in hidden]
    contexts = [at for at, argument in enumerate(arguments) if argument.field is None]
    if len(contexts) > 1:
        raise UsageError(f"{where}: only one parameter can take the Context.")
    fields = [argument.field for argument in arguments if argument.field]
    # The schema comes first: it says best which type is wrong, and where.
    described = object_schema(fields, where=where)
    types, decode = _decoder(arguments, where)
    returns = hints.get("return", Parameter.empty)
    return Signature(
        input_schema=described,
        output_schema=_output(returns, without_output),
        returns=returns,
        summary=doc.summary,
        context=arguments[contexts[0]].parameter.name if contexts else None,
        decode=decode,
        types=types,
        place=contexts[0] if contexts else -1,
        by_name=_by_name(parameters, [argument.parameter for argument in arguments], where),
    )


def _source(fn: Function) -> Function:
    """The function whose annotations and docstring count."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    return fn if inspect.isroutine(fn) else type(fn).__call__


def _doc(fn: Function, source: Function) -> Docstring:
    text = inspect.getdoc(source)
    if text is None and not isinstance(fn, functools.partial) and not inspect.isroutine(fn):
        text = inspect.getdoc(type(fn))
    return parse_docstring(text)


def _given(fn: Function) -> set[str]:
    """What a partial has been given by name. It stays out of the schema: it may be a secret, and it is decided."""
    given: set[str] = set()
    while isinstance(fn, functools.partial):
        given.update(fn.keywords)
        fn = fn.func
    return given


def _parameters(fn: Function, where: str) -> list[Parameter]:
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: its parameters cannot be read ({error}).") from error
    for parameter in parameters:
        if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            raise UsageError(
                f"{where}: {parameter} cannot be described to a client. Give every parameter a name, or take one"
                " parameter of type dict."
            )
    return parameters


def _argument(parameter: Parameter, hints: dict[str, Any], doc: Docstring, context_type: type) -> _Argument:
    hint = hints.get(parameter.name, parameter.annotation)
    if hint is Parameter.empty:
        if parameter.name == "ctx":
            return _Argument(parameter)
        hint = Any
    elif _mentions(hint, (context_type,)):
        return _Argument(parameter)
    default = UNSET if parameter.default is Parameter.empty else parameter.default
    if is_field_info(default):
        hint, default = Annotated[hint, default], UNSET
    constraints = strip_annotations(hint)[1]
    if default is UNSET:
        default = constraints.default
    factory = constraints.factory if default is UNSET else None
    if default is None:
        hint = _or_none(hint)
    words = doc.params.get(parameter.name, "")
    field = Field(parameter.name, hint, default, words, optional=factory is not None)
    return _Argument(parameter, field, {"default_factory": factory} if factory else _initial(default))


def _or_none(hint: Any) -> Any:
    """`limit: int = None` is shown with the default null, so null must be accepted."""
    if strip_annotations(hint)[0] in (Any, object, None, type(None)):
        return hint
    if typing.get_origin(hint) is Annotated:
        return Annotated[(union_of([hint.__origin__, None]), *hint.__metadata__)]
    return union_of([hint, None])


def _initial(default: Any) -> dict[str, Any]:
    """A default for the Struct that no two calls share."""
    if default is UNSET:
        return {}
    if type(default) in (list, dict, set) and not default:
        return {"default_factory": type(default)}
    if type(default) in _SHARED:
        return {"default": default}
    from copy import deepcopy  # few functions have another default than these

    try:
        shared = deepcopy(default) is default
    except Exception:  # A lock, a connection: not a value, and meant to be shared.
        shared = True
    return {"default": default} if shared else {"default_factory": lambda: deepcopy(default)}


def _decoder(arguments: list[_Argument], where: str) -> tuple[dict[str, Any], Callable[[bytes | Raw], Struct]]:
    translator = Translator()
    types: dict[str, Any] = {}
    fields: list[Any] = []
    for argument in arguments:
        if argument.field is None:
            continue
        name = argument.field.name
        types[name] = translator.translate(argument.field.type)
        # Not every name of a parameter can be an attribute of a Struct, so the fields are numbered.
        fields.append((f"f{len(fields)}", types[name], msgspec.field(name=name, **argument.initial)))
    try:
        struct = msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True, kw_only=True, gc=False)
        return types, msgspec.json.Decoder(struct, dec_hook=hook).decode
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: {error}.") from error


def _output(hint: Any, without: tuple[type, ...]) -> dict[str, Any] | None:
    bare = strip_annotations(hint)[0]
    options = typing.get_args(bare) if is_union(bare) else (bare,)
    if all(option in PLAIN_RESULTS for option in options) or _mentions(hint, without, foreign=True):
        return None
    if bare is list or (
        typing.get_origin(bare) is list and strip_annotations(typing.get_args(bare)[0])[0] in (Any, object)
    ):
        # It may hold images, say, and then it is content.
        return None
    try:
        return schema(hint, output=True)
    except SchemaError:
        return None


def _mentions(hint: Any, classes: tuple[type, ...], *, foreign: bool = False) -> bool:
    """Whether one of the classes stands anywhere in a type, as in `list[Image]` or `Context | None`; or a class of
    another library that stands for one."""
    bare = strip_annotations(hint)[0]
    cls = typing.get_origin(bare) or bare
    if isinstance(cls, type) and (issubclass(cls, classes) or (foreign and is_foreign(cls))):
        return True
    return not is_literal(bare) and any(_mentions(arg, classes, foreign=foreign) for arg in typing.get_args(bare))


def _by_name(parameters: list[Parameter], passed: list[Parameter], where: str) -> tuple[str, ...]:
    """The names of those that stand behind a gap, or behind a `*`."""
    count = 0
    for parameter in parameters:
        if parameter not in passed or parameter.kind is Parameter.KEYWORD_ONLY:
            break
        count += 1
    if any(parameter.kind is Parameter.POSITIONAL_ONLY for parameter in passed[count:]):
        raise UsageError(f"{where}: a parameter before a positional-only one cannot be left out.")
    return tuple(parameter.name for parameter in passed[count:])


# What a body returns, held against what its annotation promised


def verifier(hint: Any, name: str) -> Verify | None:
    """A check that the encoded value fits the output schema: clients hold us to it, and so do we.

    An instance of the annotated class is trusted. Anything else is decoded once more, in C, where msgspec knows the
    type; where it does not, decoding would run the author's own code again, and that is not done.
    """
    bare = strip_annotations(hint)[0]
    if bare in (Any, object, Parameter.empty):
        return None
    trusted = bare if _is_made_of_fields(bare) else ()
    if not trusted and not is_native(hint):
        return None
    # A bool is an int for Python and not for JSON, so this one is compared exactly. No float: NaN becomes null.
    exact = bare if bare in (int, bool) else None

    @functools.cache
    def made() -> Callable[[bytes], Any]:
        return msgspec.json.Decoder(Translator().translate(hint), dec_hook=hook).decode

    # Hardly a body returns anything but an instance of the class it promises, so that has one with the first that does.
    decode = None if trusted else made()

    def verify(value: Any, encoded: bytes) -> None:
        if type(value) is exact or isinstance(value, trusted):
            return
        try:
            (decode or made())(encoded)
        except ValueError as reason:
            raise TypeError(f"{name} returned a {type(value).__name__} that does not fit {hint}: {reason}") from None

    return verify


def _is_made_of_fields(bare: Any) -> bool:
    if not isinstance(bare, type) or typing.is_typeddict(bare):
        return False
    return shape_of(bare) is not None or is_pydantic(bare) or issubclass(bare, enum.Enum)
