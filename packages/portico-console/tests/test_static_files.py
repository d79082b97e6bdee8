"""Static files of the page: size, completeness, and no markup injection from server data."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import portico_console

PAGE = Path(portico_console.__file__).parent / "static"
SCRIPTS = sorted(PAGE.rglob("*.js"))
FIRST, ALL = 140_000, 240_000
IMPORTED = re.compile(r'from "(\.[^"]+)"')
# Each of them makes markup or code from a text.
SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setHTML|createContextualFragment"
    r"|parseFromString|srcdoc|setTimeout\(['\"`]|\.on[a-z]+ = ['\"`]"
)


def loaded(*names: str) -> set[Path]:
    """Modules, with those that they import."""
    result: set[Path] = set()
    waiting = [PAGE / name for name in names]
    while waiting:
        path = waiting.pop()
        if path not in result:
            result.add(path)
            waiting += [(path.parent / name).resolve() for name in IMPORTED.findall(path.read_text("utf-8"))]
    return result


def weight(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


def test_first_view_is_below_140_kilobytes_and_all_of_it_below_240() -> None:
    html = (PAGE / "index.html").read_text("utf-8")
    named = {PAGE / name for name in re.findall(r'"/console/([^"]+)"', html)}
    first = named | loaded(*(item.relative_to(PAGE).as_posix() for item in named if item.suffix == ".js"))
    assert weight({PAGE / "index.html", *first}) < FIRST
    assert weight(PAGE.rglob("*")) < ALL
    # The bridge of apps is loaded when there is one, and what logs in when somebody does.
    assert not {PAGE / "apps.js", PAGE / "oauth.js"} & first and PAGE / "views" / "tools.js" in first


def test_every_view_has_its_file() -> None:
    views = re.findall(r'id: "(\w+)"', (PAGE / "views.js").read_text("utf-8"))
    assert {f"{name}.js" for name in views} == {path.name for path in (PAGE / "views").iterdir()}


def test_no_script_makes_markup_or_code_from_a_text() -> None:
    results = {path.name: SINKS.findall(path.read_text(encoding="utf-8")) for path in SCRIPTS}
    assert not {name: sinks for name, sinks in results.items() if sinks}


def test_urls_are_set_in_known_places_only() -> None:
    """A link, a picture, a sound, an icon, the views, the frame of an app: whoever adds another has to look at where the text is from."""
    setting = re.compile(r"\.(?:href|src|action) = |setAttribute\(\"(?:href|src|action|style)\"")
    counted = {path.relative_to(PAGE).as_posix(): len(setting.findall(path.read_text("utf-8"))) for path in SCRIPTS}
    assert {name: count for name, count in counted.items() if count} == {
        "apps.js": 1,
        "dom.js": 2,
        "results.js": 2,
        "shell.js": 2,
    }


def test_every_module_that_is_imported_is_present() -> None:
    for path in SCRIPTS:
        for name in IMPORTED.findall(path.read_text("utf-8")):
            assert (path.parent / name).is_file(), f"{path.name} imports {name}"


def test_page_has_no_inline_code_and_requests_no_other_host() -> None:
    html = (PAGE / "index.html").read_text("utf-8")
    assert not re.search(r"<style|style=|\son[a-z]+=|<script(?![^>]*src=\"/console/)", html)
    everything = "".join(path.read_text("utf-8") for path in PAGE.rglob("*") if path.suffix in (".js", ".css", ".html"))
    hosts = set(re.findall(r"https?://([\w.-]+)", everything))
    assert hosts <= {"www.w3.org", "example.org"}, hosts
