"""Measure the error of the token estimate against real vocabularies.

    python benchmarks/result_tokens.py

Needs Node: installs gpt-tokenizer (o200k_base, cl100k_base) and @anthropic-ai/tokenizer into a temporary folder. Texts
are files of this repository, generated records, and the documentation of an npm package in several languages.
"""

from __future__ import annotations

import base64
import json
import random
import subprocess
import tempfile
import uuid
from pathlib import Path

from portico.tokens import estimate_tokens

ROOT = Path(__file__).parent.parent
PACKAGES = ["gpt-tokenizer@4.0.0", "@anthropic-ai/tokenizer@0.0.4", "hexo-theme-next@8.29.0"]
SAMPLE_CHARS = 12_000
COUNT = """
import fs from 'node:fs'
import {countTokens as claude} from '@anthropic-ai/tokenizer'
import {encode as o200k} from 'gpt-tokenizer/encoding/o200k_base'
import {encode as cl100k} from 'gpt-tokenizer/encoding/cl100k_base'
const samples = JSON.parse(fs.readFileSync(0, 'utf8'))
const options = {allowedSpecial: 'all'}
const counts = samples.map(text => [o200k(text, options).length, cl100k(text, options).length, claude(text)])
process.stdout.write(JSON.stringify(counts))
"""


def samples(folder: Path) -> dict[str, list[str]]:
    """Return the texts by kind."""
    texts: dict[str, list[str]] = {}

    def add(kind: str, text: str) -> None:
        for start in range(0, min(len(text), 6 * SAMPLE_CHARS), SAMPLE_CHARS):
            if len(text) - start > 2_000:
                texts.setdefault(kind, []).append(text[start : start + SAMPLE_CHARS])

    chance = random.Random(1)
    for path in sorted(ROOT.glob("packages/portico/src/portico/rpc/*.py"))[:8]:
        add("code, Python", path.read_text())
    for path in sorted(ROOT.glob("packages/portico-console/src/portico_console/static/*.js"))[:6]:
        add("code, JavaScript", path.read_text())
    for path in sorted(ROOT.glob("docs/**/*.md"))[:25]:
        add("prose, Markdown", path.read_text())
    words = " ".join(path.read_text() for path in sorted(ROOT.glob("docs/explanation/*.md"))).split()
    records = [
        {
            "id": at,
            "name": " ".join(chance.choices(words, k=2)),
            "score": round(chance.random() * 100, 3),
            "created": f"2026-11-{at % 28 + 1:02}T10:{at % 60:02}:00Z",
            "tags": chance.choices(words, k=3),
        }
        for at in range(1_500)
    ]
    add("JSON, compact", json.dumps(records, separators=(",", ":")))
    add("JSON, indented", json.dumps(records, indent=2))
    add("JSON, UUIDs", json.dumps([str(uuid.UUID(int=chance.getrandbits(128))) for _ in range(1_500)]))
    add("JSON, numbers", json.dumps([[chance.random() for _ in range(5)] for _ in range(1_500)]))
    add("base64", base64.b64encode(chance.randbytes(50_000)).decode())
    add("hexadecimal", chance.randbytes(40_000).hex())
    theme = folder / "node_modules" / "hexo-theme-next"
    chinese = "".join(path.read_text() for path in sorted(theme.glob("docs/zh-CN/*.md")))
    add("Chinese, Markdown", chinese)
    add("Chinese, characters only", "".join(char for char in chinese if ord(char) > 0x2E80) * 3)
    for name, kind in (
        ("ko", "Korean, YAML"),
        ("ja", "Japanese, YAML"),
        ("ru", "Russian, YAML"),
        ("ar", "Arabic, YAML"),
    ):
        path = theme / "languages" / f"{name}.yml"
        if path.exists():
            add(f"{kind}, YAML", path.read_text())
    add("emoji", "".join(chr(chance.randrange(0x1F300, 0x1F64F)) for _ in range(4_000)))
    return texts


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="result-tokens-") as name:
        folder = Path(name)
        (folder / "package.json").write_text('{"type": "module"}')
        subprocess.run(["npm", "install", "--silent", *PACKAGES], cwd=folder, check=True)
        (folder / "count.mjs").write_text(COUNT)
        texts = samples(folder)
        every = [text for group in texts.values() for text in group]
        counted = subprocess.run(
            ["node", "count.mjs"], cwd=folder, input=json.dumps(every), capture_output=True, text=True, check=True
        )
        counts = iter(json.loads(counted.stdout))
    print("| text | samples | estimate / highest count: lowest, mean | estimate / o200k_base: mean |")
    print("|---|---|---|---|")
    for kind, group in texts.items():
        pairs = [(estimate_tokens(text), next(counts)) for text in group]
        worst = [estimate / max(real) for estimate, real in pairs]
        newest = [estimate / real[0] for estimate, real in pairs]
        print(
            f"| {kind} | {len(group)} | {min(worst):.2f}, {sum(worst) / len(worst):.2f} | "
            f"{sum(newest) / len(newest):.2f} |"
        )


if __name__ == "__main__":
    main()
