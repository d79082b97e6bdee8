"""Generated TypeScript passes the compiler and runs on Node against a live server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from portico import Server
from portico_services.contracts import invoker
from portico_services.contracts.codegen.client_model import build_client_model
from portico_services.contracts.codegen.typescript import generate_typescript
from portico_services.contracts.definitions import ServerContract, contract_from_tools
from support import node
from support.hostile_names import evil_contract
from support.paths import ROOT, SUPPORT
from support.random_schemas import ARGUMENTS, SCHEMAS

PINS = SUPPORT / "npm" / "contracts"
SECONDS = 120.0
# As strict as a project may be. Syntax that is only TypeScript's must be erasable: that is what lets Node run it.
STRICT = {
    "strict": True,
    "exactOptionalPropertyTypes": True,
    "noUncheckedIndexedAccess": True,
    "noUnusedLocals": True,
    "noUnusedParameters": True,
    "noImplicitOverride": True,
    "erasableSyntaxOnly": True,
    "verbatimModuleSyntax": True,
    "allowImportingTsExtensions": True,
    "noEmit": True,
    "target": "es2023",
    "module": "nodenext",
    "skipLibCheck": True,
    "types": [],
}

Compile = Callable[[dict[str, str]], str]

USE = """
import { Client as First } from "@modelcontextprotocol/sdk/client/index.js";
import { Client as Second } from "@modelcontextprotocol/client";
import { Shop, type BuyResult } from "./shop.ts";

export async function use(first: First, second: Second): Promise<number> {
  const receipt: BuyResult = await new Shop(first).buy({ product: "shirt", size: "large" });
  const count: number = await new Shop(second).count();
  const words: string = (await new Shop(second).advice()).text;
  return receipt.total + count + words.length;
}
"""
MISUSE = """
import { Shop } from "./shop.ts";
declare const shop: Shop;
// @ts-expect-error nothing was said about what to buy
await shop.buy();
// @ts-expect-error a product is a text
await shop.buy({ product: 3 });
// @ts-expect-error there is no such size
await shop.buy({ product: "shirt", size: "huge" });
// @ts-expect-error there is no such parameter
await shop.buy({ product: "shirt", colour: "red" });
// @ts-expect-error how many is a number
const wrong: string = await shop.count();
export { wrong };
"""
RUN = """
import { Client } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { IncompatibleVersion, Shop, ToolFailure, VERSIONS } from "./shop.ts";

const [command = "", ...args] = process.argv.slice(2);
const client = new Client({ name: "generated", version: "1" });
await client.connect(new StdioClientTransport({ command, args }));
const shop = new Shop(client);
const said: unknown[] = [VERSIONS["buy"], await shop.buy({ product: "shirt", quantity: 2 }), await shop.count()];
said.push((await shop.advice({ about: "less" })).text);
try {
  await shop.buy({ product: "sock" });
} catch (failure) {
  said.push(failure instanceof ToolFailure ? failure.message : String(failure));
  if (failure instanceof ToolFailure) {
    said.push([failure.errorType, failure.details, failure.retryable]);
  }
}
VERSIONS["buy"] = "2.0.5";
await shop.buy({ product: "shirt" });
VERSIONS["buy"] = "3.0.0";
try {
  await shop.buy({ product: "shirt" });
} catch (failure) {
  said.push(failure instanceof IncompatibleVersion ? [failure.tool, failure.expected, failure.found] : String(failure));
}
console.log(JSON.stringify(said));
await client.close();
"""
SERVER = """
import sys
sys.path.insert(0, {support!r})
from support.contract_shop import make
make().run()
"""


@pytest.fixture(scope="session")
def packages() -> node.Packages:
    try:
        return node.install(PINS, "contracts")
    except node.NotInstalled as why:
        reason = f"The TypeScript compiler is not installed and cannot be: {why}"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture
def project(packages: node.Packages, tmp_path: Path) -> Path:
    (tmp_path / "node_modules").symlink_to(packages.modules)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": STRICT, "include": ["*.ts"]}))
    return tmp_path


@pytest.fixture
def compiled(packages: node.Packages, project: Path) -> Compile:
    """`compiled({"a.ts": text})`: what the compiler has to say; nothing if all is well."""

    def run(files: dict[str, str]) -> str:
        for name, text in files.items():
            (project / name).write_text(text, encoding="utf-8")
        compiler = packages.modules / "typescript" / "bin" / "tsc"
        return _ran(packages, project, str(compiler), "--project", str(project))[0]

    return run


def _ran(packages: node.Packages, folder: Path, *words: str) -> tuple[str, str]:
    done = subprocess.run(
        [str(packages.node), *words],
        cwd=folder,
        env=node.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.stdout, done.stderr


def written(contract: ServerContract) -> str:
    return generate_typescript(build_client_model(contract, contract.tools))


@pytest.fixture
async def client(shop: Server) -> str:
    return written(await invoker.fetch_contract(shop))


def test_client_type_checks_with_both_official_clients(compiled: Compile, client: str) -> None:
    assert compiled({"shop.ts": client, "use.ts": USE}) == ""


def test_misuse_does_not_type_check(compiled: Compile, client: str) -> None:
    assert compiled({"shop.ts": client, "misuse.ts": MISUSE}) == ""


def test_compiler_is_really_asked(compiled: Compile) -> None:
    assert "TS2322" in compiled({"wrong.ts": 'export const wrong: number = "text";\n'})


def test_client_works_against_a_live_server(packages: node.Packages, project: Path, client: str) -> None:
    (project / "shop.ts").write_text(client)
    (project / "run.ts").write_text(RUN)
    (project / "server.py").write_text(SERVER.format(support=str(SUPPORT.parent)))
    out, err = _ran(packages, project, "run.ts", sys.executable, str(project / "server.py"))
    assert out, err
    *results, error, mismatch = json.loads(out)
    assert results == ["2.1.0", {"number": 1, "total": 5.0, "to": None}, 3, "Buy less.", "There are no socks."]
    assert error == ["ResourceNotFound", {"product": "sock"}, True]
    assert mismatch == ["buy", "3.0.0", "2.1.0"]


def test_every_word_of_our_own_service_type_checks(compiled: Compile) -> None:
    contracts = (ROOT / "docs/specifications/contracts/contracts.lock").read_text()
    listed = [tool["definition"] for tool in json.loads(contracts)["tools"].values()]
    assert compiled({"own.ts": written(contract_from_tools(listed, server="contracts", version="1.0.0"))}) == ""


def test_names_that_want_to_be_code_type_check(compiled: Compile) -> None:
    assert compiled({"evil.ts": written(evil_contract())}) == ""


def test_jsdoc_matches_the_schema(client: str) -> None:
    assert '  /**\n   * Which size\n   * @default "small"\n   */\n  size?: "small" | "large";' in client
    assert "   * @param args.product What to buy" in client


def test_generated_code_type_checks(compiled: Compile) -> None:
    """All schemas in one go: the compiler takes long to start."""
    listed: list[dict[str, Any]] = []

    @settings(
        max_examples=60,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(ARGUMENTS, st.none() | SCHEMAS, st.text(max_size=10))
    def gather(arguments: Any, output: Any, words: str) -> None:
        listed.append(
            {"name": f"{words}{len(listed)}", "description": words, "inputSchema": arguments, "outputSchema": output}
        )

    gather()
    assert compiled({"chance.ts": written(contract_from_tools(listed, server="chance", version="1.0.0"))}) == ""
