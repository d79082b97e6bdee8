"""Function signatures: the schemas of a tool, and decoding of arguments.

Decoding validates. The parameters become the fields of one msgspec Struct, so a call costs one decode in C, and the
values arrive in the order of the parameters. Only if that fails does Python code run, in `argument_repair.py`.
"""

from __future__ import annotations

import enum
import functools
import inspect
import typing
from collections.abc import Callable, Collection
from inspect import Parameter
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Annotated, Any
from weakref import WeakKeyDictionary

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import astuple

from portico._lazy import LazyModule
from portico.jsonschema import SchemaError
from portico.jsonschema.decoding import TypeTranslator, dec_hook, is_native
from portico.jsonschema.docstrings import Docstring, parse_docstring
from portico.jsonschema.generation import Field, schema_for_fields, schema_for_type
from portico.jsonschema.type_hints import (
    get_class_fields,
    is_field_info,
    is_literal,
    is_pydantic,
    is_union,
    make_union,
    resolve_annotations,
    split_annotations,
)
from portico.protocol.errors import UsageError
from portico.server.components.interop import is_foreign_type

if TYPE_CHECKING:
    from portico.jsonschema.argument_issues import ArgumentIssue
    from portico.server.components import argument_repair
else:
    argument_repair = LazyModule("portico.server.components.argument_repair")

Function = Callable[..., Any]
OutputValidator = Callable[[Any, bytes], None]

NO_KEYWORDS: dict[str, Any] = {}
# Immutable default values, which need no copy.
_SHARED = frozenset({type(None), bool, int, float, str, bytes})
# Return types that are sent as content blocks; a schema would only repeat them.
UNSTRUCTURED_TYPES = (None, type(None), str, bytes, Any, object, Parameter.empty)


