"""`portico memory`: memories for people at a shell, and for the hooks of assistants.

A hook is waited for each time somebody says something, and has a tenth of a second with everything. So what only the
other errands need is not loaded for it, a loop included.
"""

from __future__ import annotations

import argparse
import gc

from portico._lazy import load_module
from portico.cli.forms import is_text
from portico.cli.memory_forms import memory_form
from portico.wire.errors import UsageError


def run(words: list[str]) -> int:
    if words[:1] == ["hook"]:
        # It is soon over: no garbage is worth looking for.
        collecting = gc.isenabled()
        gc.disable()
        try:
            status: int = load_module("portico.cli.memory_hooks").run(words)
        finally:
            if collecting:
                gc.enable()
        return status
    arguments = parsed(words)
    if arguments.errand == "model":
        fetched: int = load_module("portico.cli.memory_model").run(arguments)
        return fetched
    carry_out = load_module("portico.cli.memory_errands").carry_out
    import asyncio  # a hook does without a loop

    asyncio.run(carry_out(arguments))
    return 0


def parsed(words: list[str]) -> argparse.Namespace:
    arguments = memory_form().parse_args(words)
    for word in arguments.words:
        if not is_text(word):
            raise UsageError(f"{word!r} is not text in UTF-8")
    return arguments
