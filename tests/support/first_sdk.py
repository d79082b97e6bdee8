"""The official SDK of the first generation, which cannot live beside the second: an environment of its own.

It is made once, in the cache that Node's programs are kept in, of the versions in official-1.txt.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from support import node
from support.paths import ROOT

PINS = ROOT / "tests" / "peers" / "official-1.txt"
INSTALL_SECONDS = 300


def python() -> Path:
    """An interpreter that has it. Raises node.NotInstalled where it cannot be had."""
    node.CACHE.mkdir(exist_ok=True)
    (node.CACHE / ".gitignore").write_text("*\n", encoding="utf-8")
    pins = hashlib.sha256(PINS.read_bytes()).hexdigest()[:16]
    home = node.CACHE / f"official-1-{sys.version_info[0]}.{sys.version_info[1]}-{pins}"
    found = home / "bin" / "python"
    if not (home / "ready").exists():
        # An environment knows its own place, so it is made there; a second run at the same moment makes the same.
        _must([sys.executable, "-m", "venv", "--without-pip", str(home)])
        if uv := shutil.which("uv"):
            pip = [uv, "pip", "install", "--python", str(found)]
        else:
            pip = [sys.executable, "-m", "pip", "--python", str(found), "install", "--no-compile"]
        _must([*pip, "--quiet", "-r", str(PINS)])
        (home / "ready").touch()
    return found


def _must(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as why:
        raise node.NotInstalled(f"`{' '.join(command)}`: {why}") from None
    if done.returncode:
        raise node.NotInstalled(f"`{' '.join(command)}` ended with {done.returncode}:\n{done.stderr[-2000:]}")
