"""Run PostgreSQL for tests: Debian's binaries, in a temporary folder, on a unix socket, not as root.

    with postgres.server() as server:
        url = server.create_database()

fsync is off: tests kill processes, never the machine, so the page cache of the kernel survives. Raises
`debian.NotInstalled` where there is none; in CI the binaries are installed first. The folder is removed at the end.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from support import debian

BINARIES = Path("/usr/lib/postgresql")
VERSION = "15"
SECONDS = 120.0
SUPERUSER = "portico"

CLEAR = """
set lock_timeout = '5s'; set session_replication_role = replica;
do $$ declare one record; begin
    for one in select tablename from pg_tables where schemaname = 'public' and tablename <> 'portico_migration' loop
        execute format('delete from public.%I', one.tablename);
    end loop;
    perform setval(format('public.%I', sequencename)::regclass, start_value, false) from pg_sequences
        where schemaname = 'public';
end $$;
"""
LOOK = """
select md5(string_agg(part, ' ' order by part)) from (
    select concat_ws(' ', relname, relkind, attnum, attname, atttypid, atttypmod, attnotnull) as part from pg_class
        left join pg_attribute on attrelid = pg_class.oid and attnum > 0 where relnamespace = 'public'::regnamespace
    union all select concat_ws(' ', conname, pg_get_constraintdef(oid)) from pg_constraint
        where connamespace = 'public'::regnamespace
    union all select concat_ws(' ', indexname, indexdef) from pg_indexes where schemaname = 'public'
    union all select concat_ws(' ', tgname, tgrelid::regclass, tgenabled) from pg_trigger where not tgisinternal
    union all select concat_ws(' ', proname, prosrc) from pg_proc where pronamespace = 'public'::regnamespace
    union all select concat_ws(' ', history, number, checksum) from public.portico_migration
) as parts;
"""


class Server:
    """A running server."""

    def __init__(self, binaries: Path, folder: Path, user: str | None) -> None:
        self._binaries = binaries
        self.folder = folder
        self.data = folder / "data"
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self._emptied: list[str] = []
        # By migration history: the fingerprint of an empty database, and unused databases.
        self._shapes: dict[str, str] = {}
        self._spare: dict[str, list[str]] = {}

    def url(self, database: str) -> str:
        return f"postgresql://{SUPERUSER}@/{database}?host={quote(str(self.folder), safe='')}"

    def create_database(self) -> str:
        """Return the URL of an empty database."""
        if self._emptied:
            return self._emptied.pop()
        self._databases += 1
        name = f"test_{os.getpid()}_{self._databases}"
        self.sql(f"create database {name}")
        return self.url(name)

    def release(self, url: str) -> None:
        """Empty a database for reuse: creating and dropping one takes long, because it consists of a thousand files."""
        self.sql("set lock_timeout = '5s'; drop schema public cascade; create schema public", _name(url))
        self._emptied.append(url)

    @contextmanager
    def migrated(self, history: str, migrate: Callable[[str], None]) -> Iterator[str]:
        """Yield the URL of a database with migrated, empty tables. Reused if its schema is unchanged: migrating takes
        longer than most tests."""
        spare = self._spare.setdefault(history, [])
        if not spare:
            spare.append(self.create_database())
            migrate(spare[-1])
            self._shapes.setdefault(history, self._cleared(spare[-1]))
        url = spare.pop()
        yield url
        if self._cleared(url) == self._shapes[history]:
            spare.append(url)
        else:
            self.release(url)

    def _cleared(self, url: str) -> str:
        """Delete all rows except those of the migration history, and return a fingerprint of the schema."""
        return self.sql(CLEAR + LOOK, _name(url))

    def sql(self, text: str, database: str = "postgres") -> str:
        """Run SQL and return the first value of the last statement, as text."""
        # Not at the top: the tests of the SDK also run where no extra is installed.
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(text)
            while cursor.nextset():
                pass
            response = cursor.fetchone() if cursor.description else None
            return "" if response is None else str(response[0])

    def initialise(self) -> None:
        how = ["-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--locale=C"]
        # Waiting for the disk would be most of the time.
        self._must([*self._command("initdb"), "--no-sync", "-D", self.data, *how])

    def start(self) -> None:
        options = [
            "-c",
            "listen_addresses=",
            "-c",
            "max_connections=200",
            "-c",
            "fsync=off",
            "-c",
            "full_page_writes=off",
            "-c",
            f"unix_socket_directories={self.folder}",
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command("postgres"), "-D", self.data, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                user=self._user,
                group=self._user,
                extra_groups=[] if self._user else None,
                start_new_session=True,
            )
        self._wait_until_ready()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server. SIGINT is a fast shutdown, SIGQUIT crashes all its processes."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(SECONDS)
            self._process = None

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        until = time.monotonic() + SECONDS
        ready = [*map(str, self._command("pg_isready")), "-q", "-h", str(self.folder), "-d", "postgres"]
        while subprocess.run(ready, check=False).returncode != 0:
            if self._process.poll() is not None or time.monotonic() > until:
                self.stop(signal.SIGKILL)
                raise RuntimeError(f"PostgreSQL did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def _command(self, name: str) -> list[Path]:
        return [self._binaries / name]

    def _must(self, command: list[str | Path]) -> str:
        done = subprocess.run(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
            cwd=self.folder,
            user=self._user,
            group=self._user,
            extra_groups=[] if self._user else None,
        )
        output = done.stdout.decode(errors="replace")
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} ended with {done.returncode}: {output}")
        return output


def _name(url: str) -> str:
    return url.partition("@/")[2].partition("?")[0]


@contextmanager
def server() -> Iterator[Server]:
    """Run a new server."""
    binaries = find()
    # A short path: addresses of unix sockets are limited to about a hundred characters.
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    user = None
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        user = "postgres"
        shutil.chown(folder, user, user)
        folder.chmod(0o755)
    result = Server(binaries, folder, user)
    try:
        result.initialise()
        result.start()
        yield result
    finally:
        result.stop(signal.SIGQUIT)
        shutil.rmtree(folder, ignore_errors=True)


def find() -> Path:
    """Return the folder of the binaries. In CI they are installed first."""
    folder = BINARIES / VERSION / "bin"
    if not (folder / "postgres").exists():
        debian.install(f"postgresql-{VERSION}")
    return folder
