"""What makes the site: pages that are not files in docs/, links to files that are not pages, llms.txt.

A hook of mkdocs (`make docs`). Every link leads somewhere, and nothing comes from another host, or the build fails.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
# Pages that are files elsewhere.
ELSEWHERE = {"index.md": "README.md", "changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yaml": "yaml", ".lock": "text"}
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]+(?:\n[^\]\n]+)?)\]\((?P<to>[^)\s#]*)(?P<part>#[^)\s]*)?\)")
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|audio|video)\b[^>]*\ssrc=["']?(https?:)?//|<link\b[^>]*\srel=["']?(?:stylesheet|preconnect|icon)["']?[^>]*\shref=["']?(https?:)?//"""
)
# Of the public modules, and what its page says first.
REFERENCE = {
    "portico": "The names for everybody: `from portico import Server`.",
    "errors": "The exceptions to catch: `from portico.errors import TimedOut`.",
    "extend": "The names for those who build on Portico: `from portico.extend import Handler`.",
}

_texts: dict[str, tuple[str, str]] = {}


def on_files(files: Files, config: Any) -> Files:
    for page, source in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for name, about in REFERENCE.items():
        files.append(File.generated(config, f"reference/{name}.md", content=_reference(name, about)))
    for example in sorted((ROOT / "examples").glob("*.*")):
        if example.suffix in LANGUAGES:
            files.append(File.generated(config, _example_page(example.name), content=_shown(example)))
    files.append(File.generated(config, "examples/README.md", content=_examples()))
    return files


def _example_page(name: str) -> str:
    return f"examples/{name.replace('.', '-')}.md"


def _shown(example: Path) -> str:
    return f"# {example.name}\n\n```{LANGUAGES[example.suffix]}\n{example.read_text()}```\n"


def _examples() -> str:
    """All examples, with the first line of what each says of itself."""
    lines = ["# Examples", "", "Each is a file of `examples/`, and runs."]
    for one in sorted((ROOT / "examples").glob("*.py")):
        about = (ast.get_docstring(ast.parse(one.read_text())) or "").partition("\n")[0]
        lines.append(f"- [{one.name}]({PurePosixPath(_example_page(one.name)).name}): {about}")
    return "\n".join(lines) + "\n"


def _reference(name: str, about: str) -> str:
    module = "portico" if name == "portico" else f"portico.{name}"
    package = ROOT / "packages" / "portico" / "src" / "portico"
    homes = _homes(package / ("__init__.py" if name == "portico" else f"{name}.py"))
    lines = [f"# {module}", "", about, ""]
    for public, home in sorted(homes.items(), key=lambda one: one[0].lower()):
        lines += [f"::: {home}.{public}", ""]
    return "\n".join(lines)


def _homes(module: Path) -> dict[str, str]:
    """The public names of a module that imports them late, and where each is defined."""
    found: dict[str, str] = {}
    for block in ast.parse(module.read_text()).body:
        if isinstance(block, ast.If):
            imports = [one for one in block.body if isinstance(one, ast.ImportFrom)]
            found |= {(name.asname or name.name): str(one.module) for one in imports for name in one.names}
    return {name: home for name, home in found.items() if home != "portico" and name[0].isupper()}


# Links


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    place = page.file.src_uri
    source = ELSEWHERE.get(place, f"docs/{place}")
    # The tests read the word after the language; Markdown in Python accepts none.
    markdown = re.sub(r"^( *```\w+) fragment$", r"\1", markdown, flags=re.MULTILINE)
    written = LINK.sub(lambda link: _link(link, source, place, files), markdown)
    _texts[place] = (str(page.title or place), written)
    return written


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Show `a | b` in table cells without the backslash that Markdown on GitHub needs."""
    return re.sub(r"<code>[^<]*</code>", lambda code: code[0].replace("\\|", "|"), html)


def _link(link: re.Match[str], source: str, place: str, files: Files) -> str:
    """A link as the site has it: files that are no pages are shown on one, or only named."""
    to, part = link["to"], link["part"] or ""
    if not to or ":" in to or place.startswith(("examples/", "reference/")):
        return link[0]
    path = normpath(str(PurePosixPath(source).parent / to))
    target = _page_of(path)
    if files.get_file_from_path(target) is None:
        if not (ROOT / path).exists():
            raise PluginError(f"{source}: {to} leads nowhere")
        return link["text"]
    return f"[{link['text']}]({relpath(target, str(PurePosixPath(place).parent))}{part})"


def _page_of(path: str) -> str:
    elsewhere = {source: page for page, source in ELSEWHERE.items()}
    if path in elsewhere:
        return elsewhere[path]
    if path in ("examples", "docs/how-to", "docs/decisions", "docs/research"):
        return f"{path.removeprefix('docs/')}/README.md"
    if path.startswith("examples/"):
        return _example_page(path.removeprefix("examples/"))
    return path.removeprefix("docs/")


# After the build


def on_post_build(config: Any) -> None:
    site = Path(config.site_dir)
    for page in site.rglob("*.html"):
        text = page.read_text()
        if "<p>```" in text:
            raise PluginError(f"{page.relative_to(site)} has a code block that is not rendered as one")
        outside = LOADED.search(text)
        if outside is not None:
            raise PluginError(f"{page.relative_to(site)} loads something from another host: {outside[0][:200]}")
    pages = {place: text for place, text in sorted(_texts.items()) if not place.startswith("reference/")}
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", "", "## Pages", ""]
    lines += [
        f"- [{title}]({place.removesuffix('.md')}.html): {_first(text)}" for place, (title, text) in pages.items()
    ]
    (site / "llms.txt").write_text("\n".join(lines) + "\n")
    whole = [f"<!-- {place} -->\n\n{text}" for place, (_, text) in pages.items() if not place.startswith("examples/")]
    (site / "llms-full.txt").write_text("\n\n".join(whole))


def _first(text: str) -> str:
    """The first sentence after the heading."""
    blocks = [one.strip() for one in re.split(r"\n\s*\n", text)]
    said = next((one for one in blocks if one and one[0] not in "#<`|-!"), "")
    plain = LINK.sub(lambda link: link["text"], " ".join(said.split()))
    return re.split(r"(?<=[.:]) ", plain)[0][:200]
