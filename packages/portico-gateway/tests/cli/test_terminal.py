"""What an upstream says cannot control the operator's terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from portico.cli.output import format_plain_table
from portico_gateway.cli import gateway, pins

ESCAPES = "\x1b]0;title\x07\x9b31m\u202e"
UPSTREAM = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        error = {"code": -32000, "message": sys.argv[1]}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
"""


@pytest.mark.parametrize("command", [(gateway, "check"), (pins, "list"), (pins, "diff")])
def test_errors_of_an_upstream_are_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[object, str]
) -> None:
    program, file = tmp_path / "upstream.py", tmp_path / "gateway.toml"
    program.write_text(UPSTREAM)
    arguments = json.dumps([str(program), f"no {ESCAPES}\nforged"])
    file.write_text(
        f'[gateway]\npinning = "enforce"\n[upstream.up]\ncommand = {json.dumps(sys.executable)}\nargs = {arguments}\n'
    )
    module, action = command
    assert module.run([action, str(file)]) != 0  # type: ignore[attr-defined]
    output = "".join(capsys.readouterr())
    assert "\\x1b]0;title\\x07\\x9b31m\\u202e" in output
    assert not set(ESCAPES) & {"\x1b", "\x07", "\x9b", "\u202e"} & set(output)
    assert "\nforged" not in output


def test_cells_of_a_table_are_escaped() -> None:
    assert format_plain_table(("NAME",), [[f"a{ESCAPES}\nb"]]).splitlines()[1:] == [r"a\x1b]0;title\x07\x9b31m\u202e b"]
