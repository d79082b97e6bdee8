"""Run HAProxy from Debian's package, which in CI is unpacked with its libraries into a temporary folder.

Raises `debian.NotInstalled` where it is not available.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import debian, nginx

LIBRARIES = ("liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1")


@contextmanager
def running(settings: str, port: int) -> Iterator[None]:
    """Run HAProxy with these settings, which make it listen on the port, after checking them without a warning."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program, env = _program(folder)
        (folder / "haproxy.cfg").write_text(settings)
        command = [program, "-f", str(folder / "haproxy.cfg")]
        subprocess.run([*command, "-c", "-dW"], check=True, env=env, capture_output=True, timeout=nginx.SECONDS)
        with (
            (folder / "log").open("wb") as log,
            subprocess.Popen([*command, "-db"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env) as process,
        ):
            try:
                nginx.wait_for(port, process, folder / "log")
                yield
            finally:
                process.terminate()


def _program(folder: Path) -> tuple[str, dict[str, str]]:
    if result := shutil.which("haproxy"):
        return result, dict(os.environ)
    unpacked = debian.unpack("haproxy", folder, *LIBRARIES)
    paths = ":".join(str(item) for item in unpacked.glob("usr/lib/*") if item.is_dir())
    return str(unpacked / "usr/sbin/haproxy"), {**os.environ, "LD_LIBRARY_PATH": paths}
