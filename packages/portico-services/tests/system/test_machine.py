"""Processes, machine information, the audit log, the key, and text sanitizing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from portico.audit import verify_log_file
from portico_services.system import audit_log, machine, processes, subprocesses
from portico_services.system.audit_log import AuditLog
from portico_services.system.errors import CorruptData, MissingDependency, SystemToolError, require_package
from portico_services.system.service import System
from portico_services.system.text import escape_controls, escape_controls_deep, path_from_text, path_to_text, truncate
from support.outcomes import has_outcome


def tampered_record(file: Path) -> int | None:
    """Return the number of the first record of a log that is not as it was written, or None."""
    findings = verify_log_file(file).findings
    return findings[0].number if findings else None


def test_this_process_is_among_the_processes() -> None:
    pytest.importorskip("psutil")
    result, total = processes.list_processes(None, "pid", 100_000)
    assert total == len(result)
    [mine] = [item for item in result if item.pid == os.getpid()]
    assert mine.parent == os.getppid()
    assert mine.resident_size is not None and mine.resident_size > 10**6
    assert Path(sys.executable).name in (mine.cmdline or "")


def test_processes_are_found_by_name_and_put_in_order() -> None:
    pytest.importorskip("psutil")
    result, total = processes.list_processes("PYTEST", "memory", 1)
    assert len(result) == 1
    assert total >= 1
    sizes = [item.resident_size or 0 for item in processes.list_processes(None, "memory", 100)[0]]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    "command, shown",
    [
        ("mysql --password=hunter2 -u x", "mysql --password=*** -u x"),
        ("curl -H x --api-key abc url", "curl -H x --api-key *** url"),
        ("TOKEN=abc run", "TOKEN=*** run"),
        ("ls /tmp", "ls /tmp"),
    ],
)
def test_command_line_is_shown_without_its_secrets(command: str, shown: str) -> None:
    assert processes.redact_command_line(command) == shown


def test_machine_is_described() -> None:
    pytest.importorskip("psutil")
    machine = processes.machine_info()
    assert machine.physical_memory > 0
    assert machine.os_name
    assert machine.cpu_logical_cores == os.cpu_count()


def test_missing_package_is_reported_with_the_install_command() -> None:
    with pytest.raises(
        MissingDependency, match=r"Doing this needs .*'no_such_package'.*pip install 'portico-services\[system\]'"
    ):
        require_package("no_such_package", "Doing this")


# Audit


def test_records_are_a_chain_that_shows_every_change(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    for n in range(3):
        # As if the service had been started three times.
        trail = AuditLog(file)
        trail.add("fs_read", {"path": f"/{n}", "none": None}, "ok")
        trail.add("fs_read", {"path": "x" * 1000}, "denied")
    assert tampered_record(file) is None
    trail.close()
    lines = file.read_text().splitlines()
    records = [at for at, line in enumerate(lines) if '"record"' in line]
    assert len(records) == 6
    assert "x" * 201 not in lines[records[1]]
    for n, at in enumerate(records):
        spoilt = [*lines[:at], lines[at].replace("fs_read", "fs_stat"), *lines[at + 1 :]]
        file.write_text("\n".join(spoilt) + "\n")
        assert tampered_record(file) == n + 1
        file.write_text("\n".join([*lines[:at], *lines[at + 1 :]]) + "\n")
        assert tampered_record(file) == n + 1
    # Its end was signed, and is known beside it.
    file.write_text("\n".join(lines[: records[4]]) + "\n")
    assert tampered_record(file) is not None
    assert file.stat().st_mode & 0o077 == 0


# As an earlier version has written it.
OLDER = """\
{"number":1,"time":"2026-01-01T00:00:00Z","tool":"fs_read","outcome":"ok","arguments":{"path":"/a"},\
"previous":"0000000000000000000000000000000000000000000000000000000000000000","hash":"HASH1"}
{"number":2,"time":"2026-01-01T00:00:01Z","tool":"fs_read","outcome":"ok","arguments":{},"previous":"HASH1","hash":"HASH2"}
"""


def older() -> str:
    text = OLDER
    for number, line in enumerate(text.splitlines(), 1):
        bare = text.splitlines()[number - 1].replace(f'"hash":"HASH{number}"', '"hash":""')
        assert bare != line
        text = text.replace(f"HASH{number}", hashlib.sha256(bare.encode()).hexdigest())
    return text


def test_trail_of_an_earlier_version_continues_and_stays_verifiable(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_text(older())
    assert tampered_record(file) is None
    trail = AuditLog(file)
    trail.add("fs_read", {"path": "/b"}, "ok")
    trail.close()
    assert [part.name for part in audit_log.log_files(file)] == ["audit.jsonl.1", "audit.jsonl"]
    assert tampered_record(file) is None
    (tmp_path / "audit.jsonl.1").write_text(older().replace("/a", "/c"))
    assert tampered_record(file) == 1
    (tmp_path / "audit.jsonl.1").unlink()
    assert tampered_record(file) is not None


def test_full_audit_file_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "MAX_FILE_BYTES", 1000)
    file = tmp_path / "audit.jsonl"
    trail = AuditLog(file)
    for _ in range(20):
        trail.add("fs_read", {}, "ok")
    trail.close()
    assert [record.number for record in trail.recent] == list(range(1, 21))
    assert [part.name for part in audit_log.log_files(file)][:2] == ["audit.jsonl.1", "audit.jsonl.2"]
    assert tampered_record(file) is None
    # It goes on where it was, and nothing that was put aside is written over.
    AuditLog(file).add("fs_read", {}, "ok")
    assert tampered_record(file) is None
    (tmp_path / "audit.jsonl.1").unlink()
    first = tampered_record(file)
    assert first == 1
    kept = {part.name: part.read_bytes() for part in audit_log.log_files(file)[:-1]}
    trail = AuditLog(file)
    for _ in range(20):
        trail.add("fs_read", {}, "ok")
    assert all((tmp_path / name).read_bytes() == data for name, data in kept.items())


def test_rejected_calls_do_not_push_out_the_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "MAX_FILE_BYTES", 2000)
    file = tmp_path / "audit.jsonl"
    trail = AuditLog(file)
    trail.add("fs_read", {"path": "the evidence"}, "ok")
    for number in range(21_000):
        trail.add("fs_stat", {"path": f"/{number}" * 20}, "outside")
    assert "the evidence" in (tmp_path / "audit.jsonl.1").read_text()
    assert trail.recent[0].arguments == {"path": "the evidence"}
    # They are counted, and what is not a refusal is recorded among them.
    trail.add("fs_read", {"path": "more evidence"}, "ok")
    trail.close()
    assert [record.arguments for record in list(trail.recent)[-2:]] == [{"path": "more evidence"}, {"more": 20_900}]
    assert tampered_record(file) is None
    assert sum(part.stat().st_size for part in audit_log.log_files(file)) < 100_000


def test_write_is_rejected_without_audit_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "MAX_LOG_BYTES", 1000)
    service = System(
        allowed_paths=[tmp_path], data_dir=tmp_path / "data", platform_logs=False, file_index=False, privacy="off"
    )

    def go_on() -> None:
        for _ in range(10):
            service.registry.reg_list()

    with pytest.raises(SystemToolError, check=has_outcome("denied"), match="is full"):
        go_on()
    (tmp_path / "data" / "system-audit.jsonl").unlink()
    service.registry.reg_list()
    service._close()


# The key


def test_installation_key_is_created_once_and_private(tmp_path: Path) -> None:
    first = machine.installation_key(tmp_path / "data")
    assert machine.installation_key(tmp_path / "data") == first
    assert (tmp_path / "data" / "system.key").stat().st_mode & 0o077 == 0
    assert os.listdir(tmp_path / "data") == ["system.key"]
    assert machine.installation_key(None) != machine.installation_key(None)


def test_broken_key_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "system.key").write_bytes(b"short")
    with pytest.raises(ValueError, match="invalid key file"):
        machine.installation_key(tmp_path)


# Programs


def test_subprocess_runs_without_a_shell_and_stops_when_closed() -> None:
    lines = subprocesses.run_lines(["yes", "a; rm -rf /"])
    assert next(lines) == b"a; rm -rf /\n"
    lines.close()


def test_program_that_hangs_is_stopped() -> None:
    assert list(subprocesses.run_lines(["sleep", "1000"], seconds=0.05)) == []


def test_missing_program_is_named() -> None:
    with pytest.raises(MissingDependency, match="no-such-program"):
        next(subprocesses.run_lines(["no-such-program"]))


def test_line_without_end_is_damaged() -> None:
    with pytest.raises(CorruptData):
        list(subprocesses.run_lines(["head", "-c", "5000000", "/dev/zero"]))


# Texts


@pytest.mark.parametrize(
    "text, shown",
    [
        ("plain text\twith\nlines, ÄÖ, 世界 🙂", "plain text\twith\nlines, ÄÖ, 世界 🙂"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\rb\0c\x7f\x85", "a\\x0db\\x00c\\x7f\\x85"),
        ("evil\u202etxt.exe", "evil\\u202etxt.exe"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("half \udcff", "half \\udcff"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert escape_controls(text) == shown
    assert escape_controls_deep({text: [text]}) == {shown: [shown]}


def test_long_text_is_cut_with_a_way_to_the_rest() -> None:
    assert truncate("x" * 5, "there") == "x" * 5
    assert (
        truncate("x" * 5000, "read eventlog://System/1", 10)
        == "x" * 10 + "… [4,990 more characters: read eventlog://System/1]"
    )


@pytest.mark.skipif(os.name == "nt", reason="names as Unix has them")
def test_path_that_is_not_utf8_round_trips_as_text() -> None:
    path = os.fsdecode(b"/caf\xe9/\xff")
    assert path_to_text(path) == "/caf\\udce9/\\udcff"
    assert path_from_text(path_to_text(path)) == path


def test_service_starts_without_any_optional_package() -> None:
    """Imports of such packages wait until they are needed."""
    code = (
        "import sys\n"
        "for name in ('psutil', 'evtx', 'zstandard', 'lz4', 're2', 'win32evtlog'): sys.modules[name] = None\n"
        "from portico import Server\nfrom portico_services.system.service import System\n"
        "s = Server('x'); s.add(System()); print(len(list(s.tools)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == "14", done.stderr
