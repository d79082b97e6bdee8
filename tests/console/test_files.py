"""The files of the page: small, whole, and without a way in for what a server says."""

from __future__ import annotations

import re
from pathlib import Path

import portico

PAGE = Path(portico.__file__).parent / "console" / "page"
SCRIPTS = sorted(PAGE.rglob("*.js"))
LARGEST = 200_000
# Each of them makes markup or code from a text.
SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setHTML|createContextualFragment"
    r"|parseFromString|srcdoc|setTimeout\(['\"`]|\.on[a-z]+ = ['\"`]"
)


def test_all_of_it_is_below_200_kilobytes() -> None:
    assert sum(path.stat().st_size for path in PAGE.rglob("*") if path.is_file()) < LARGEST


def test_no_script_makes_markup_or_code_from_a_text() -> None:
    found = {path.name: SINKS.findall(path.read_text(encoding="utf-8")) for path in SCRIPTS}
    assert not {name: sinks for name, sinks in found.items() if sinks}


def test_addresses_are_set_in_a_few_known_places() -> None:
    """A link, a picture, a sound, an icon, the views: whoever adds another has to look at where the text is from."""
    setting = re.compile(r"\.(?:href|src|action) = |setAttribute\(\"(?:href|src|action|style)\"")
    counted = {path.relative_to(PAGE).as_posix(): len(setting.findall(path.read_text("utf-8"))) for path in SCRIPTS}
    assert {name: count for name, count in counted.items() if count} == {"dom.js": 2, "results.js": 2, "shell.js": 2}


def test_every_module_that_is_imported_is_there() -> None:
    for path in SCRIPTS:
        for name in re.findall(r'from "(\.[^"]+)"', path.read_text("utf-8")):
            assert (path.parent / name).is_file(), f"{path.name} imports {name}"


def test_the_page_has_no_code_or_style_in_it_and_asks_no_other_host() -> None:
    html = (PAGE / "index.html").read_text("utf-8")
    assert not re.search(r"<style|style=|\son[a-z]+=|<script(?![^>]*src=\"/console/)", html)
    everything = "".join(path.read_text("utf-8") for path in PAGE.rglob("*") if path.suffix in (".js", ".css", ".html"))
    hosts = set(re.findall(r"https?://([\w.-]+)", everything))
    assert hosts <= {"www.w3.org", "example.org"}, hosts
