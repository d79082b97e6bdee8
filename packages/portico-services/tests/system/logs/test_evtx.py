"""Windows event log files: records match the reference package, and a corrupt chunk affects only itself."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from portico_services.system.logs import evtx as reader
from portico_services.system.logs.discovery import DirectoryLog
from portico_services.system.logs.entries import ERROR, INFORMATION, LogEntry, LogQuery, format_iso
from portico_services.system.logs.evtx import CHUNK_BYTES, HEADER_BYTES, EvtxLog, entry_from_event
from portico_services.system.path_access import AllowedPaths

evtx = pytest.importorskip("evtx")


@pytest.fixture(autouse=True, scope="module")
def _children() -> Iterator[None]:
    yield
    reader.close_children()


def theirs(path: Path) -> list[dict[str, Any]]:
    """All records that the package can read, oldest first."""
    results = []
    reading = evtx.PyEvtxParser(str(path), number_of_threads=1).records_json()
    for _ in range(100_000):
        try:
            results.append(next(reading))
        except StopIteration:
            break
        except RuntimeError:
            continue
    return results


def log_of(path: Path) -> EvtxLog:
    return EvtxLog(path.stem, "", AllowedPaths([path]), str(path))


def read(log: Any, problems: list[str] | None = None) -> list[LogEntry]:
    return [entry for entry in log.scan_newest_first(LogQuery(), None, [] if problems is None else problems) if entry]


def test_corpus_records_match_the_reference_package(evtx_files: list[Path]) -> None:
    assert len(evtx_files) == 11
    for path in evtx_files:
        expected = sorted(theirs(path), key=lambda record: record["event_record_id"])
        message = read(log_of(path))[::-1]
        assert len(message) == len(expected), path.name
        for entry, record in zip(message, expected, strict=True):
            event = json.loads(record["data"])["Event"]
            assert entry.id == record["event_record_id"]
            assert entry.fields == event
            assert entry.computer == event["System"]["Computer"]
            created = (event["System"]["TimeCreated"] or {}).get("#attributes", {}).get("SystemTime")
            assert format_iso(entry.time)[:19] == (created or record["timestamp"])[:19]


def test_damage_is_reported(evtx_files: list[Path]) -> None:
    problems: list[str] = []
    [path] = [path for path in evtx_files if path.name == "sample_with_a_bad_chunk_magic.evtx"]
    assert read(log_of(path), problems)
    assert len(problems) == 2


def test_header_of_a_file_is_not_needed(evtx_files: list[Path], tmp_path: Path) -> None:
    [path] = [path for path in evtx_files if path.name == "security.evtx"]
    headless = tmp_path / "headless.evtx"
    headless.write_bytes(bytes(HEADER_BYTES) + path.read_bytes()[HEADER_BYTES:])
    assert [entry.id for entry in read(log_of(headless))] == [entry.id for entry in read(log_of(path))]


def test_log_that_has_begun_again_at_its_start_is_in_order(evtx_files: list[Path], tmp_path: Path) -> None:
    [path] = [path for path in evtx_files if path.name == "security.evtx"]
    data = path.read_bytes()
    chunks = [data[at : at + CHUNK_BYTES] for at in range(HEADER_BYTES, len(data), CHUNK_BYTES)]
    turned = tmp_path / "turned.evtx"
    turned.write_bytes(data[:HEADER_BYTES] + b"".join(chunks[10:] + chunks[:10]))
    assert [entry.id for entry in read(log_of(turned))] == [entry.id for entry in read(log_of(path))]


def test_pages_contain_every_entry_once(evtx_files: list[Path]) -> None:
    [path] = [path for path in evtx_files if path.name == "system.evtx"]
    log = log_of(path)
    entries = read(log)
    position, result = None, []
    while True:
        page = []
        for entry in log.scan_newest_first(LogQuery(), position, []):
            if entry is not None:
                page.append(entry)
                if len(page) == 400:
                    break
        result += [entry.id for entry in page]
        if len(page) < 400:
            break
        position = json.loads(json.dumps(page[-1].position))
    assert result == [entry.id for entry in entries]
    again = log.entry(entries[77].id)
    assert again is not None
    assert again.fields == entries[77].fields
    assert log.entry(10**9) is None


def test_ids_of_several_files_in_a_folder_are_different(evtx_files: list[Path], tmp_path: Path) -> None:
    for path in evtx_files:
        if path.stat().st_size < 100_000:
            shutil.copy(path, tmp_path / path.name)
    log = DirectoryLog("test", "", AllowedPaths([tmp_path]), str(tmp_path))
    entries = read(log)
    assert len({entry.id for entry in entries}) == len(entries) > 10
    for entry in entries:
        again = log.entry(entry.id)
        assert again is not None
        assert again.fields == entry.fields


def test_endless_chunk_is_abandoned(evtx_files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child that reads is stopped, and another reads the rest."""
    child = tmp_path / "child.py"
    child.write_text(
        "import sys\nsys.path.insert(0, sys.argv[0])\n"
        "if sys.stdin.buffer.read(4):\n    while True: sys.stdin.buffer.read(1)\n"
    )
    reader.close_children()
    monkeypatch.setattr(reader, "CHILD_TIMEOUT_SECONDS", 0.2)
    with monkeypatch.context() as patch:
        patch.setattr(reader, "_CHILD", str(child))
        problems: list[str] = []
        assert read(log_of(evtx_files[0]), problems) == []
        assert "not within the time limit" in problems[0]
    monkeypatch.setattr(reader, "CHILD_TIMEOUT_SECONDS", 30.0)
    assert read(log_of(evtx_files[0]))


