"""Published servers from npm and PyPI behind one gateway: list them and call one tool of each, with clients of
2026-07-28 and 2025-11-25. Prints a table.

    make real-servers                                    (or: python tests/peers/real_servers.py [NAME…])

None of them needs an account. Where one wants the network and there is none, its tool says so, and that is an answer.
They are installed into `.conformance/real-servers/`, which takes a while and some gigabytes: CI runs only the few that
tests/peers/servers/ installs anyway. Install scripts of npm are not run.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from portico import Client
from portico.protocol.errors import PorticoError, ProtocolError, ToolError
from support import node

HOME = Path(os.environ.get("PORTICO_REAL_SERVERS") or node.CACHE / "real-servers")
ERAS = ("2026-07-28", "2025-11-25")
INSTALL_SECONDS = 600
# All of them start at once, on a machine that may be busy.
LISTING_SECONDS, CALL_SECONDS = 900.0, 240.0
HEAP_MB = 192


class RealServer(NamedTuple):
    """A program, and a harmless tool of it. `{work}` stands for an empty folder."""

    alias: str
    kind: str
    package: str
    version: str
    tool: str
    arguments: dict[str, Any] = {}
    words: tuple[str, ...] = ()


SERVERS = (
    RealServer(
        "filesystem",
        "npm",
        "@modelcontextprotocol/server-filesystem",
        "2026.8.31",
        "list_allowed_directories",
        words=("{work}",),
    ),
    RealServer("memory", "npm", "@modelcontextprotocol/server-memory", "2026.8.31", "read_graph"),
    RealServer(
        "thinking",
        "npm",
        "@modelcontextprotocol/server-sequential-thinking",
        "2026.8.31",
        "sequentialthinking",
        {"thought": "one", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1},
    ),
    RealServer(
        "everything", "npm", "@modelcontextprotocol/server-everything", "2026.8.31", "echo", {"message": "hello"}
    ),
    RealServer(
        "budget", "npm", "@modelcontextprotocol/server-budget-allocator", "2.0.3", "get-budget-data", words=("--stdio",)
    ),
    RealServer(
        "cohorts", "npm", "@modelcontextprotocol/server-cohort-heatmap", "2.0.3", "get-cohort-data", words=("--stdio",)
    ),
    RealServer(
        "customers",
        "npm",
        "@modelcontextprotocol/server-customer-segmentation",
        "2.0.3",
        "get-customer-data",
        words=("--stdio",),
    ),
    RealServer(
        "scenarios",
        "npm",
        "@modelcontextprotocol/server-scenario-modeler",
        "2.0.3",
        "get-scenario-data",
        words=("--stdio",),
    ),
    RealServer(
        "shaders", "npm", "@modelcontextprotocol/server-shadertoy", "2.0.3", "render-shadertoy", words=("--stdio",)
    ),
    RealServer(
        "music", "npm", "@modelcontextprotocol/server-sheet-music", "2.0.3", "play-sheet-music", words=("--stdio",)
    ),
    RealServer(
        "monitor", "npm", "@modelcontextprotocol/server-system-monitor", "2.0.3", "get-system-info", words=("--stdio",)
    ),
    RealServer("threejs", "npm", "@modelcontextprotocol/server-threejs", "2.0.3", "learn_threejs", words=("--stdio",)),
    RealServer(
        "transcript", "npm", "@modelcontextprotocol/server-transcript", "2.0.3", "transcribe", words=("--stdio",)
    ),
    RealServer(
        "wiki",
        "npm",
        "@modelcontextprotocol/server-wiki-explorer",
        "2.0.3",
        "get-first-degree-links",
        words=("--stdio",),
    ),
    RealServer("map", "npm", "@modelcontextprotocol/server-map", "2.0.3", "show-map", words=("--stdio",)),
    RealServer("pdf", "npm", "@modelcontextprotocol/server-pdf", "2.0.4", "list_pdfs", words=("--stdio",)),
    RealServer("react", "npm", "@modelcontextprotocol/server-basic-react", "2.0.3", "get-time", words=("--stdio",)),
    RealServer(
        "vanilla", "npm", "@modelcontextprotocol/server-basic-vanillajs", "2.0.3", "get-time", words=("--stdio",)
    ),
    RealServer(
        "postgres",
        "npm",
        "@modelcontextprotocol/server-postgres",
        "0.6.2",
        "query",
        {"sql": "select 1"},
        words=("postgresql://127.0.0.1:1/none",),
    ),
    RealServer(
        "context7",
        "npm",
        "@upstash/context7-mcp",
        "4.1.1",
        "resolve-library-id",
        {"query": "msgspec", "libraryName": "msgspec"},
    ),
    RealServer("playwright", "npm", "@playwright/mcp", "0.0.83", "browser_close"),
    RealServer("git", "npm", "@cyanheads/git-mcp-server", "2.15.3", "git_clear_working_dir", {"confirm": "Y"}),
    RealServer("kubernetes", "npm", "mcp-server-kubernetes", "4.1.7", "kubectl_context", {"operation": "list"}),
    RealServer("chart", "npm", "@antv/mcp-server-chart", "0.9.10", "generate_liquid_chart", {"percent": 0.5}),
    RealServer("airbnb", "npm", "@openbnb/mcp-server-airbnb", "0.3.0", "airbnb_listing_details", {"id": "1"}),
    RealServer(
        "mermaid",
        "npm",
        "mcp-mermaid",
        "0.4.1",
        "generate_mermaid_diagram",
        {"mermaid": "graph TD; A-->B", "outputType": "mermaid"},
    ),
    RealServer(
        "codegen",
        "npm",
        "@executeautomation/playwright-mcp-server",
        "1.0.12",
        "get_codegen_session",
        {"sessionId": "none"},
    ),
    RealServer("fetch-html", "npm", "mcp-fetch-server", "1.1.2", "fetch_txt", {"url": "http://127.0.0.1:1/"}),
    RealServer("npx-fetch", "npm", "@tokenizin/mcp-npx-fetch", "1.0.0", "fetch_txt", {"url": "http://127.0.0.1:1/"}),
    RealServer("image-fetch", "npm", "@kazuph/mcp-fetch", "1.6.3", "imageFetch", {"url": "http://127.0.0.1:1/"}),
    RealServer(
        "runner",
        "npm",
        "mcp-server-code-runner",
        "0.1.8",
        "run-code",
        {"code": "console.log(6*7)", "languageId": "javascript"},
    ),
    RealServer("mui", "npm", "@mui/mcp", "0.1.6", "fetchDocs", {"urls": ["http://127.0.0.1:1/"]}),
    RealServer("eslint", "npm", "@eslint/mcp", "0.3.13", "lint-files", {"filePaths": ["{work}/none.js"]}),
    RealServer("shadcn", "npm", "shadcn-ui-mcp-server", "0.1.2", "list_shadcn_components"),
    RealServer("magicui", "npm", "@magicuidesign/mcp", "2.0.0", "listRegistryItems", {"limit": 1}),
    RealServer("calculator", "npm", "@wrtnlabs/calculator-mcp", "0.2.1", "add", {"a": 1, "b": 2}),
    RealServer(
        "steps",
        "npm",
        "mcp-sequentialthinking-tools",
        "0.0.3",
        "sequentialthinking_tools",
        {
            "available_mcp_tools": [],
            "thought": "one",
            "next_thought_needed": False,
            "thought_number": 1,
            "total_thoughts": 1,
        },
    ),
    RealServer("shrimp", "npm", "mcp-shrimp-task-manager", "1.0.21", "list_tasks", {"status": "all"}),
    RealServer("obsidian", "npm", "mcp-obsidian", "1.0.0", "search_notes", {"query": "none"}, words=("{work}",)),
    RealServer("time", "npm", "time-mcp", "1.0.6", "current_time", {"format": "YYYY-MM-DD", "timezone": "UTC"}),
    RealServer(
        "bazi", "npm", "bazi-mcp", "0.1.0", "getChineseCalendar", {"solarDatetime": "2000-05-15T12:00:00+08:00"}
    ),
    RealServer("mobile", "npm", "@mobilenext/mobile-mcp", "1.0.4", "mobile_list_available_devices"),
    RealServer("searxng", "npm", "mcp-searxng", "2.4.0", "searxng_instance_info"),
    RealServer("browser", "npm", "@browsermcp/mcp", "0.1.3", "browser_get_console_logs"),
    RealServer("duckduckgo", "npm", "duckduckgo-mcp-server", "0.1.2", "duckduckgo_web_search", {"query": "none"}),
    RealServer("repomix", "npm", "repomix", "1.18.1", "read_repomix_output", {"outputId": "none"}, words=("--mcp",)),
    RealServer("mongodb", "npm", "mongodb-mcp-server", "3.0.4", "list-connections"),
    RealServer(
        "sheets",
        "npm",
        "@negokaz/excel-mcp-server",
        "0.12.0",
        "excel_describe_sheets",
        {"fileAbsolutePath": "{work}/none.xlsx"},
    ),
    RealServer("devtools", "npm", "chrome-devtools-mcp", "1.11.0", "list_pages"),
    RealServer("py-fetch", "pypi", "mcp-server-fetch", "2026.10.24", "fetch", {"url": "http://127.0.0.1:1/"}),
    RealServer("py-git", "pypi", "mcp-server-git", "2026.10.19", "git_status", {"repo_path": "{work}"}),
    RealServer("py-time", "pypi", "mcp-server-time", "2026.10.19", "get_current_time", {"timezone": "UTC"}),
    RealServer("py-calculator", "pypi", "mcp-server-calculator", "0.2.1", "calculate", {"expression": "6*7"}),
    RealServer("timeserver", "pypi", "mcp-simple-timeserver", "3.3.2", "get_utc"),
    RealServer("shell", "pypi", "mcp-shell-server", "1.1.14", "shell_execute", {"command": ["pwd"]}),
    RealServer("arxiv", "pypi", "arxiv-mcp-server", "0.8.2", "list_papers"),
    RealServer("wikipedia", "pypi", "wikipedia-mcp", "2.0.1", "get_summary", {"title": "none"}),
    RealServer("py-duckduckgo", "pypi", "duckduckgo-mcp-server", "0.7.0", "search", {"query": "none"}),
    RealServer(
        "excel",
        "pypi",
        "excel-mcp-server",
        "2.2.2",
        "list_workbooks",
        words=("stdio",),
    ),
)


class Outcome(NamedTuple):
    """What one server came to: how many tools it lists, and what its tool says in each era."""

    server: RealServer
    revision: str
    tools: int
    said: dict[str, str]

    @property
    def good(self) -> bool:
        return self.tools > 0 and not any(message.startswith("failed") for message in self.said.values())


# Installing


def install(server: RealServer) -> str | None:
    """Why it cannot be had, or None."""
    home = folder_of(server)
    if (home / "installed").exists():
        return None
    home.mkdir(parents=True, exist_ok=True)
    for command in installing(server, home):
        try:
            done = subprocess.run(
                command, cwd=home, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as failure:
            return f"cannot be installed: {failure}"
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
            return f"cannot be installed: {lines[-1][:120]}"
    (home / "installed").touch()
    return None


def folder_of(server: RealServer) -> Path:
    return HOME / f"{server.alias}-{server.version}"


def installing(server: RealServer, home: Path) -> list[list[str]]:
    if server.kind == "npm":
        program, npm = node.node_and_npm()
        flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]
        cache = ["--cache", str(node.CACHE / "npm-cache")]
        return [
            [str(program), str(npm), "install", "--prefix", ".", *flags, *cache, f"{server.package}@{server.version}"]
        ]
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return [[sys.executable, "-m", "venv", "."], [*pip, f"{server.package}=={server.version}"]]


def command_of(server: RealServer, work: Path) -> list[str]:
    words = [word.replace("{work}", str(work)) for word in server.words]
    home = folder_of(server)
    if server.kind == "pypi":
        return [str(home / "bin" / server.package), *words]
    program, _ = node.node_and_npm()
    package = home / "node_modules" / server.package
    scripts = json.loads((package / "package.json").read_text(encoding="utf-8"))["bin"]
    if isinstance(scripts, dict):
        scripts = scripts.get(server.package.rpartition("/")[2]) or next(iter(scripts.values()))
    return [str(program), f"--max-old-space-size={HEAP_MB}", str(package / scripts), *words]


def entry_of(server: RealServer, work: Path) -> dict[str, Any]:
    """An entry of an mcp.json."""
    command, *words = command_of(server, work)
    environment = {
        "HOME": str(work),
        "PATH": f"{node.node_and_npm()[0].parent}:{os.environ['PATH']}",
        "NODE_OPTIONS": f"--max-old-space-size={HEAP_MB}",
        "ALLOW_COMMANDS": "pwd",
        "DATA_DIR": str(work / "shrimp"),
        "MEMORY_FILE_PATH": str(work / "memory.json"),
    }
    own = {"timeout": CALL_SECONDS, "isolation": "shared"}
    return {"command": command, "args": words, "cwd": str(work), "env": environment, "portico": own}


# Asking


@asynccontextmanager
async def gateway(servers: list[RealServer], work: Path) -> AsyncIterator[str]:
    """One gateway in front of all of them, as people start it. Gives its URL."""
    file = work.parent / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {server.alias: entry_of(server, work) for server in servers}}, indent=1))
    store = str(work.parent / "kept.db")
    words = ["serve", str(file), "--transport", "http", "--port", "0", "--store", store]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "portico", *words, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, limit=2**20
    )
    assert process.stderr is not None
    log = (work.parent / "gateway.log").open("wb")
    try:
        line = b""
        while b"http://" not in line:
            line = await process.stderr.readline()
            if not line:
                raise SystemExit("the gateway did not start; see gateway.log")
            log.write(line)
        copying = asyncio.create_task(copied(process.stderr, log))
        yield line.decode().split()[-1]
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            await process.wait()
        await copying
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        log.close()


async def copied(source: asyncio.StreamReader, target: Any) -> None:
    while line := await source.readline():
        target.write(line)
        target.flush()


async def listed(url: str, servers: list[RealServer]) -> dict[str, int]:
    """How many tools of each are listed: those that are slow to start come later."""
    until = time.monotonic() + LISTING_SECONDS
    async with Client(url, timeout=CALL_SECONDS) as client:
        while True:
            names = [tool.name for tool in await client.list_tools(refresh=True)]
            results = {server.alias: sum(name.startswith(f"{server.alias}_") for name in names) for server in servers}
            say(f"listed: {sum(1 for number in results.values() if number)} of {len(servers)}, {len(names)} tools")
            if all(results.values()) or time.monotonic() > until:
                return results
            await asyncio.sleep(5)


async def called(client: Client, server: RealServer, work: Path) -> str:
    arguments = json.loads(json.dumps(server.arguments).replace("{work}", str(work)))
    try:
        result = await client.call_tool(
            f"{server.alias}_{server.tool}", arguments, raise_on_error=False, timeout=CALL_SECONDS
        )
    except ProtocolError as refusal:
        # An error that the server gave is its answer; that there is no such tool would be ours.
        return f"{'failed' if 'Unknown tool' in str(refusal) else 'says no'}: {short(str(refusal))}"
    except (PorticoError, ToolError) as failure:
        return f"failed: {short(str(failure))}"
    what = short(result.text or f"{len(result.content)} parts")
    if not result.is_error:
        return f"ok: {what}"
    ours = result.meta is not None and "upstream" in json.dumps(result.meta, default=str)
    return f"failed: {what}" if ours else f"says no: {what}"


def short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 44 else f"{line[:43]}…"


async def measure(servers: list[RealServer], work: Path) -> list[Outcome]:
    async with gateway(servers, work) as url:
        tools = await listed(url, servers)
        message: dict[str, dict[str, str]] = {server.alias: {} for server in servers}
        for era in ERAS:
            async with Client(url, protocol_version=era, timeout=CALL_SECONDS) as client:  # type: ignore[arg-type]
                for server in servers:
                    message[server.alias][era] = await called(client, server, work)
                    say(f"{era} {server.alias}: {message[server.alias][era]}")
        revisions = await spoken(url)
    return [
        Outcome(server, revisions.get(server.alias, ""), tools[server.alias], message[server.alias])
        for server in servers
    ]


async def spoken(url: str) -> dict[str, str]:
    """The revision that the gateway speaks with each, as `portico gateway status` tells it."""
    words = [sys.executable, "-m", "portico", "gateway", "status", url, "--format", "jsonl"]
    process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    out, _ = await process.communicate()
    try:
        return {load["alias"]: load.get("revision") or "" for load in json.loads(out)}
    except (ValueError, KeyError, TypeError):
        return {}


# Telling


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(outcomes: list[Outcome]) -> str:
    head = ["server", "package", "speaks", "tools", "called", *ERAS]
    rows = [
        [
            outcome.server.alias,
            f"{outcome.server.package} {outcome.server.version} ({outcome.server.kind})",
            outcome.revision,
            str(outcome.tools),
            outcome.server.tool,
            *(outcome.said.get(era, "") for era in ERAS),
        ]
        for outcome in outcomes
    ]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in [head, *rows]]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def main(names: list[str]) -> int:
    expected = [item for item in SERVERS if not names or item.alias in names]
    node.node_and_npm()
    ready = []
    for item in expected:
        why = install(item)
        say(f"{item.alias}: {why or 'installed'}")
        if why is None:
            ready.append(item)
    work = HOME / "work"
    work.mkdir(parents=True, exist_ok=True)
    outcomes = asyncio.run(measure(ready, work))
    print(table(outcomes))
    good = sum(item.good for item in outcomes)
    print(f"\n{len(outcomes)} servers behind one gateway; {good} listed and answered in both eras.")
    return int(good < len(outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
