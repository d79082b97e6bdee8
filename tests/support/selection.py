"""Decide which tests are integration tests: those that need more than the process that runs them.

That is a server or another program in a process, a browser, another SDK, Node or PostgreSQL. `make test` leaves them
out. They are recognised by their folder, by the fixtures that they request, and by what they and their fixtures call:
no decorator is needed. `@pytest.mark.integration` marks the exceptions.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from support.paths import ROOT

# Everything below them talks to other programs, or to sandboxed processes.
FOLDERS = tuple(
    f"{ROOT / folder}/"
    for folder in (
        "tests/benchmarks",
        "tests/conformance",
        "tests/packaging",
        "tests/peers",
        "tests/typed",
        "packages/portico/tests/transports/http_server/workers",
        "packages/portico-services/tests/codemode",
        "packages/portico-services/tests/livepython",
    )
)
# Modules whose use starts a process, directly or later.
HELPERS = (
    "chromium cli console_server forks git_clones haproxy hub_hosts live_python nginx node node_scripts oidc otlp "
    "postgres task_processes worker_processes"
)
MODULES = frozenset(
    {"multiprocessing", "playwright", "pty", "subprocess", *(f"support.{name}" for name in re.findall(r"\w+", HELPERS))}
)
# `sys.executable` is how a test names the program of a child.
# Values of parameters that choose PostgreSQL, and fixtures that are requested by name.
POSTGRES = frozenset({"migrated_postgres_url", "postgres", "postgres_server", "postgres_url", "postgresql"})
ATTRIBUTES = frozenset({"executable", "create_subprocess_exec", "create_subprocess_shell", "fork"})


# The files that take longest, measured without other load, are scheduled first: pytest-xdist gives whole files to its
# processes, and a long file at the end would leave the others idle.
SLOW_FILES = tuple(
    ROOT / file
    for file in (
        "tests/packaging/test_plain_install.py",
        "packages/portico/tests/transports/http_server/workers/test_store_outage.py",
        "packages/portico-gateway/tests/gateway/test_framing.py",
        "tests/conformance/test_client.py",
        "tests/conformance/test_server.py",
        "packages/portico-services/tests/livepython/sandbox/test_escapes.py",
        "packages/portico-services/tests/livepython/sandbox/test_interrupts.py",
        "packages/portico-services/tests/livepython/sandbox/test_wasm.py",
        "packages/portico-console/tests/test_apps.py",
        "packages/portico-console/tests/test_login.py",
        "packages/portico/tests/client/test_multi_server.py",
        "packages/portico/tests/store/test_startup_waits.py",
        "packages/portico/tests/transports/http_server/workers/test_attacks.py",
        "packages/portico/tests/transports/http_server/workers/test_storm.py",
        "packages/portico/tests/transports/http_server/test_load.py",
        "packages/portico/tests/transports/http_server/test_listener.py",
        "packages/portico-gateway/tests/gateway/test_one_shot.py",
        "packages/portico-services/tests/memory/sync/test_git_safety.py",
        "packages/portico-services/tests/codemode/test_inner_tasks.py",
        "packages/portico-services/tests/test_maximum_sizes.py",
        "packages/portico-services/tests/system/logs/test_large_logs.py",
        "packages/portico/tests/cli/test_completion.py",
        "tests/profiles/test_subcog.py",
        "tests/docs/test_examples.py",
        "tests/typed/test_typing.py",
    )
)

_RANKS = {path: rank for rank, path in enumerate(SLOW_FILES)}


def scheduling_rank(path: Path) -> int:
    """Return the position of a test file in the schedule. Files that are not slow share the last one."""
    return _RANKS.get(path, len(SLOW_FILES))


def is_integration(item: pytest.Item) -> bool:
    """Return whether a test needs more than this process."""
    if str(item.path).startswith(FOLDERS) or item.get_closest_marker("integration"):
        return True
    if not isinstance(item, pytest.Function):
        return False
    callspec = getattr(item, "callspec", None)
    if callspec is not None and any(_names_program(value) for value in callspec.params.values()):
        return True
    definitions = item._fixtureinfo.name2fixturedefs.values()
    functions = [item.obj, *(definition.func for group in definitions for definition in group[-1:])]
    return any(_starts_process(getattr(function, "__func__", function)) for function in functions)


_answers: dict[Any, bool] = {}


def _starts_process(function: Any) -> bool:
    """Return whether a function, or a function or class of the tests that it uses, starts a process."""
    if isinstance(function, FunctionType) and hasattr(function, "hypothesis"):
        function = function.hypothesis.inner_test  # type: ignore[attr-defined]
    function = getattr(function, "__wrapped__", function)
    if not isinstance(function, FunctionType):
        return False
    if function not in _answers:
        _answers[function] = False  # functions may call each other
        _answers[function] = _body_starts_process(function)
    return _answers[function]


def _body_starts_process(function: FunctionType) -> bool:
    names = set(_names(function.__code__))
    if names & ATTRIBUTES or _names_program(list(function.__defaults__ or ())):
        return True
    used = [function.__globals__[name] for name in names if name in function.__globals__]
    return any(_is_external(value, names) for value in used)


def _is_external(value: Any, names: set[str]) -> bool:
    if isinstance(value, ModuleType):
        if value.__name__ in MODULES:
            return True
        members = [getattr(value, name, None) for name in names] if value.__name__.startswith("support.") else []
        return any(_is_external(member, names) for member in members if isinstance(member, FunctionType | type))
    module = getattr(value, "__module__", None)
    if isinstance(value, FunctionType | type) and isinstance(module, str):
        if module in MODULES or module.partition(".")[0] in MODULES:
            return True
        if not _is_ours(module):
            return False
        functions = [value] if isinstance(value, FunctionType) else [*vars(value).values()]
        return any(_starts_process(getattr(function, "__func__", function)) for function in functions)
    return _names_program(value)


def _is_ours(module: str) -> bool:
    return module.startswith(("tests.", "packages.", "support.", "conftest"))


def _names_program(value: Any, depth: int = 3) -> bool:
    """Return whether a value is the command of a child or the name of a database server."""
    if isinstance(value, str):
        return value == sys.executable or value in POSTGRES
    if depth and isinstance(value, list | tuple):
        return any(_names_program(item, depth - 1) for item in value)
    if depth and isinstance(value, dict):
        return any(_names_program(item, depth - 1) for item in value.values())
    return False


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
