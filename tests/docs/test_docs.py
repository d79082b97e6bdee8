"""Documentation: links, sizes, code blocks and tables."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from support import sources
from support.paths import ROOT

# docs/specifications/ is generated, and has tests of its own.
PAGES = sorted(
    {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - {*(ROOT / "docs" / "specifications").rglob("*.md")}
)
EXAMPLES = "\n".join(path.read_text() for path in sorted((ROOT / "examples").glob("*.py")))
# As in the text: indentation and comments may differ where a fragment is shown outside its function.
FLAT = {re.sub(r"\s*#.*", "", line).strip() for line in EXAMPLES.splitlines()}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as the site and GitHub make them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().strip().replace(" ", "-") for heading in headings}


MAX_PAGE_LINES = 200
MAX_LINE_CHARS = 120
# Longer for now: the walks and the list of names. Lab notes may have any length.
LONG_PAGES = {"architecture.md", "vocabulary.md", "recall.md"}
SITE_PAGES = [
    page
    for page in PAGES
    if page.is_relative_to(ROOT / "docs") and page.parent.name != "research" and page.name not in LONG_PAGES
]


@pytest.mark.parametrize("page", SITE_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_short(page: Path) -> None:
    text = page.read_text()
    assert text.count("\n") <= MAX_PAGE_LINES
    prose = re.sub(r"^ *```.*?^ *```|^\|.*?$|^<!--.*?-->$|\]\([^)]*\)", "", text, flags=re.DOTALL | re.MULTILINE)
    assert not [line for line in prose.splitlines() if len(line) > MAX_LINE_CHARS]


FRAGMENT = "python fragment"
PASTED = [page for page in PAGES if blocks(page, "python") and "decisions" not in page.parts]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text()):
        if ":" in target:
            continue
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(path), f"{page.name} links to {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_the_documentation_comes_from_the_examples(page: Path) -> None:
    for block in [*blocks(page, "python"), *blocks(page, FRAGMENT)]:
        code = textwrap.dedent(block)
        ast.parse(
            code
            if not re.search(r"^async with|^await ", code, re.M)
            else f"async def f():\n{textwrap.indent(code, '    ')}"
        )
        lines = [re.sub(r"\s*#.*", "", line).strip() for line in code.splitlines()]
        # An import may be shorter than in the example, of which only a part is shown.
        missing = [line for line in lines if line and line not in FLAT and not line.startswith(("from ", "import "))]
        assert not missing, f"{page.name}: not in any example: {missing}"


# One process for each page, in which every block has names of its own.
PASTE = """
import json, sys
for at, code in enumerate(json.loads(sys.argv[1]), 1):
    try:
        exec(compile(code, f"block {at}", "exec"), {"__name__": "pasted", "__file__": "pasted.py"})
    except BaseException as failure:
        sys.exit(f"block {at}: {type(failure).__name__}: {failure}")
"""


@pytest.mark.parametrize("page", PASTED, ids=lambda page: str(page.relative_to(ROOT)))
def test_pasted_python_code_runs(page: Path, tmp_path: Path) -> None:
    """What does not says in its fence that it is a fragment."""
    pasted = json.dumps(blocks(page, "python"))
    done = subprocess.run(
        [sys.executable, "-c", PASTE, pasted],
        cwd=tmp_path,
        # What clears up is not always shown.
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_architecture_page_names_the_folders_there_are() -> None:
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    for package in sources.PACKAGES.values():
        for folder in package.iterdir():
            if folder.is_dir() and folder.name not in ("__pycache__", "migrations"):
                assert f"{folder.name}/" in text, folder


def test_every_decision_is_on_the_list() -> None:
    listed = (ROOT / "docs" / "decisions" / "README.md").read_text()
    for page in (ROOT / "docs" / "decisions").glob("[!R]*.md"):
        assert page.name in listed


def test_every_extra_is_explained() -> None:
    extras = tomllib.loads((ROOT / "packages" / "portico" / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    page = (ROOT / "docs" / "how-to" / "install.md").read_text().partition("Extras of the other packages")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)
    assert rows == list(extras)


def test_every_page_is_in_the_site() -> None:
    listed = (ROOT / "mkdocs.yml").read_text()
    for page in sorted((ROOT / "docs").rglob("*.md")):
        place = str(page.relative_to(ROOT / "docs"))
        if not place.startswith(("specifications/", "decisions/", "research/")):
            assert f" {place}\n" in listed, f"{place} is not in the navigation of mkdocs.yml"


@pytest.mark.parametrize("stub", ["__init__", "types", "auth/__init__", "errors", "extend"])
def test_every_public_name_can_be_shown_in_the_reference(stub: str) -> None:
    """The site reads definitions, and no assignment to several names."""
    imports = [
        node
        for node in ast.parse((sources.PACKAGES["portico"] / f"{stub}.pyi").read_text()).body
        if isinstance(node, ast.ImportFrom)
    ]
    assert imports
    for node in imports:
        assert not {name.name for name in node.names if not name.name.isupper()} - _defined(str(node.module)), (
            node.module
        )


def _defined(module: str) -> set[str]:
    package, *rest = module.split(".")
    place = sources.PACKAGES[package].joinpath(*rest)
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    names: set[str] = set()
    for item in ast.parse(file.read_text()).body:
        if isinstance(item, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(item.name)
        elif isinstance(item, ast.Assign | ast.AnnAssign):
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(item, ast.ImportFrom):
            names |= {name.asname or name.name for name in item.names}
    return names
