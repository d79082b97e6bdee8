"""Options of other projects that Portico does not support: they raise an error that names the alternative."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from portico.protocol.errors import UsageError


class UnsupportedFeature(NamedTuple):
    """An option that is accepted only with a value that matches Portico's behavior."""

    alternative: str
    accepted: tuple[Any, ...] = (None,)


def reject_options(of: str, options: Mapping[str, Any], unsupported: Mapping[str, UnsupportedFeature]) -> None:
    """Raise UsageError for the first option whose value would change something."""
    for name, value in options.items():
        option = unsupported.get(name)
        if option is None:
            unsupported_names = ", ".join(sorted(unsupported))
            hint = f"; known but not supported: {unsupported_names}" if unsupported_names else ""
            raise UsageError(f"{of}: unknown option {name!r}{hint}")
        # A default that is passed explicitly is harmless, so that generated code and copied
        # examples keep working.
        if not any(value is accepted or value == accepted for accepted in option.accepted):
            value_text = repr(value)[:60]
            raise UsageError(f"{of}: {name}={value_text} is not supported; {option.alternative}")


def pop_unsupported(of: str, options: dict[str, Any], unsupported: Mapping[str, UnsupportedFeature]) -> None:
    """Remove the unsupported options. Raises UsageError for a value that would change something."""
    reject_options(of, {name: options.pop(name) for name in tuple(options) if name in unsupported}, unsupported)
