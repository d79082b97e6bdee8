"""The log of the hub quotes hosts and servers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from portico_gateway.hub import location

SCRIPT = """
import logging, sys
from portico_gateway.hub import daemon
daemon.configure_logging(sys.argv[1])
text = sys.argv[2]
logging.getLogger("portico.gateway").warning("a server said: %s", text)
try:
    raise ValueError(text)
except ValueError:
    logging.getLogger("portico.hub").exception("failed")
"""


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\x85", "\u2028"])
def test_text_of_a_server_forges_no_record_and_controls_no_terminal(tmp_path: Path, line_break: str) -> None:
    forged = "2026-01-01T00:00:00.000Z INFO portico.hub: forged"
    text = f"x{line_break}{forged}\x1b[2J\x9b1A\u202e"
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path), text], check=True, timeout=60)
    lines = (tmp_path / location.LOG_NAME).read_text().splitlines()
    assert sum("forged" in line for line in lines) >= 2
    assert not any(line.startswith("2026-01-01") for line in lines)
    assert all(line.isprintable() for line in lines)
