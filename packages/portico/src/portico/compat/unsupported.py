"""Options of other projects that Portico does not have: they raise, and the error names the alternative."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from portico._options import WrongOption


class Unsupported(NamedTuple):
    """An option that is accepted only with a value that asks for what Portico does anyway."""

    alternative: str
    accepted: tuple[Any, ...] = (None,)


def reject_options(of: str, options: Mapping[str, Any], unsupported: Mapping[str, Unsupported]) -> None:
    """Raise WrongOption for the first of the options, unless its value is one that changes nothing."""
    for name, value in options.items():
        option = unsupported.get(name)
        if option is None:
            known = ", ".join(sorted(unsupported))
            hint = f"; known but not supported: {known}" if known else ""
            raise WrongOption(f"{of} has no option {name!r}{hint}", name)
        if not any(value is accepted or value == accepted for accepted in option.accepted):
            shown = repr(value)[:60]
            raise WrongOption(f"{of}: {name}={shown} is not supported; {option.alternative}", name)


def pop_unsupported(of: str, options: dict[str, Any], unsupported: Mapping[str, Unsupported]) -> None:
    """Remove the options of the table, and raise WrongOption for a value that asks for something else."""
    reject_options(of, {name: options.pop(name) for name in tuple(options) if name in unsupported}, unsupported)
