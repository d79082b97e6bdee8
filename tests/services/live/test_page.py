"""What the guide says of live Python is what there is."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from escapes import ALL

from portico.server.components.prompts import Prompt
from portico.server.components.resources import Resource
from portico.server.components.tools import Tool
from portico_services.livepython import Live
from portico_services.livepython.sandbox import seccomp
from portico_services.livepython.sandbox.limits import KIB, MIB, Limits
from portico_services.livepython.sandbox.worker import CHECK_SECONDS, GRACE_SECONDS, INTERRUPT_SECONDS
from portico_services.livepython.session_files import MOST_BYTES
from portico_services.livepython.session_tools import LARGEST

PAGE = (Path(__file__).parents[3] / "docs" / "guide" / "live.md").read_text()


def test_every_option_is_explained() -> None:
    options = inspect.signature(Live.__init__).parameters
    assert not [name for name in options if name != "self" and f"`{name}`" not in PAGE]


def test_everything_that_is_offered_is_named() -> None:
    for offered in Live(strict=True).offers():
        if isinstance(offered, Tool | Prompt):
            assert re.search(rf"`{offered.name}\b", PAGE), offered.name
        elif isinstance(offered, Resource):
            assert f"`{offered.uri}`" in PAGE


def test_the_limits_are_those_of_the_code() -> None:
    defaults = inspect.signature(Live.__init__).parameters
    limits = Limits()
    for name, shown in [
        ("`timeout`, `longest_timeout`", f"{defaults['timeout'].default:g}, {defaults['longest_timeout'].default:g}"),
        ("`memory`", f"{limits.memory // MIB // 1024} GiB"),
        ("`cpu`", str(limits.cpu)),
        ("`scratch`", f"{limits.scratch // MIB} MiB"),
        ("`output`", f"{limits.output // KIB} KiB"),
        ("`threads`", str(limits.threads)),
        ("`sessions`, `idle`", f"{defaults['sessions'].default}, {defaults['idle'].default:g}"),
        ("`spare`", str(defaults["spare"].default)),
    ]:
        [row] = [line for line in PAGE.splitlines() if line.startswith(f"| {name} |")]
        assert row.endswith(f"| {shown} |"), row
    assert f"{limits.entries:,} files, {limits.file_size // MIB} MiB in each, {limits.open_files} open" in PAGE
    assert f"{limits.flood // MIB} MiB more end the session" in PAGE
    assert (GRACE_SECONDS, GRACE_SECONDS / INTERRUPT_SECONDS) == (2.0, 4)
    assert "up to four times\nin two seconds" in PAGE
    assert (LARGEST // MIB, MOST_BYTES // MIB // 1024) == (32, 2)
    assert "at most 32 MiB each, `most_saved` of each principal, 2 GiB of all" in PAGE
    assert CHECK_SECONDS == 0.1
    assert "ten times a second" in PAGE


def test_the_numbers_are_about_right() -> None:
    [calls] = re.findall(r"a list of about (\d+)", PAGE)
    assert abs(len(seccomp.ALLOWED) - int(calls)) <= 10
    [ways] = re.findall(r"try (\d+) ways", PAGE)
    assert int(ways) <= len(ALL) < int(ways) + 20
