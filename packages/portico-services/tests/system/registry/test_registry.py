"""The registry on every system: branches, reading, writing, hidden keys."""

from __future__ import annotations

import os
import plistlib
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from portico_services.system import subprocesses
from portico_services.system.errors import CorruptData, NotFound, SystemToolError
from portico_services.system.path_access import AllowedPaths
from portico_services.system.registry import platform_branches
from portico_services.system.registry.branches import HiveBranch, PortableRegistry, WindowsBranch, list_branches
from portico_services.system.registry.platform_branches import GsettingsBranch, PlistBranch, SysctlBranch
from portico_services.system.registry.tree import KeyPage, RegistryTree
from support import system_forgery as forgery
from support.outcomes import has_outcome

KEY = r"HKEY_CURRENT_USER\Software\Example"


@pytest.fixture
def registry() -> Iterator[RegistryTree]:
    portable = PortableRegistry()
    yield RegistryTree({"HKEY_CURRENT_USER": portable.branch("HKEY_CURRENT_USER")}, writable=True)
    portable.close()


def test_written_value_is_read_back(registry: RegistryTree) -> None:
    change = registry.write(KEY, "Answer", 42, None, dry_run=False)
    assert (change.type, change.before, change.written) == ("REG_DWORD", None, True)
    path, value = registry.value(KEY, "Answer")
    assert (path, value.type, value.value) == (KEY, "REG_DWORD", 42)


@pytest.mark.parametrize("path", [KEY, KEY.lower(), r"HKCU\SOFTWARE\example", "HKCU/Software/Example"])
def test_names_are_compared_without_regard_to_case(registry: RegistryTree, path: str) -> None:
    registry.write(KEY, "Answer", "x", None, dry_run=False)
    assert registry.value(path, "ANSWER")[1].value == "x"
    registry.write(path, "ANSWER", "y", None, dry_run=False)
    assert [value.value for value in registry.content(KEY)[1].values] == ["y"]


def test_dry_run_writes_nothing_and_reports_the_change(registry: RegistryTree) -> None:
    registry.write(KEY, "Answer", 1, None, dry_run=False)
    change = registry.write(KEY, "Answer", ["a", "b"], None, dry_run=True)
    assert change.before is not None
    assert (change.before.value, change.after, change.type, change.written) == (1, ["a", "b"], "REG_MULTI_SZ", False)
    assert registry.value(KEY, "Answer")[1].value == 1


def test_where_only_reading_is_allowed_nothing_is_written() -> None:
    portable = PortableRegistry()
    registry = RegistryTree({"HKEY_CURRENT_USER": portable.branch("HKEY_CURRENT_USER")})
    assert not registry.write(KEY, "Answer", 42, None, dry_run=True).written
    with pytest.raises(SystemToolError, check=has_outcome("denied"), match="read-only here"):
        registry.write(KEY, "Answer", 42, None, dry_run=False)
    with pytest.raises(NotFound):
        registry.value(KEY, "Answer")
    portable.close()


@pytest.mark.parametrize(
    "path, name, value, kind",
    [
        (KEY, "x", "zz", "REG_BINARY"),
        (KEY, "x", -1, "REG_DWORD"),
        (KEY, "x", True, None),
        (KEY, "x", 1.5, None),
        (KEY, "x", 1, "REG_NONSENSE"),
        (KEY, "x" * 300, 1, None),
        (KEY, "x", "y" * 2**20, None),
        ("HKCU", "x", 1, None),
        ("HKCU\\" + "\\".join("x" * 600), "x", 1, None),
        ("x\0y", "x", 1, None),
    ],
)
def test_invalid_write_is_rejected(registry: RegistryTree, path: str, name: str, value: Any, kind: Any) -> None:
    with pytest.raises(SystemToolError, check=has_outcome("invalid")):
        registry.write(path, name, value, kind, dry_run=False)


@pytest.mark.parametrize(
    "path", [r"HKLM\SAM\Domains", r"HKEY_LOCAL_MACHINE\SECURITY", r"HKU\S-1-5-21-1-2-3-1001\Software"]
)
def test_secrets_and_other_users_are_denied(path: str) -> None:
    portable = PortableRegistry()
    registry = RegistryTree(list_branches({}, portable))
    with pytest.raises(SystemToolError, check=has_outcome("denied")):
        registry.content(path)
    with pytest.raises(SystemToolError, check=has_outcome("denied")):
        registry.value(path, "")
    portable.close()


def test_branch_or_key_that_is_not_there_is_absent(registry: RegistryTree) -> None:
    assert registry.content("")[1].subkeys == ["HKEY_CURRENT_USER"]
    assert registry.content("HKCU")[1] == KeyPage([], [], None, [], None)
    for path in (r"HKCU\nothing", r"nothing\at\all"):
        with pytest.raises(NotFound):
            registry.content(path)


