"""An older release and this one on one store: during a deployment, and after a rollback.

The older one is out of the history of this repository: the last commit whose fleet has a migration less.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT
from support.worker_processes import Fleet, HttpConnection, Session

PACKAGES = ROOT / "packages" / "portico" / "src"
MIGRATIONS = PACKAGES / "portico" / "transports" / "http_server" / "workers" / "migrations"


def git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def old_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where its packages are."""
    newest = max(MIGRATIONS.glob("*.sql"))
    try:
        added = git("log", "--follow", "--diff-filter=A", "--format=%H", "--", str(newest)).decode().split()[-1]
        packed = git("archive", f"{added}^", "src")
    except (OSError, IndexError, subprocess.CalledProcessError):
        pytest.skip(f"the history of this checkout does not go back to before {newest.name}")
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    assert not (folder / "src" / "portico" / "fleet" / "migrations" / newest.name).exists()
    return folder / "src"


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
async def test_sessions_move_between_two_releases_both_ways(
    start: Any, server_file: Path, old_release: Path, tmp_path: Path, request: pytest.FixtureRequest, store: str
) -> None:
    url = str(tmp_path / "store.db") if store == "sqlite" else request.getfixturevalue("postgres_url")
    env = {"PORTICO_STORE": url, "TMPDIR": str(tmp_path)}

    async def serve(packages: Path) -> Fleet:
        """With one worker: processes without a supervisor share no file."""
        words = ["-m", "portico", "serve", server_file, "--transport", "http", "--port", "0", "--workers", "1"]
        fleet: Fleet = await start(*words, env={**env, "PYTHONPATH": str(packages)})
        return fleet

    async def ask(session: Session, fleet: Fleet) -> Any:
        line = await HttpConnection.to(fleet.port)
        try:
            return (await session.call("pid", line)).value
        finally:
            await line.close()

    async def status(session: Session, fleet: Fleet) -> int:
        line = await HttpConnection.to(fleet.port)
        try:
            return int((await session.call("pid", line)).status)
        finally:
            await line.close()

    old = await serve(old_release)
    first = await Session(old.port).begin()
    new = await serve(PACKAGES)
    second = await Session(new.port).begin()
    (of_old,), (of_new,) = old.workers(), new.workers()
    assert _origin(of_old).is_relative_to(old_release)
    assert _origin(of_new).is_relative_to(ROOT)
    if not _signs_rows(old_release):
        # It signs with a key that is in the store, whose readers could do the same: neither believes the other.
        assert [await ask(first, old), await ask(second, new)] == [of_old, of_new]
        assert [await status(first, new), await status(second, old)] == [404, 404]
        assert [await old.end(), await new.end()] == [0, 0]
        assert not [text for fleet in (old, new) for text in fleet.log if "Traceback" in text]
        return
    # Each is answered by the one that has it, whichever is asked.
    assert [await ask(first, item) for item in (old, new, old)] == [of_old] * 3
    assert [await ask(second, item) for item in (new, old, new)] == [of_new] * 3
    # The deploy: what the old one had goes on in the new one.
    assert await old.end() == 0
    assert await ask(first, new) == of_new
    # It is taken back: the old one starts with the tables of the new one, and goes on with all.
    old = await serve(old_release)
    assert await new.end() == 0
    (of_old,) = old.workers()
    assert [await ask(session, old) for session in (first, second)] == [of_old] * 2
    assert not [text for fleet in (old, new) for text in fleet.log if "Traceback" in text]


def _signs_rows(release: Path) -> bool:
    """Whether a release signs the rows of sessions with a key that is not in the store."""
    return (release / "portico" / "store" / "keys.py").exists()


def _origin(process: int) -> Path:
    """The folder that a process has its packages from."""
    variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    (result,) = [variable for variable in variables if variable.startswith(b"PYTHONPATH=")]
    said = result.decode().removeprefix("PYTHONPATH=")
    requests = [sys.executable, "-c", "import portico; print(portico.__file__)"]
    done = subprocess.run(requests, env={"PYTHONPATH": said}, capture_output=True, text=True, check=True, timeout=30)
    return Path(done.stdout.strip())