def test_child_that_loops_forever_is_ended_by_its_limit_of_processor_time(
    evtx_files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(reader._CHILD).read_text()
    loop = "    while True:\n        pass\n"
    changed = source.replace("MAX_CPU_SECONDS_PER_CHUNK = 3", "MAX_CPU_SECONDS_PER_CHUNK = 0")
    changed = changed.replace("    results: list[dict[str, Any]] = []\n", loop)
    assert changed.count(loop) == 1
    child = tmp_path / "child.py"
    child.write_text(changed)
    reader.close_children()
    monkeypatch.setattr(reader, "CHILD_TIMEOUT_SECONDS", 300.0)
    monkeypatch.setattr(reader, "_CHILD", str(child))
    problems: list[str] = []
    assert read(log_of(evtx_files[0]), problems) == []
    assert "not within the time limit" in problems[0]


def test_missing_package_error_names_the_extra(evtx_files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    reader.close_children()
    monkeypatch.setattr(reader, "find_spec", lambda name: None)
    with pytest.raises(reader.MissingDependency, match=r"pip install 'portico-services\[system\]'"):
        read(log_of(evtx_files[0]))


def test_no_child_is_left_behind(evtx_files: list[Path]) -> None:
    read(log_of(evtx_files[0]))
    children = [item._child.pid for item in reader._idle]
    assert children
    reader.close_children()
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    "keywords, level",
    [("0x8010000000000000", ERROR), ("0x8020000000000000", INFORMATION), ("", INFORMATION), (None, INFORMATION)],
)
def test_audit_that_failed_is_an_error(keywords: object, level: int) -> None:
    event = {"System": {"Level": 0, "Keywords": keywords}}
    assert entry_from_event(event, id=1, position=1).level == level


@pytest.mark.parametrize(
    "event", [{}, {"System": None}, {"System": {"EventID": {}, "Level": "x"}}, {"EventData": [1, {}]}]
)
def test_event_of_any_shape_is_an_entry(event: dict[str, Any]) -> None:
    assert entry_from_event(event, id=1, position=1).id == 1


def test_as_many_records_are_counted_as_are_read(evtx_files: list[Path]) -> None:
    """Of damaged files, too, and the same number every time."""
    for path in evtx_files:
        log = EvtxLog("log", "", AllowedPaths([path]), str(path))
        read = [step for step in log.scan_newest_first(LogQuery(), None, []) if isinstance(step, LogEntry)]
        assert [log.count() for _ in range(3)] == [len(read)] * 3
        forwards = [step.id for step in log.oldest_first(LogQuery(), None, []) if isinstance(step, LogEntry)]
        assert forwards == [entry.id for entry in reversed(read)]
        for level in (2, 3):
            expected = [entry.id for entry in read if entry.level >= level]
            for _ in range(2):
                query = LogQuery(min_level=level)
                steps = [step for step in log.scan_newest_first(query, None, []) if isinstance(step, LogEntry)]
                assert [entry.id for entry in steps if query.matches(entry)] == expected


def test_common_events_have_a_sentence_and_parameters_a_text() -> None:
    provider = {"#attributes": {"Name": "Microsoft-Windows-Security-Auditing"}}
    event = {
        "System": {"Provider": provider, "EventID": 4624, "Level": 0},
        "EventData": {"ElevatedToken": "%%1842", "ImpersonationLevel": "%%1833", "Other": "%%65000"},
    }
    message = entry_from_event(event, id=1, position=1).message
    assert message == (
        "An account was successfully logged on. ElevatedToken=Yes; ImpersonationLevel=Impersonation; Other=%%65000"
    )
    event["System"]["EventID"] = 9999
    assert entry_from_event(event, id=1, position=1).message.startswith("ElevatedToken=Yes")


@pytest.mark.parametrize(
    "source, event_id, data, message",
    [
        (
            "Service Control Manager",
            7023,
            {"param1": "Spooler", "param2": "%%5"},
            "A service terminated with an error. param1=Spooler; param2=Access is denied.",
        ),
        (
            "Microsoft-Windows-Security-Auditing",
            4720,
            {"UserAccountControl": "%%2080 %%2082"},
            "A user account was created. UserAccountControl=Account Disabled 'Password Not Required' - Enabled",
        ),
        # Not an error code, but a part of a command line.
        ("Microsoft-Windows-Sysmon", 13, {"Details": 'a.exe "%%1"'}, 'Registry value set. Details=a.exe "%%1"'),
    ],
)
def test_parameters_are_messages_of_their_provider(
    source: str, event_id: int, data: dict[str, str], message: str
) -> None:
    event = {
        "System": {"Provider": {"#attributes": {"Name": source}}, "EventID": event_id, "Level": 0},
        "EventData": data,
    }
    assert entry_from_event(event, id=1, position=1).message == message
