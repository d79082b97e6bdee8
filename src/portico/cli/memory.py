"""`portico memory`: memories for people at a shell, and for the hooks of assistants.

A hook is waited for each time somebody says something, and has a tenth of a second with everything. So what only the
other errands need is not loaded for it, a loop included.
"""

from __future__ import annotations

import argparse
import gc
from importlib import import_module

from portico.cli.forms import is_text
from portico.cli.memory_forms import memory_form
from portico.wire.errors import UsageError


def run(words: list[str]) -> int:
    if words[:1] == ["hook"]:
        # Loading makes many objects and no garbage, and what comes after it is soon over.
        collecting = gc.isenabled()
        gc.disable()
        try:
            status: int = import_module("portico.cli.memory_hooks").run(words)
        finally:
            if collecting:
                gc.enable()
        return status
    arguments = parsed(words)
    if arguments.errand == "model":
        fetched: int = import_module("portico.cli.memory_model").run(arguments)
        return fetched
    carry_out = import_module("portico.cli.memory_errands").carry_out
    import_module("asyncio").run(carry_out(arguments))
    return 0


def parsed(words: list[str]) -> argparse.Namespace:
    arguments = memory_form().parse_args(words)
    for word in arguments.words:
        if not is_text(word):
            raise UsageError(f"{word!r} is not text in UTF-8")
    return arguments
