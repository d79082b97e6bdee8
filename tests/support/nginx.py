"""Run nginx as a reverse proxy with pooled connections: requests of many clients share each of them.

In CI, Debian's package is unpacked into a temporary folder. Raises `debian.NotInstalled` where it is not available.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import debian

SECONDS = 30.0
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")

SETTINGS = """
{user}
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/log;
events {{ worker_connections 512; }}
http {{
    access_log off;
    {temporary}
    {http}
}}
"""
IN_FRONT = """
upstream behind {{ {servers} keepalive {pooled}; }}
server {{
    listen 127.0.0.1:{port};
    location {prefix}/ {{
        proxy_pass http://behind{inner};
        proxy_set_header X-Forwarded-For $remote_addr;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_set_header Host 127.0.0.1:{behind};
        proxy_buffering off;
    }}
}}
"""


@contextmanager
def in_front_of(behind: int, *others: int, pooled: int, prefix: str = "") -> Iterator[int]:
    """Run nginx in front of these ports, in turn, and yield its port. A prefix is removed from request paths."""
    port = free_port()
    servers = " ".join(f"server 127.0.0.1:{item};" for item in (behind, *others))
    inner = "/" if prefix else ""
    http = IN_FRONT.format(behind=behind, prefix=prefix, inner=inner, servers=servers, port=port, pooled=pooled)
    with running(http, port):
        yield port


@contextmanager
def running(http: str, port: int) -> Iterator[None]:
    """Run nginx with these HTTP settings, which make it listen on the port."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = shutil.which("nginx") or debian.unpack("nginx", folder) / "usr/sbin/nginx"
        settings = SETTINGS.format(
            user="user root;" if os.getuid() == 0 else "",
            folder=folder,
            http=http,
            temporary=" ".join(f"{item}_temp_path {folder}/{item};" for item in TEMPORARY),
        )
        (folder / "nginx.conf").write_text(settings)
        command = [program, "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "log"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            try:
                wait_for(port, process, folder / "log")
                yield
            finally:
                process.terminate()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)  # it does not say when it is ready
    raise RuntimeError(f"it does not listen: {log.read_text() if log.exists() else ''}")
