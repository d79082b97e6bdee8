"""Paths outside the roots are never opened: links, devices, pipes, races."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from portico import safe_open
from portico_services.system.errors import NotFound, PathNotAllowed, SystemToolError
from portico_services.system.path_access import AllowedPaths, DenyList
from support.outcomes import has_outcome
from support.storm import times

FLIPS = times(10_000, in_a_storm=30_000)

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links and pipes as Unix has them")


@pytest.fixture(params=["by the kernel", "step by step"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to stay below a folder are held to the same."""
    if request.param == "by the kernel":
        if not safe_open._has_openat2():
            pytest.skip("this kernel has no openat2")
    else:
        monkeypatch.setattr(safe_open, "_OPENAT2_AVAILABLE", False)
    return str(request.param)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside.txt").write_text("secret")
    inside = tmp_path / "root"
    (inside / "folder").mkdir(parents=True)
    (inside / "folder" / "file.txt").write_text("inside")
    return inside


def text(roots: AllowedPaths, path: object) -> str:
    with roots.open(str(path)) as file:
        return file.read(0, 100).decode()


def test_file_below_a_root_is_read(root: Path, way: str) -> None:
    assert text(AllowedPaths([root]), root / "folder" / "file.txt") == "inside"


def test_relative_path_is_below_the_only_root(root: Path, way: str) -> None:
    assert text(AllowedPaths([root]), "folder/file.txt") == "inside"


def test_relative_path_is_rejected_where_there_are_two_roots(root: Path) -> None:
    with pytest.raises(PathNotAllowed, match="is relative"):
        AllowedPaths([root, root.parent]).open("folder/file.txt")


@pytest.mark.parametrize("path", ["../outside.txt", "folder/../../outside.txt", "folder/..", ".."])
def test_two_dots_are_rejected(root: Path, way: str, path: str) -> None:
    with pytest.raises(PathNotAllowed):
        AllowedPaths([root]).open(f"{root}/{path}")


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000])
def test_invalid_path_is_rejected(root: Path, path: str) -> None:
    with pytest.raises(SystemToolError, check=has_outcome("invalid")):
        AllowedPaths([root]).open(path)


def test_path_sharing_only_a_prefix_with_a_root_is_outside(root: Path, way: str) -> None:
    other = root.parent / "root-of-another"
    other.mkdir()
    (other / "file").write_text("secret")
    with pytest.raises(PathNotAllowed):
        AllowedPaths([root]).open(str(other / "file"))


@pytest.mark.parametrize("target", ["../outside.txt", "/etc/passwd", "folder/../../outside.txt"])
def test_link_that_leads_out_is_rejected(root: Path, way: str, target: str) -> None:
    (root / "link").symlink_to(target)
    with pytest.raises(PathNotAllowed):
        AllowedPaths([root]).open(str(root / "link"))


def test_folder_that_is_a_link_out_is_rejected(root: Path, way: str) -> None:
    (root / "way").symlink_to("..")
    with pytest.raises((PathNotAllowed, NotFound)):
        AllowedPaths([root]).open(str(root / "way" / "outside.txt"))


def test_links_of_proc_lead_nowhere() -> None:
    with pytest.raises(SystemToolError, check=has_outcome("outside", "denied")):
        AllowedPaths(["/proc"]).open("/proc/self/root/etc/passwd")


def test_pipes_sockets_and_devices_are_rejected_and_not_waited_for(root: Path, way: str) -> None:
    os.mkfifo(root / "pipe")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(root / "socket"))
    for name in ("pipe", "socket"):
        with pytest.raises(SystemToolError, check=has_outcome("unreadable"), match=f"a {name}"):
            AllowedPaths([root]).open(str(root / name))
    listening.close()
    with pytest.raises(SystemToolError, check=has_outcome("unreadable", "denied")):
        AllowedPaths(["/dev"]).open("/dev/zero")


def test_deleted_file_is_absent(root: Path, way: str) -> None:
    with pytest.raises(NotFound):
        AllowedPaths([root]).open(str(root / "nothing"))
    with pytest.raises(NotFound):
        AllowedPaths([root]).open(str(root / "folder" / "file.txt" / "more"))


def test_root_that_is_a_file_is_only_that_file(root: Path, way: str) -> None:
    (root / "folder" / "other.txt").write_text("not named")
    roots = AllowedPaths([root / "folder" / "file.txt"])
    assert text(roots, root / "folder" / "file.txt") == "inside"
    with pytest.raises(PathNotAllowed):
        roots.open(str(root / "folder" / "other.txt"))


