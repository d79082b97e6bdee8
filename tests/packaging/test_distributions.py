"""The wheels and sdists of the four packages: versions, metadata, licences, reproducible builds, SBOM."""

from __future__ import annotations

import email
import hashlib
import importlib.util
import json
import os
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from trove_classifiers import classifiers as known_classifiers

import portico
from support.paths import ROOT

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
PACKAGES = ("portico", "portico-gateway", "portico-services", "portico-console")


def _load(name: str) -> ModuleType:
    """Import a script of release/, which is not a package."""
    sys.path.insert(0, str(ROOT / "release"))
    try:
        spec = importlib.util.spec_from_file_location(f"release_{name}", ROOT / "release" / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.pop(0)


version = _load("version")
build = _load("build")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    assert len(build.build(folder)) == 8
    return folder


def _project(name: str) -> dict[str, Any]:
    text = (ROOT / "packages" / name / "pyproject.toml").read_text(encoding="utf-8")
    result: dict[str, Any] = tomllib.loads(text)["project"]
    return result


def _wheel(dist: Path, name: str) -> zipfile.ZipFile:
    (path,) = dist.glob(f"{name.replace('-', '_')}-[0-9]*.whl")
    return zipfile.ZipFile(path)


def test_four_packages_have_one_version() -> None:
    assert version.read_version() == portico.__version__
    assert version.repeated_versions() == {name: {portico.__version__} for name in PACKAGES}


def test_new_version_is_written_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    projects = [tmp_path / name / "pyproject.toml" for name in PACKAGES]
    for name, path in zip(PACKAGES, projects, strict=True):
        path.parent.mkdir()
        path.write_bytes((ROOT / "packages" / name / "pyproject.toml").read_bytes())
    source = tmp_path / "__init__.py"
    source.write_bytes(version.SOURCE.read_bytes())
    monkeypatch.setattr(version, "PROJECTS", projects)
    monkeypatch.setattr(version, "SOURCE", source)
    version.write_version("12.0.3rc1")
    assert version.read_version() == "12.0.3rc1"
    assert version.repeated_versions() == {name: {"12.0.3rc1"} for name in PACKAGES}
    assert not any(portico.__version__ in line for path in projects for line in path.read_text().splitlines())


@pytest.mark.parametrize("text", ["1.2", "v1.2.3", "1.2.3.dev0", "1.2.3-rc1", ""])
def test_version_of_another_form_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a version such as 1\.2\.3"):
        version.write_version(text)


def test_tag_must_be_the_version_and_be_in_the_changelog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "CHANGELOG", tmp_path / "CHANGELOG.md")
    version.CHANGELOG.write_text("## [Unreleased]\n")
    with pytest.raises(ValueError, match="tag must be"):
        version.check_tag(f"v{portico.__version__}.1")
    with pytest.raises(ValueError, match="CHANGELOG"):
        version.check_tag(f"v{portico.__version__}")
    version.CHANGELOG.write_text(f"## [Unreleased]\n\n## [{portico.__version__}] - 2026-12-01\n")
    version.check_tag(f"v{portico.__version__}")


@pytest.mark.parametrize("name", PACKAGES)
def test_metadata_is_complete(dist: Path, name: str) -> None:
    with _wheel(dist, name) as wheel:
        (path,) = (path for path in wheel.namelist() if path.endswith(".dist-info/METADATA"))
        metadata = email.message_from_string(wheel.read(path).decode())
    for field in ("Summary", "Author", "License-Expression", "License-File", "Keywords", "Requires-Python"):
        assert metadata[field], field
    assert metadata["Description-Content-Type"] == "text/markdown" and len(metadata.get_payload()) > 200
    classified = metadata.get_all("Classifier")
    assert classified and set(classified) <= known_classifiers
    prefix = "Programming Language :: Python :: 3."
    assert [item.removeprefix(prefix[:-2]) for item in classified if item.startswith(prefix)] == PYTHONS


@pytest.mark.parametrize("name", PACKAGES)
def test_wheels_contain_types_data_and_licences(dist: Path, name: str) -> None:
    source = ROOT / "packages" / name / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    with _wheel(dist, name) as wheel:
        names = set(wheel.namelist())
    assert {path for path in names if ".dist-info/" not in path} == expected
    assert f"{name.replace('-', '_')}/py.typed" in names
    licences = {path.partition(".dist-info/licenses/")[2] for path in names} - {""}
    more = {
        "portico": {"THIRD_PARTY_NOTICES.md", "licenses/Apache-2.0.txt"},
        "portico-services": {"THIRD_PARTY_NOTICES.md"},
    }
    assert licences == {"LICENSE"} | more.get(name, set())
    assert (ROOT / "packages" / name / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_third_party_files_are_in_the_notices() -> None:
    notices = (ROOT / "packages" / "portico" / "THIRD_PARTY_NOTICES.md").read_text(encoding="utf-8")
    assert "`portico/search/thesaurus.txt`" in notices and "Apache-2.0" in _project("portico")["license"]
    head = (ROOT / "packages/portico/src/portico/search/thesaurus.txt").read_text(encoding="utf-8")[:400]
    assert "Apache License 2.0" in head
    notices = (ROOT / "packages" / "portico-services" / "THIRD_PARTY_NOTICES.md").read_text(encoding="utf-8")
    assert "`portico_services/memory/search/adapter.safetensors`" in notices


@pytest.mark.parametrize("name", PACKAGES)
def test_sdists_contain_the_sources_and_no_tests(dist: Path, name: str) -> None:
    (path,) = dist.glob(f"{name.replace('-', '_')}-[0-9]*.tar.gz")
    with tarfile.open(path) as archive:
        names = {member.partition("/")[2] for member in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO"} <= names
    assert not [member for member in names if member.startswith("tests")]


def test_builds_are_reproducible(dist: Path, tmp_path: Path) -> None:
    again = build.build(tmp_path)
    assert {path.name: _digest(path) for path in again} == {path.name: _digest(dist / path.name) for path in again}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_checksums_match_the_files(dist: Path, tmp_path: Path) -> None:
    files = sorted(dist.glob("*.whl"))
    build.write_checksums(files, tmp_path)
    lines = [line.split("  ") for line in (tmp_path / build.CHECKSUMS).read_text().splitlines()]
    assert lines == [[_digest(path), path.name] for path in files]


@pytest.mark.skipif(not os.environ.get("CI"), reason="packages are installed where CI is set")
def test_sbom_is_valid_and_names_the_required_dependencies(dist: Path, tmp_path: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    path = build.write_sbom(sorted(dist.glob("*.whl")), tmp_path)
    text = path.read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    sbom = json.loads(text)
    assert sbom["metadata"]["component"]["name"] == "portico"
    names = {component["name"] for component in sbom["components"]}
    assert names == {*PACKAGES[1:], "msgspec", "httptools", "uvloop"}
    assert str(tmp_path) not in text and str(dist) not in text
