"""Packages of the current project in the sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portico import UsageError
from portico_services.livepython import LivePython
from portico_services.livepython.sandbox import project_imports
from support.live_python import jail_only

Begin = Callable[..., Any]


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


SHOP = "class Price:\n    def tax(self):\n        return 1\n"
SECRET = {".env": "TOKEN=1", "keys/private.txt": "secret", "tests/data.txt": "data"}


@pytest.fixture
def in_src(tmp_path: Path) -> Path:
    files = {"pyproject.toml": "", "src/shop/__init__.py": SHOP, "src/shop/sub/__init__.py": "x = 1", **SECRET}
    return write(tmp_path / "in_src", **files, **{"src/spread/part/__init__.py": "y = 2", "src/alone.py": "z = 3"})


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    files = {
        "setup.py": "raise SystemExit",
        "booth/__init__.py": SHOP,
        "single.py": "z = 3",
        "docs/conf.py": "",
        **SECRET,
    }
    return write(tmp_path / "flat", **files, **{"json.py": "raise SystemExit"})


def test_packages_are_found_in_both_layouts(in_src: Path, flat: Path) -> None:
    assert project_imports.find_packages([str(in_src)], []) == {
        "shop": str(in_src / "src" / "shop"),
        "spread": str(in_src / "src" / "spread"),
        "alone": str(in_src / "src" / "alone.py"),
    }
    assert project_imports.find_packages([str(flat)], []).keys() == {"booth", "single"}


def test_packages_are_found_where_an_installation_for_editing_points(tmp_path: Path) -> None:
    project = write(
        tmp_path / "mono [1]",
        **{"pyproject.toml": "", "python/by_path/__init__.py": "", "packages/one/src/by_url/__init__.py": ""},
        **{"lib/mapped_to/__init__.py": "", "packages/one/pyproject.toml": ""},
    )
    elsewhere = write(tmp_path / "elsewhere", **{"other/__init__.py": ""})
    site = write(
        tmp_path / "site",
        **{
            "a.pth": f"import os\n{project}/python\n{elsewhere}\n",
            "__editable___b_1_finder.py": (
                f"MAPPING: dict[str, str] = {{'mapped': '{project}/lib/mapped_to', 'not': '/etc'}}"
            ),
            "__editable___c_1_finder.py": "MAPPING = {",
            "one-1.dist-info/direct_url.json": json.dumps(
                {"url": (project / "packages" / "one").as_uri(), "dir_info": {"editable": True}}
            ),
            "two-1.dist-info/direct_url.json": "[]",
        },
    )
    assert project_imports.find_packages([str(project)], [str(site)]).keys() == {"by_path", "by_url", "mapped"}


def test_symlink_out_of_the_project_is_not_a_project_package(tmp_path: Path, flat: Path) -> None:
    (flat / "out").symlink_to(write(tmp_path / "outside", **{"__init__.py": ""}))
    assert "out" not in project_imports.find_packages([str(flat)], [])


@jail_only
async def test_project_packages_are_importable_and_readable_only(talk: Begin, in_src: Path, flat: Path) -> None:
    live = await talk(project_dirs=[in_src, flat], tools="all")
    assert await live.text(
        "import shop.sub, spread.part, alone, booth, single; shop.sub.x, spread.part.y, alone.z"
    ) == ("(1, 2, 3)")
    assert await live.text("import json; json.dumps(shop.Price().tax())") == "'1'"
    source = await live.call("method_source", className="shop.Price", selector="tax")
    assert source.structured["source"] == "def tax(self):\n    return 1"
    listed = (await live.call("list_packages", pattern="booth")).structured["packages"]
    assert listed == [{"name": "booth", "kind": "project"}]
    info = (await live.call("system_info")).structured
    assert info["projectPackages"] == ["alone", "booth", "shop", "single", "spread"]
    for path in (".env", "keys/private.txt", "tests/data.txt", "pyproject.toml"):
        assert "PermissionError" in await live.text(f"open({str(in_src / path)!r}).read()")
    assert "PermissionError" in await live.text(f"import os; os.listdir({str(flat)!r})")
    for path in (in_src / "src" / "shop" / "__init__.py", in_src / "src" / "shop" / "new.py"):
        assert "PermissionError" in await live.text(f"open({str(path)!r}, 'w')")
    # A method is tried in the session, and leaves it as a patch for the project.
    await live.call("define_method", className="shop.Price", source="def tax(self):\n    return 2")
    assert await live.text("shop.Price().tax()") == "2"
    assert (await live.call("list_changes")).text.startswith("--- a/src/shop/__init__.py\n")


@jail_only
async def test_without_a_word_projects_stay_closed(talk: Begin, in_src: Path) -> None:
    live = await talk()
    assert "ModuleNotFoundError" in await live.text("import shop")
    assert "projectPackages" not in (await live.call("system_info")).structured


def test_project_has_to_be_there_and_files_have_to_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a directory"):
        LivePython(project_dirs=[tmp_path / "nowhere"])
    with pytest.raises(UsageError, match="needs a file system"):
        LivePython(sandbox="wasm", project_dirs=[tmp_path])