SECRETS = [".ssh/id_rsa", "x/.gnupg/y", "server.key", "cert.pem", ".env", "logins.json", "NTUSER.DAT", "config/SAM"]


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_denied_and_hidden(root: Path, way: str, name: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("secret")
    roots = AllowedPaths([root])
    with pytest.raises(SystemToolError, check=has_outcome("denied")):
        roots.open(str(path))
    with pytest.raises(SystemToolError, check=has_outcome("denied")):
        roots.stat(str(path))
    top = root / name.split("/")[0]
    if top == path:
        with roots.open_directory(str(root)) as folder:
            assert name not in [entry.name for entry in folder.scan()]


def test_secret_by_another_name_is_denied(root: Path) -> None:
    (root / "id_rsa").write_text("secret")
    (root / "harmless.txt").symlink_to("id_rsa")
    with pytest.raises(SystemToolError, check=has_outcome("denied", "outside")):
        AllowedPaths([root]).open(str(root / "harmless.txt"))


@pytest.mark.parametrize("path", ["/etc/shadow", "/proc/self/environ", "/proc/1/mem", "/proc/kcore"])
def test_secrets_of_the_system_are_denied(path: str) -> None:
    if not os.path.exists(path):
        pytest.skip(f"there is no {path} here")
    with pytest.raises(SystemToolError, check=has_outcome("denied", "outside")):
        AllowedPaths(["/"]).open(path)


def test_operator_denies_more(root: Path, way: str) -> None:
    roots = AllowedPaths([root], deny=["*.txt"])
    with pytest.raises(SystemToolError, check=has_outcome("denied")):
        roots.open(str(root / "folder" / "file.txt"))
    with roots.open_directory(str(root / "folder")) as folder:
        assert folder.scan() == []


def test_folder_is_walked_by_its_descriptor(root: Path, way: str) -> None:
    (root / "link").symlink_to("/etc")
    with AllowedPaths([root]).open_directory(str(root)) as folder:
        with pytest.raises(OSError):
            folder.open_subdirectory("link")
        with folder.open_subdirectory("folder") as below:
            (root / "folder").rename(root / "moved")
            assert [entry.name for entry in below.scan()] == ["file.txt"]


def test_file_that_others_may_cut_short_is_copied_and_not_mapped(root: Path) -> None:
    path = root / "folder" / "file.txt"
    for mode, kind in ((0o600, "mmap"), (0o622, "bytes")):
        path.chmod(mode)
        with AllowedPaths([root]).open(str(path)) as file:
            image = file.map()
            assert type(image).__name__ == kind
            assert image[:6] == b"inside"


# Races


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in memory where there is one, as a disk makes thirty thousand changes slow. What lies below /dev would
    be denied."""
    monkeypatch.setattr(DenyList, "path_rule_prefix", lambda self, path: False)
    top = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path)).resolve()
    (top / "outside.txt").write_text("secret")
    (top / "root" / "folder").mkdir(parents=True)
    (top / "root" / "folder" / "file.txt").write_text("inside")
    yield top / "root"
    shutil.rmtree(top)


# Two things take turns at one name, by renaming, so that there is always one.
FLIP = """
import os, sys
place, count, *targets = sys.argv[1:]
for n in range(int(count)):
    os.symlink(targets[n % 2], place + ".spare")
    os.replace(place + ".spare", place)
"""


def race(roots: AllowedPaths, place: Path, path: Path, one: Path, other: Path) -> set[str]:
    """What a reader sees of a path while another process changes a link on the way, many times."""
    seen: set[str] = set()
    flipping = subprocess.Popen([sys.executable, "-c", FLIP, str(place), str(FLIPS), str(one), str(other)])
    while flipping.poll() is None:
        try:
            with roots.open(str(path)) as file:
                seen.add(file.read(0, 100).decode())
        except SystemToolError as refused:
            seen.add(refused.outcome)
    assert flipping.returncode == 0
    assert seen <= {"inside", "secret", "outside", "absent", "denied", "unreadable"}
    return seen


def test_link_that_is_flipped_while_it_is_read_never_leads_out(quick: Path, way: str) -> None:
    place = quick / "flipped"
    seen = race(AllowedPaths([quick]), place, place, Path("folder/file.txt"), quick.parent / "outside.txt")
    assert "secret" not in seen
    if way == "by the kernel":
        assert {"inside", "outside"} <= seen, "a link that stays inside is followed"


def test_folder_that_is_flipped_while_it_is_passed_never_leads_out(quick: Path, way: str) -> None:
    (quick.parent / "elsewhere").mkdir()
    (quick.parent / "elsewhere" / "file.txt").write_text("secret")
    place = quick / "flipped"
    seen = race(AllowedPaths([quick]), place, place / "file.txt", Path("folder"), quick.parent / "elsewhere")
    assert "secret" not in seen
    if way == "by the kernel":
        assert {"inside", "outside"} <= seen, "a link that stays inside is followed"


# What is denied, and what is only called something like it


@pytest.mark.parametrize(
    "path",
    [
        ".env.local",
        ".env.production",
        ".ENV.Staging",
        ".env.bak",
        ".claude/.credentials.json",
        ".claude.json",
        ".codex/auth.json",
        ".docker/config.json",
        ".docker/config.json.bak",
        "gh/hosts.yml",
        ".cargo/credentials",
        ".cargo/credentials.toml",
        ".git/config",
        ".git/config~",
        "id_rsa.bak",
        "id_ed25519.old",
        "id_rsa_work",
        ".id_rsa.swp",
        "id_ecdsa~",
        "terraform.tfstate",
        "terraform.tfstate.backup",
        "prod.tfstate",
        "prod.tfvars",
        ".netrc.old.gz",
        "backup.pem.1",
        ".#credentials.json",
        "huggingface/token",
        "rclone.conf",
        "config/SAM",
        ".gem/credentials",
        "kubeconfig",
        "KubeConfig.yaml",
        "prod.kubeconfig",
        "src/credentials",
        "client_secret.json",
        "client_secret_123.apps.googleusercontent.com.json",
        "service-account.json",
        "service-account-prod.json",
        "service_account.json",
        "vault.yml",
        "Vault.YAML",
        "passwords.txt",
        "Passwords.xlsx",
        "passwords.txt.bak",
        "portico.db",
        "portico.db-wal",
        "http-8080.token",
        "prod.env",
        ".tcsh_history",
    ],
)
def test_secret_files_are_denied_under_any_name(tmp_path: Path, path: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("secret")
    roots = AllowedPaths([tmp_path])
    with pytest.raises(SystemToolError, check=has_outcome("denied")):
        roots.open(str(file))
    with roots.open_directory(str(file.parent)) as folder:
        assert [entry.name for entry in folder.scan()] == []


@pytest.mark.parametrize(
    "path",
    [
        "id_rsa.pub",
        "environment.txt",
        "config/app.json",
        "config.json",
        "hosts.yml",
        "notes.bak",
        "token",
        "auth.json",
        "src/credentials.py",
        "passwords.py",
        "secrets.md",
        "vault.go",
        "client_secret.py",
        "service-account.md",
        "http-client.ts",
        "portico.toml",
        "id_mapping.py",
        "keys.txt",
        "env.py",
        "settings.xml",
        "config",
        "report.old.gz",
        "#draft#",
    ],
)
def test_file_that_is_not_secret_is_readable(tmp_path: Path, path: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("open")
    with AllowedPaths([tmp_path]).open(str(file)) as opened:
        assert opened.read(0, 10) == b"open"


@pytest.mark.skipif(os.name == "nt", reason="hard links as Unix has them")
def test_hard_link_to_a_secret_is_that_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "mine").write_text("secret")
    monkeypatch.setenv("HOME", str(home))
    top = tmp_path / "root"
    (top / "deep").mkdir(parents=True)
    (top / "deep" / ".env").write_text("secret")
    (top / "one.txt").write_text("open")
    os.link(top / "one.txt", top / "two.txt")
    roots = AllowedPaths([top])
    with roots.open(str(top / "two.txt")) as opened:
        assert opened.read(0, 10) == b"open"
    # Also those that are made later.
    for number, secret in enumerate((top / "deep" / ".env", home / ".ssh" / "mine")):
        os.link(secret, top / f"innocent{number}.txt")
        for look in (roots.open, roots.stat):
            with pytest.raises(SystemToolError, check=has_outcome("denied")):
                look(str(top / f"innocent{number}.txt"))


@pytest.mark.skipif(os.name == "nt", reason="hard links as Unix has them")
def test_linked_file_is_denied_when_the_link_scan_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portico_services.system.path_access.LINK_SCAN_TIMEOUT_SECONDS", -1.0)
    (tmp_path / "one.txt").write_text("open")
    os.link(tmp_path / "one.txt", tmp_path / "two.txt")
    with pytest.raises(SystemToolError, check=has_outcome("denied")):
        AllowedPaths([tmp_path]).open(str(tmp_path / "one.txt"))
