"""The guide to live Python matches the code."""

from __future__ import annotations

import re

from portico.server.components.prompts import Prompt
from portico.server.components.resources import Resource
from portico.server.components.tools import Tool
from portico_services.livepython import LivePython
from portico_services.livepython.sandbox import seccomp
from portico_services.livepython.sandbox.limits import MIB, SandboxLimits
from portico_services.livepython.sandbox.worker import (
    INTERRUPT_GRACE_SECONDS,
    INTERRUPT_INTERVAL_SECONDS,
    USAGE_CHECK_SECONDS,
)
from portico_services.livepython.session_files import MAX_TOTAL_BYTES
from portico_services.livepython.session_tools import MAX_SESSION_BYTES
from support.escapes import ALL
from support.paths import ROOT

PAGES = ("live-python", "live-python-sandbox", "settings-services")
PAGE = "\n".join((ROOT / "docs" / "reference" / f"{name}.md").read_text() for name in PAGES)


def test_everything_that_is_offered_is_named() -> None:
    for offered in LivePython(sandbox="wasm").components():
        if isinstance(offered, Tool | Prompt):
            assert re.search(rf"`{offered.name}\b", PAGE), offered.name
        elif isinstance(offered, Resource):
            assert f"`{offered.uri}`" in PAGE


def test_documented_limits_match_the_code() -> None:
    limits = SandboxLimits()
    assert (
        f"{limits.max_scratch_entries:,} files of at most {limits.max_file_bytes // MIB} MiB, {limits.max_open_files} "
        "of them open" in PAGE
    )
    assert f"{limits.output_kill_bytes // MIB} MiB more end the session" in PAGE
    assert (INTERRUPT_GRACE_SECONDS, INTERRUPT_GRACE_SECONDS / INTERRUPT_INTERVAL_SECONDS) == (2.0, 4)
    assert "up to four times in two seconds" in " ".join(PAGE.split())
    assert (MAX_SESSION_BYTES // MIB, MAX_TOTAL_BYTES // MIB // 1024) == (32, 2)
    assert "at most 32 MiB each, `max_saved_sessions` of each principal, 2 GiB of all" in PAGE
    assert USAGE_CHECK_SECONDS == 0.1
    assert "ten times a second" in PAGE


def test_numbers_are_about_right() -> None:
    [calls] = re.findall(r"a list of about (\d+)", PAGE)
    assert abs(len(seccomp.ALLOWED_SYSCALLS) - int(calls)) <= 10
    [ways] = re.findall(r"try (\d+) ways", PAGE)
    assert int(ways) <= len(ALL) < int(ways) + 20