class ArgumentError(Exception):
    """Raised when arguments do not fit the parameters. Its text is written for the model that sent them."""

    def __init__(self, problems: list[ArgumentIssue]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(problem.message for problem in self.problems)


class FunctionSignature(Struct, frozen=True, kw_only=True):
    """Parameters of a function, read once at registration.

    `bind` returns a pair for `fn(*args, **kwargs)`. Nearly always everything is in `args`, in the order of the
    parameters, and `kwargs` is an empty dict that all calls share and must not modify.
    """

    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    returns: Any
    summary: str
    context: str | None
    decode: Callable[[bytes | Raw], Struct]
    types: dict[str, Any]
    # Position of the context among the values; -1 if the function takes none.
    context_index: int
    # The last values must be passed by name if the function has a `*`, or if a parameter before them is skipped.
    keyword_names: tuple[str, ...]

    def bind(
        self, arguments: bytes | Raw, context: object, strict: bool = False
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments for the function. Raises ArgumentError for any invalid input.

        With `strict`, values that only fit after a repair are rejected too.
        """
        try:
            # MCP allows a client to omit the arguments of a tool that requires none.
            values = astuple(self.decode(arguments or b"{}"))
        except (ValueError, RecursionError):
            values = argument_repair.repair_arguments(self, arguments, strict=strict)
        index = self.context_index
        if index < 0 and not self.keyword_names:
            return values, NO_KEYWORDS
        if index == len(values):
            values += (context,)
        elif index >= 0:
            values = (*values[:index], context, *values[index:])
        if not self.keyword_names:
            return values, NO_KEYWORDS
        names = self.keyword_names
        return values[: -len(names)], dict(zip(names, values[-len(names) :], strict=True))


class _SignatureArgument(Struct):
    """A parameter: its field in the schema, or None for the one that receives the Context."""

    parameter: Parameter
    field: Field | None = None
    # Default value for the Struct field.
    initial: dict[str, Any] = {}


def inspect_signature(
    fn: Function,
    *,
    context_type: type,
    skip: Collection[str] = (),
    types_without_schema: tuple[type, ...] = (),
    allow_kwargs: bool = False,
) -> FunctionSignature:
    """Read the signature of a function. Raises UsageError if it cannot be described to clients.

    Parameters in `skip` use their defaults and are not listed. A result that contains one of the classes in
    `types_without_schema` has no output schema. `allow_kwargs`: ignore `**kwargs`, which another schema describes.
    """
    method = _bound_method(fn)
    if method is None:
        return _read(fn, context_type, skip, types_without_schema, allow_kwargs)
    key = (context_type, frozenset(skip), types_without_schema, allow_kwargs)
    # A method's docstring and defaults can be replaced; the signature is then read again.
    state = (method.__code__, method.__doc__, method.__defaults__, method.__kwdefaults__)
    cached = _method_signatures.setdefault(method, {})
    entry = cached.get(key)
    if entry is None or any(now is not cached_part for now, cached_part in zip(state, entry[0], strict=True)):
        entry = cached[key] = (state, _read(fn, context_type, skip, types_without_schema, allow_kwargs))
    return entry[1]


# Signatures of methods, which are the same for every instance: building a service reads a hundred of them, mostly to
# resolve annotations. Functions are not cached, because a function is rarely registered twice. An entry lives as long
# as its method.
_method_signatures: WeakKeyDictionary[FunctionType, dict[Any, tuple[tuple[Any, ...], FunctionSignature]]] = (
    WeakKeyDictionary()
)


def _bound_method(fn: Function) -> FunctionType | None:
    """Return the function of the bound method that `fn` is or wraps, or None for anything else.

    Like `inspect.signature` it stops at an explicit `__signature__`: then the parameters are not the method's.
    """
    method = inspect.unwrap(fn, stop=lambda wrapper: hasattr(wrapper, "__signature__"))
    if not isinstance(method, MethodType) or hasattr(method, "__signature__"):
        return None
    return method.__func__ if isinstance(method.__func__, FunctionType) else None


def _read(
    fn: Function, context_type: type, skip: Collection[str], without_output: tuple[type, ...], allow_kwargs: bool
) -> FunctionSignature:
    try:
        return _signature(fn, context_type, skip, without_output, allow_kwargs)
    except SchemaError as error:
        raise UsageError(str(error)) from error


def _signature(
    fn: Function, context_type: type, skip: Collection[str], without_output: tuple[type, ...], allow_kwargs: bool
) -> FunctionSignature:
    source = _source(fn)
    where = getattr(source, "__qualname__", repr(fn)).rpartition("<locals>.")[2]
    hints, doc = resolve_annotations(source), _doc(fn, source)
    parameters = _parameters(fn, where, allow_kwargs=allow_kwargs)
    hidden = {*skip, *_partial_keywords(fn)}
    arguments = [
        _argument(parameter, hints, doc, context_type) for parameter in parameters if parameter.name not in hidden
    ]
    contexts = [at for at, argument in enumerate(arguments) if argument.field is None]
    if len(contexts) > 1:
        raise UsageError(f"{where}: only one parameter can receive the Context.")
    fields = [argument.field for argument in arguments if argument.field]
    # Build the schema first: its errors name the invalid type and its location.
    described = schema_for_fields(fields, context=where)
    types, decode = _decoder(arguments, where)
    returns = hints.get("return", Parameter.empty)
    return FunctionSignature(
        input_schema=described,
        output_schema=_output(returns, without_output),
        returns=returns,
        summary=doc.summary,
        context=arguments[contexts[0]].parameter.name if contexts else None,
        decode=decode,
        types=types,
        context_index=contexts[0] if contexts else -1,
        keyword_names=_by_name(parameters, [argument.parameter for argument in arguments], where),
    )


def _source(fn: Function) -> Function:
    """Return the function whose annotations and docstring apply."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    return fn if inspect.isroutine(fn) else type(fn).__call__


def _doc(fn: Function, source: Function) -> Docstring:
    text = inspect.getdoc(source)
    if text is None and not isinstance(fn, functools.partial) and not inspect.isroutine(fn):
        text = inspect.getdoc(type(fn))
    return parse_docstring(text)


def _partial_keywords(fn: Function) -> set[str]:
    """Return the keyword arguments bound by `functools.partial`. They are not in the schema: they are fixed and may be
    secrets.
    """
    names: set[str] = set()
    while isinstance(fn, functools.partial):
        names.update(fn.keywords)
        fn = fn.func
    return names


def _parameters(fn: Function, where: str, *, allow_kwargs: bool) -> list[Parameter]:
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: cannot read its parameters ({error}).") from error
    if allow_kwargs:
        parameters = [parameter for parameter in parameters if parameter.kind is not Parameter.VAR_KEYWORD]
    for parameter in parameters:
        if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            raise UsageError(
                f"{where}: {parameter} cannot be described to a client. Name every parameter, take one "
                "parameter of type dict, or pass input_schema."
            )
    return parameters


def _argument(parameter: Parameter, hints: dict[str, Any], doc: Docstring, context_type: type) -> _SignatureArgument:
    hint = hints.get(parameter.name, parameter.annotation)
    if hint is Parameter.empty:
        if parameter.name == "ctx":
            return _SignatureArgument(parameter)
        hint = Any
    elif _mentions_class(hint, (context_type,)):
        return _SignatureArgument(parameter)
    default = UNSET if parameter.default is Parameter.empty else parameter.default
    if is_field_info(default):
        hint, default = Annotated[hint, default], UNSET
    constraints = split_annotations(hint)[1]
    if default is UNSET:
        default = constraints.default
    factory = constraints.factory if default is UNSET else None
    if default is None:
        hint = _or_none(hint)
    words = doc.params.get(parameter.name, "")
    field = Field(parameter.name, hint, default, words, optional=factory is not None)
    return _SignatureArgument(parameter, field, {"default_factory": factory} if factory else _initial(default))


def _or_none(hint: Any) -> Any:
    """Return the hint with None added: `limit: int = None` has the default null, so null must be accepted."""
    if split_annotations(hint)[0] in (Any, object, None, type(None)):
        return hint
    if typing.get_origin(hint) is Annotated:
        return Annotated[(make_union([hint.__origin__, None]), *hint.__metadata__)]
    return make_union([hint, None])


def _initial(default: Any) -> dict[str, Any]:
    """Return the Struct field options for a default value that calls must not share."""
    if default is UNSET:
        return {}
    if type(default) in (list, dict, set) and not default:
        return {"default_factory": type(default)}
    if type(default) in _SHARED:
        return {"default": default}
    from copy import deepcopy  # few functions have other defaults

    try:
        shared = deepcopy(default) is default
    except Exception:  # A lock or a connection: meant to be shared.
        shared = True
    return {"default": default} if shared else {"default_factory": lambda: deepcopy(default)}


def _decoder(arguments: list[_SignatureArgument], where: str) -> tuple[dict[str, Any], Callable[[bytes | Raw], Struct]]:
    translator = TypeTranslator()
    types: dict[str, Any] = {}
    fields: list[Any] = []
    for argument in arguments:
        if argument.field is None:
            continue
        name = argument.field.name
        types[name] = translator.translate(argument.field.type)
        # Not every parameter name is a valid attribute name of a Struct, so the fields are numbered.
        fields.append((f"f{len(fields)}", types[name], msgspec.field(name=name, **argument.initial)))
    try:
        struct = msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True, kw_only=True, gc=False)
        return types, msgspec.json.Decoder(struct, dec_hook=dec_hook).decode
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: {error}.") from error


def _output(hint: Any, without: tuple[type, ...]) -> dict[str, Any] | None:
    bare = split_annotations(hint)[0]
    options = typing.get_args(bare) if is_union(bare) else (bare,)
    if all(option in UNSTRUCTURED_TYPES for option in options) or _mentions_class(hint, without, foreign=True):
        return None
    if bare is list or (
        typing.get_origin(bare) is list and split_annotations(typing.get_args(bare)[0])[0] in (Any, object)
    ):
        # The list may hold images, for example, and is then sent as content.
        return None
    try:
        return schema_for_type(hint, for_output=True)
    except SchemaError:
        return None


def _mentions_class(hint: Any, classes: tuple[type, ...], *, foreign: bool = False) -> bool:
    """Return whether a type mentions one of the classes, as in `list[Image]` or `Context | None`.

    With `foreign`, also another library's version of one of them.
    """
    bare = split_annotations(hint)[0]
    cls = typing.get_origin(bare) or bare
    if isinstance(cls, type) and (issubclass(cls, classes) or (foreign and is_foreign_type(cls))):
        return True
    return not is_literal(bare) and any(_mentions_class(arg, classes, foreign=foreign) for arg in typing.get_args(bare))


def _by_name(parameters: list[Parameter], passed: list[Parameter], where: str) -> tuple[str, ...]:
    """Return the names of the parameters after a skipped one, or after a `*`."""
    count = 0
    for parameter in parameters:
        if parameter not in passed or parameter.kind is Parameter.KEYWORD_ONLY:
            break
        count += 1
    if any(parameter.kind is Parameter.POSITIONAL_ONLY for parameter in passed[count:]):
        raise UsageError(f"{where}: a parameter before a positional-only one cannot be skipped.")
    return tuple(parameter.name for parameter in passed[count:])


# Validation of return values against annotations


def make_output_validator(hint: Any, name: str) -> OutputValidator | None:
    """Return a function that checks an encoded value against the output schema, or None if the type cannot be checked.

    Instances of the annotated class are trusted. Other values are decoded once more, in C, if msgspec supports the
    type; otherwise decoding would run the author's own code again, so they are not checked.
    """
    bare = split_annotations(hint)[0]
    if bare in (Any, object, Parameter.empty):
        return None
    trusted = bare if _is_made_of_fields(bare) else ()
    if not trusted and not is_native(hint):
        return None
    # bool is a subclass of int in Python but not in JSON, so types are compared exactly. Not for float: NaN becomes
    # null.
    exact = bare if bare in (int, bool) else None

    @functools.cache
    def make_decoder() -> Callable[[bytes], Any]:
        return msgspec.json.Decoder(TypeTranslator().translate(hint), dec_hook=dec_hook).decode

    # Create the decoder on demand: nearly all functions return an instance of the annotated class.
    decode = None if trusted else make_decoder()

    def verify(value: Any, encoded: bytes) -> None:
        if type(value) is exact or isinstance(value, trusted):
            return
        try:
            (decode or make_decoder())(encoded)
        except ValueError as reason:
            # `int`, not `<class 'int'>`.
            expected = inspect.formatannotation(hint)
            raise TypeError(f"{name} returned {type(value).__name__}, expected {expected}: {reason}") from None

    return verify


def _is_made_of_fields(bare: Any) -> bool:
    if not isinstance(bare, type) or typing.is_typeddict(bare):
        return False
    return get_class_fields(bare) is not None or is_pydantic(bare) or issubclass(bare, enum.Enum)
