"""A hook of MkDocs (`make docs`): adds pages for files outside docs/, rewrites links to files, and writes llms.txt.

The build fails if a link, an anchor or an image of the site is missing, or if a page loads something from another host.
"""

from __future__ import annotations

import ast
import re
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any
from urllib.parse import unquote, urlsplit

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
# Pages that are files outside docs/.
ELSEWHERE = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "roadmap.md": "ROADMAP.md",
    "security-policy.md": "SECURITY.md",
    "versioning.md": "VERSIONING.md",
}
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yaml": "yaml", ".lock": "text"}
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]\n]+(?:\n[^\]\n]+)?)\]\((?P<to>[^)\s#]*)(?P<part>#[^)\s]*)?\)")
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|audio|video)\b[^>]*\ssrc=["']?(https?:)?//|<link\b[^>]*\srel=["']?(?:stylesheet|preconnect|icon)["']?[^>]*\shref=["']?(https?:)?//"""
)
# The public modules, and the first sentence of their pages.
REFERENCE = {
    "portico": "Servers, clients, components and the context: `from portico import Server`.",
    "types": "Messages and content of the protocol: `from portico.types import TextContent`.",
    "auth": "Token verification for servers, login for clients: `from portico.auth import ResourceServer`.",
    "errors": "The exceptions to catch: `from portico.errors import TimedOut`.",
    "extend": "Handlers, services and stores, for code that extends Portico: `from portico.extend import Handler`.",
}

# The order of search results: instructions first, notes and code last.
SEARCH_BOOSTS = {
    "how-to/protect-with-oauth.md": 6,
    "tutorial": 2,
    "how-to": 3,
    "decisions": 0.5,
    "research": 0.3,
    "examples": 0.3,
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
    for item in sorted((ROOT / "examples").glob("*.py")):
        about = (ast.get_docstring(ast.parse(item.read_text())) or "").partition("\n")[0]
        lines.append(f"- [{item.name}]({PurePosixPath(_example_page(item.name)).name}): {about}")
    return "\n".join(lines) + "\n"


def _reference(name: str, about: str) -> str:
    module = "portico" if name == "portico" else f"portico.{name}"
    package = ROOT / "packages" / "portico" / "src" / "portico"
    stubs = (package / "__init__.pyi", package / f"{name}.pyi", package / name / "__init__.pyi")
    homes = _homes(next(stub for stub in stubs[name != "portico" :] if stub.exists()))
    lines = [f"# {module}", "", about, ""]
    for public, home in sorted(homes.items(), key=lambda item: item[0].lower()):
        lines += [f"::: {home}.{public}", ""]
    return "\n".join(lines)


def _homes(stub: Path) -> dict[str, str]:
    """Return the public classes and functions of a module, which are imported late, and where each is defined."""
    imports = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)]
    homes = {(name.asname or name.name): str(node.module) for node in imports for name in node.names}
    if not homes:
        raise PluginError(f"{stub.relative_to(ROOT)} imports nothing, so its page of the reference would be empty")
    return {name: home for name, home in homes.items() if home != "portico" and not name.isupper()}


# Links


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    place = page.file.src_uri
    page.meta.setdefault("search", {"boost": SEARCH_BOOSTS.get(place) or SEARCH_BOOSTS.get(place.partition("/")[0], 1)})
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
    """Rewrite a link: a file that is not a page of its own becomes the page that shows it, or plain text."""
    to, part = link["to"], link["part"] or ""
    if not to or ":" in to or place.startswith(("examples/", "reference/")):
        return link[0]
    path = normpath(str(PurePosixPath(source).parent / to))
    target = _page_of(path)
    if link["image"]:
        return f"![{link['text']}]({relpath(target, str(PurePosixPath(place).parent))})"
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
    # Pages of the API contain only the names of what is inserted from the sources.
    api = {f"reference/{name}.md" for name in REFERENCE}
    pages = {place: text for place, text in sorted(_texts.items()) if place not in api}
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", "", "## Pages", ""]
    lines += [f"- [{title}]({_url(place)}): {_first(text)}" for place, (title, text) in pages.items()]
    (site / "llms.txt").write_text("\n".join(lines) + "\n")
    whole = [f"<!-- {place} -->\n\n{text}" for place, (_, text) in pages.items() if not place.startswith("examples/")]
    (site / "llms-full.txt").write_text("\n\n".join(whole))
    _check_links(site)


def _url(place: str) -> str:
    folder, _, name = place.rpartition("/")
    return f"{folder}/index.html" if name == "README.md" else f"{place.removesuffix('.md')}.html"


class _Page(HTMLParser):
    """The anchors of a page, and the URLs of what it links to and shows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.urls: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif name in ("href", "src") and value:
                self.urls.add(value)


def _check_links(site: Path) -> None:
    """Raise an error that names each link to a missing file or anchor. MkDocs checks links in Markdown only."""
    pages = {page: _Page(page.read_text()) for page in site.rglob("*.html")}
    broken = []
    for page, parsed in pages.items():
        # The server chooses the URL at which it shows this page, so its links are absolute.
        for url in parsed.urls if page.name != "404.html" else ():
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            anchors = pages[target].anchors if target in pages else None
            if not target.exists() or (
                parts.fragment and anchors is not None and unquote(parts.fragment) not in anchors
            ):
                broken.append(f"{page.relative_to(site)}: {url}")
    index = site / "llms.txt"
    broken += [f"llms.txt: {url}" for url in re.findall(r"\]\((\S+)\)", index.read_text()) if not (site / url).exists()]
    if broken:
        raise PluginError("missing link targets:\n" + "\n".join(sorted(broken)))


def _first(text: str) -> str:
    """The first sentence after the heading."""
    blocks = [block.strip() for block in re.split(r"\n\s*\n", text)]
    result = next((block for block in blocks if block and block[0] not in "#<`|-!"), "")
    plain = LINK.sub(lambda link: link["text"], " ".join(result.split()))
    return re.split(r"(?<=[.:]) ", plain)[0][:200]