def test_portable_registry_persists_in_its_file(tmp_path: Path) -> None:
    for value in (1, 2):
        portable = PortableRegistry(str(tmp_path / "registry.sqlite"))
        registry = RegistryTree({"HKEY_CURRENT_USER": portable.branch("HKEY_CURRENT_USER")}, writable=True)
        before = registry.write(KEY, "n", value, None, dry_run=False).before
        portable.close()
    assert before is not None
    assert before.value == 1


def test_hive_file_is_a_branch(tmp_path: Path) -> None:
    (tmp_path / "NTUSER.DAT").write_bytes(forgery.hive())
    path = str(tmp_path / "NTUSER.DAT")
    registry = RegistryTree({"sample": HiveBranch(AllowedPaths([path]), path)}, writable=True)
    content = registry.content("sample")[1]
    assert content.subkeys == ["branch"]
    assert registry.value(r"SAMPLE\Branch\LEAF2", "N")[1].value == 2
    with pytest.raises(SystemToolError, check=has_outcome("denied"), match="read-only"):
        registry.write(r"sample\branch", "x", 1, None, dry_run=False)


# What other systems have


def test_sysctl_is_a_branch(tmp_path: Path) -> None:
    (tmp_path / "kernel" / "random").mkdir(parents=True)
    (tmp_path / "kernel" / "ostype").write_text("Linux\n")
    (tmp_path / "kernel" / "link").symlink_to("/etc/passwd")
    registry = RegistryTree({"sysctl": SysctlBranch(str(tmp_path))})
    content = registry.content(r"sysctl\kernel")[1]
    assert content.subkeys == ["random"]
    assert [(value.name, value.value) for value in content.values] == [("ostype", "Linux")]
    for path, name in ((r"sysctl\..\..", "passwd"), (r"sysctl\kernel", "../kernel/ostype"), (r"sysctl\kernel", "link")):
        with pytest.raises(NotFound):
            registry.value(path, name)


@pytest.mark.skipif(not os.path.isdir("/proc/sys/kernel"), reason="the settings of a Linux kernel")
def test_settings_of_this_kernel_are_read() -> None:
    assert RegistryTree({"sysctl": SysctlBranch()}).value(r"sysctl\kernel", "ostype")[1].value == "Linux"


def test_gsettings_is_a_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[list[str]] = []

    def lines(argv: list[str], **_: Any) -> Iterator[bytes]:
        requests.append(argv)
        yield from {
            "list-schemas": [b"org.gnome.desktop.interface\n", b"org.gnome.mutter\n"],
            "list-recursively": [b"org.gnome.mutter edge-tiling true\n", b"org.gnome.mutter keys ['a', 'b']\n"],
        }[argv[1]]

    monkeypatch.setattr(subprocesses, "run_lines", lines)
    registry = RegistryTree({"gsettings": GsettingsBranch()})
    assert registry.content("gsettings")[1].subkeys == ["org.gnome.desktop.interface", "org.gnome.mutter"]
    assert registry.value(r"gsettings\org.gnome.mutter", "keys")[1].value == "['a', 'b']"
    requests.clear()
    with pytest.raises(NotFound):
        registry.content(r"gsettings\--help; ls")
    assert requests == []


def test_property_lists_are_a_branch(tmp_path: Path) -> None:
    message = {
        "text": "x", "yes": True, "n": 7, "data": b"\1", "at": datetime(2026, 1, 1), "list": [1, {"a": 1}],
        "inner": {"deep": "y"},
    }  # fmt: skip
    (tmp_path / "com.example.app.plist").write_bytes(plistlib.dumps(message, fmt=plistlib.FMT_BINARY))
    (tmp_path / "broken.plist").write_bytes(b"bplist00nonsense")
    (tmp_path / "bomb.plist").write_text('<!DOCTYPE x [<!ENTITY a "b">]><plist><string>&a;</string></plist>')
    registry = RegistryTree({"plists": PlistBranch((str(tmp_path),))})
    assert registry.content("plists")[1].subkeys == ["bomb", "broken", "com.example.app"]
    content = registry.content(r"plists\com.example.app")[1]
    assert content.subkeys == ["inner"]
    assert {value.name: (value.type, value.value) for value in content.values} == {
        "text": ("REG_SZ", "x"),
        "yes": ("REG_DWORD", 1),
        "n": ("REG_QWORD", 7),
        "data": ("REG_BINARY", b"\1"),
        "at": ("REG_SZ", "2026-01-01T00:00:00+00:00"),
        "list": ("REG_MULTI_SZ", ["1", "(dict of 1)"]),
    }
    assert registry.value(r"plists\com.example.app\inner", "deep")[1].value == "y"
    for name in ("broken", "bomb"):
        with pytest.raises(CorruptData):
            registry.content(f"plists\\{name}")
    with pytest.raises(NotFound):
        registry.content(r"plists\nothing")


