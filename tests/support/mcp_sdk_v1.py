"""Install the first generation of the official SDK into a separate environment, because it conflicts with the second.

The environment is cached in `.conformance/` and contains the versions in sdk-v1.txt.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from support import node
from support.paths import ROOT

PINS = ROOT / "tests" / "peers" / "sdk-v1.txt"
INSTALL_SECONDS = 300


def python() -> Path:
    """Return the interpreter of the environment. Raises `node.NotInstalled`."""
    node.CACHE.mkdir(exist_ok=True)
    (node.CACHE / ".gitignore").write_text("*\n", encoding="utf-8")
    pins = hashlib.sha256(PINS.read_bytes()).hexdigest()[:16]
    home = node.CACHE / f"official-1-{sys.version_info[0]}.{sys.version_info[1]}-{pins}"
    result = home / "bin" / "python"
    if not (home / "ready").exists():
        # Environments cannot be moved, so it is created in place; a concurrent run creates the same one.
        _run_checked([sys.executable, "-m", "venv", "--without-pip", str(home)])
        if uv := shutil.which("uv"):
            pip = [uv, "pip", "install", "--python", str(result)]
        else:
            pip = [sys.executable, "-m", "pip", "--python", str(result), "install", "--no-compile"]
        _run_checked([*pip, "--quiet", "-r", str(PINS)])
        (home / "ready").touch()
    return result


def _run_checked(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as why:
        raise node.NotInstalled(f"`{' '.join(command)}`: {why}") from None
    if done.returncode:
        raise node.NotInstalled(f"`{' '.join(command)}` ended with {done.returncode}:\n{done.stderr[-2000:]}")