def test_oversized_property_list_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform_branches, "MAX_PLIST_BYTES", 100)
    (tmp_path / "a.plist").write_bytes(plistlib.dumps({"x": "y" * 200}))
    with pytest.raises(CorruptData, match="exceeds 100 bytes"):
        RegistryTree({"plists": PlistBranch((str(tmp_path),))}).content(r"plists\a")


# Windows, against a double of `winreg`


class Winreg(SimpleNamespace):
    HKEY_CURRENT_USER, KEY_READ, KEY_WRITE = "HKCU", 1, 2

    def __init__(self) -> None:
        self.keys: dict[str, dict[str, tuple[Any, int]]] = {"": {}, "Software": {"Text": ("x", 1), "Bytes": (b"\1", 3)}}

    def OpenKey(self, top: str, path: str, reserved: int, access: int) -> Any:
        if path not in self.keys:
            raise FileNotFoundError
        if path == "Software\\Secret":
            raise PermissionError
        return self.Key(path)

    def CreateKeyEx(self, top: str, path: str, reserved: int, access: int) -> Any:
        self.keys.setdefault(path, {})
        return self.Key(path)

    class Key(str):
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *raised: object) -> None:
            pass

    def QueryInfoKey(self, key: str) -> tuple[int, int, int]:
        return 0, 0, 132_000_000_000_000_000

    def EnumKey(self, key: str, n: int) -> str:
        below = sorted(path for path in self.keys if path and path.rpartition("\\")[0] == key)
        if n >= len(below):
            raise OSError
        return below[n].rpartition("\\")[2]

    def EnumValue(self, key: str, n: int) -> tuple[str, Any, int]:
        rows = [(name, *value) for name, value in self.keys[key].items()]
        if n >= len(rows):
            raise OSError
        return rows[n]

    def QueryValueEx(self, key: str, name: str) -> tuple[Any, int]:
        if name not in self.keys[key]:
            raise FileNotFoundError
        return self.keys[key][name]

    def SetValueEx(self, key: str, name: str, reserved: int, kind: int, value: Any) -> None:
        self.keys[key][name] = (value, kind)


def test_live_registry_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Winreg()
    monkeypatch.setitem(sys.modules, "winreg", api)  # type: ignore[arg-type]
    registry = RegistryTree({"HKEY_CURRENT_USER": WindowsBranch("HKEY_CURRENT_USER")}, writable=True)
    assert registry.content("HKCU")[1].subkeys == ["Software"]
    content = registry.content(r"HKCU\Software")[1]
    assert [(value.name, value.type, value.value) for value in content.values] == [
        ("Bytes", "REG_BINARY", b"\1"),
        ("Text", "REG_SZ", "x"),
    ]
    assert content.written == 1_555_526_400_000_000
    registry.write(r"HKCU\Software\New", "b", "00ff", "REG_BINARY", dry_run=False)
    assert api.keys["Software\\New"] == {"b": (b"\0\xff", 3)}
    with pytest.raises(NotFound):
        registry.value(r"HKCU\Software", "nothing")
    with pytest.raises(NotFound):
        registry.content(r"HKCU\Nothing")


def test_truncated_hive_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "hive"
    path.write_bytes(forgery.hive()[:-16])
    registry = RegistryTree({"sample": HiveBranch(AllowedPaths([tmp_path]), str(path))}, writable=False)
    result = registry.content("sample")[1]
    assert result.problems == ["the file is truncated: 16 bytes are missing"]


@pytest.mark.parametrize("name", ["HKLM\\SYSTEM", "HKEY_LOCAL_MACHINE\\SYSTEM", "hklm/SYSTEM/", "SYSTEM"])
def test_hive_is_configured_by_path(hive_files: dict[str, Path], name: str) -> None:
    portable = PortableRegistry(":memory:")
    tree = RegistryTree(list_branches({name: hive_files["SYSTEM"]}, portable))
    path = "SYSTEM" if name == "SYSTEM" else "HKLM\\SYSTEM"
    assert tree.value(f"{path}\\Select", "Current")[1].value in (1, 2)
    assert "Select" in tree.content(path)[1].subkeys
    if name != "SYSTEM":
        assert tree.content("HKLM")[1].subkeys == ["SYSTEM"]
    portable.close()


@pytest.mark.parametrize("name", ["", "\\", "/"])
def test_hive_without_a_name_is_rejected(name: str, tmp_path: Path) -> None:
    portable = PortableRegistry(":memory:")
    with pytest.raises(SystemToolError, check=has_outcome("invalid"), match="invalid name of a hive"):
        list_branches({name: tmp_path / "hive"}, portable)
    portable.close()
