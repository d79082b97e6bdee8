"""Privacy: names in a log are replaced in every result."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from portico_services.system.access_levels import resolve_levels, resolve_privacy
from portico_services.system.anonymizer import Anonymizer, is_well_known
from portico_services.system.logs import evtx
from portico_services.system.logs.entries import LogQuery
from portico_services.system.logs.evtx import EvtxLog
from portico_services.system.machine import Machine
from portico_services.system.path_access import AllowedPaths

KEY = b"k" * 32


def hidden(value: Any, level: Any = "anonymize", **options: Any) -> Any:
    return Anonymizer(level, KEY, **options).anonymize(value)


def test_anonymizer_learns_names_from_fields() -> None:
    result = hidden({"TargetUserName": "Alice", "message": "alice logged in; ALICE's session, not malice"})
    token = result["TargetUserName"]
    assert re.fullmatch(r"user-[0-9a-f]{12}", token)
    assert result["message"] == f"{token} logged in; {token}'s session, not malice"


def test_anonymization_token_depends_on_the_key() -> None:
    item = hidden({"user": "alice"})["user"]
    assert hidden({"SubjectUserName": "ALICE"})["SubjectUserName"] == item
    assert Anonymizer("anonymize", b"x" * 32).anonymize({"user": "alice"})["user"] != item


@pytest.mark.parametrize(
    "text, gone",
    [
        ("Failed password for invalid user webmaster from 173.234.31.186 port 38926", ["webmaster", "173.234.31.186"]),
        ("authentication failure; rhost=220-135-151-1.hinet-ip.hinet.net user=bob", ["hinet-ip.hinet.net", "bob"]),
        ("session opened for user cyrus by (uid=0)", ["cyrus"]),
        ("Accepted publickey for carol from 2001:db8::17 port 1", ["carol", "2001:db8::17"]),
        ("connection from 1.2.3.4 (host.example.net) at", ["1.2.3.4", "host.example.net"]),
        ("mail to dave.smith@example.org bounced", ["dave", "example.org"]),
        ("read /home/erin/notes.txt and C:\\Users\\frank\\AppData", ["erin", "frank"]),
        ("token of S-1-5-21-1004336348-1177238915-682003330-512 refused", ["1004336348"]),
        ("Jun 14 15:16:01 combo sshd[19939]: hello", ["combo"]),
    ],
)
def test_names_in_free_text_are_found(text: str, gone: list[str]) -> None:
    result = hidden(text)
    assert not [name for name in gone if name in result]


@pytest.mark.parametrize(
    "text",
    [
        "systemd[1]: Started getty@tty1.service",
        "version 1.2.3.4.5 of 10:20:30",
        "user authentication failure",
        "user NOT known to the module",
        "logged in as root from 127.0.0.1 (localhost), SID S-1-5-18",
        "00:1a:2b:3c:4d:5e is up",
        "C++::method and a::b",
    ],
)
def test_text_without_personal_data_is_unchanged(text: str) -> None:
    assert hidden(text) == text


def test_under_strict_nothing_stays() -> None:
    text = (
        "root from 127.0.0.1, S-1-5-18, 00:1a:2b:3c:4d:5e, {12345678-1234-1234-1234-123456789abc}, https://x.example/y"
    )
    output = hidden({"user": "root", "message": text}, "strict")["message"]
    for name in ("root", "127.0.0.1", "S-1-5-18", "00:1a", "123456789abc", "x.example"):
        assert name not in output


def test_off_changes_nothing() -> None:
    assert hidden({"user": "alice"}, "off") == {"user": "alice"}


@pytest.mark.parametrize(
    "field, value, gone",
    [
        ("User", "CONTOSO\\alice", ["CONTOSO", "alice"]),
        ("UserPrincipalName", "alice@contoso.com", ["alice", "contoso"]),
        ("Computer", "pc7.contoso.com", ["pc7", "contoso"]),
        ("SubjectUserName", "PC7$", ["PC7"]),
        ("WorkstationName", "\\\\PC7", ["PC7"]),
        ("IpAddress", "::ffff:10.0.0.7", ["10.0.0.7"]),
        ("_HOSTNAME", "pc7", ["pc7"]),
    ],
)
def test_fields_with_several_names(field: str, value: str, gone: list[str]) -> None:
    result = msgspec.json.encode(hidden({field: value, "message": f"about {value} and {' '.join(gone)}"})).decode()
    assert not [name for name in gone if name in result]


def test_names_learned_from_a_page_do_not_apply_to_the_next() -> None:
    """Or whoever can fail to log in as `error` would take that word from everybody."""
    anonymizer = Anonymizer("anonymize", KEY)
    assert "error" not in anonymizer.anonymize({"TargetUserName": "error", "message": "an error"})["message"]
    assert anonymizer.anonymize({"level": "ERROR", "message": "an error"}) == {"level": "ERROR", "message": "an error"}


def test_own_fields_are_not_anonymized() -> None:
    error = hidden({"user": "error", "level": "ERROR", "nextCursor": "error", "logName": "error", "timestamp": "error"})
    assert error["level"] == "ERROR"
    assert error["nextCursor"] == error["logName"] == error["timestamp"] == "error"


def test_names_of_this_machine_are_always_known() -> None:
    assert "bertha" not in hidden("bertha did it on maschine", known_names=[("user", "bertha"), ("host", "maschine")])


def test_anonymization_token_is_resolved_in_arguments() -> None:
    anonymizer = Anonymizer("anonymize", KEY)
    output = anonymizer.anonymize({"path": "/home/alice/notes.txt"})["path"]
    assert "alice" not in output
    assert anonymizer.resolve_token(output)[0] == "/home/alice/notes.txt"
    assert anonymizer.resolve_token("user-000000000000")[0] == "user-000000000000"


def test_token_is_not_hidden_again() -> None:
    anonymizer = Anonymizer("anonymize", KEY)
    result = anonymizer.anonymize({"user": "alice"})
    assert anonymizer.anonymize(result) == result


@pytest.mark.parametrize("text", ["a@" * 50_000, "1." * 50_000, ":" * 50_000, "S-1" + "-1" * 50_000, "user=" * 20_000])
@pytest.mark.parametrize("level", ["anonymize", "strict"])
def test_text_made_to_be_slow_is_not(text: str, level: str) -> None:
    assert hidden(text, level) is not None


# The corpus


@pytest.fixture
def _children() -> Iterator[None]:
    yield
    evtx.close_children()


def named(event: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Who is named in the structured fields of an event, told independently of the code that hides it."""
    if isinstance(event, dict):
        for name, value in event.items():
            yield from named(value, field if name.startswith("#") else name)
    elif isinstance(event, list):
        for value in event:
            yield from named(value, field)
    elif isinstance(event, str):
        if re.fullmatch(r"S-1-[\d-]+", event):
            yield "sid", event
        elif field in ("Computer", "WorkstationName", "SourceHostname", "DestinationHostname"):
            yield "host", event.strip("\\")
        elif field.endswith("UserName") and "\\" not in event:
            yield "user", event.removesuffix("$")
        elif field == "User" and "\\" in event:
            yield "user", event.partition("\\")[2]
        elif field in ("IpAddress", "SourceIp", "DestinationIp", "ClientAddress"):
            yield "address", event


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts_in(item)


@pytest.mark.parametrize("level", ["anonymize", "strict"])
@pytest.mark.usefixtures("_children")
def test_no_name_of_the_corpus_is_disclosed(evtx_files: list[Path], level: str, tmp_path: Path) -> None:
    pytest.importorskip("evtx")
    logs = {path.stem: path for path in evtx_files}
    machine = Machine(logs=logs, platform_logs=False, access_levels=resolve_levels({}), privacy=resolve_privacy(level))
    checked = 0
    for path in evtx_files:
        entries = EvtxLog(path.stem, "", AllowedPaths([path]), str(path)).scan_newest_first(LogQuery(), None, [])
        names = {(kind, name) for entry in entries if entry for kind, name in named(entry.fields) if len(name) > 1}
        names = {pair for pair in names if pair[1] not in ("-", "::") and not pair[1].startswith("%%")}
        if level == "anonymize":
            names = {(kind, name) for kind, name in names if not is_well_known(name)}
        result = bytearray()
        cursor = None
        while True:
            page = machine.query(path.stem, LogQuery(), 1000, 0, cursor)
            texts = [[entry.message, entry.computer] for entry in page.entries]
            result += msgspec.json.encode(texts)
            for entry in page.entries[::200]:
                # The names of members are those of the format: one of them is "System".
                result += msgspec.json.encode(list(texts_in(machine.entry(path.stem, entry.id).fields)))
            cursor = page.next_cursor
            if cursor is None:
                break
        said = result.decode().casefold().replace("\\\\", "\\")
        for kind, name in names:
            folded = name.casefold()
            # First whether it is there at all, which is quick: most are not.
            appears = folded in said and re.search(rf"(?<![\w-]){re.escape(folded)}(?![\w-])", said)
            assert not appears, (path.name, kind, name)
        checked += len(names)
    assert checked > 50
    machine.close()


# The registry, and versions


def registry(privacy: str = "anonymize") -> Machine:
    return Machine(access_levels=resolve_levels({"registry": "read-write"}), privacy=privacy, platform_logs=False)


@pytest.mark.parametrize(
    "name",
    ["DisplayName", "Owner", "User", "UserName", "Host", "Server", "ServerName", "Domain", "PrincipalName", "Mail"],
)
def test_registry_value_is_read_as_it_was_written(name: str) -> None:
    machine = registry()
    key = r"HKCU\Software\P"
    for text in ("Printer in the hall", "Internet", "Computer", "0x00000001", r"@%systemroot%\system32\afd.sys,-1000"):
        machine.write(key, name, text, None, dry_run=False)
        machine.write(key, "Description", f"The {text}", None, dry_run=False)
        assert machine.value(key, name, 0, 1000).value == text
        values = {value.name: value.value for value in machine.key(key).values}
        assert values == {name: text, "Description": f"The {text}"}
    machine.close()


@pytest.mark.parametrize(
    ("key", "name", "text"),
    [
        (r"HKLM\SYSTEM\ControlSet001\Control\ComputerName\ComputerName", "ComputerName", "PLUTO7"),
        (r"HKLM\SYSTEM\CurrentControlSet\Services\Tcpip\Parameters", "NV Hostname", "pluto7"),
        (r"HKLM\SOFTWARE\Microsoft\Windows NT\CurrentVersion\Winlogon", "DefaultUserName", "adalbert"),
        (r"HKLM\SOFTWARE\Microsoft\Windows NT\CurrentVersion", "RegisteredOwner", "Adalbert Stifter"),
        (r"HKCU\Volatile Environment", "USERNAME", "adalbert"),
        (r"HKCU\Software\SimonTatham\PuTTY\Sessions\box", "HostName", "box.example.net"),
        (r"HKCU\Software\P", "Folder", r"C:\Users\adalbert\Desktop"),
        (r"HKCU\Software\P", "Server", "203.0.113.77"),
        (r"HKCU\Software\P", "Version", "seen from 203.0.113.77"),
    ],
)
def test_names_in_the_registry_are_hidden_where_windows_has_them(key: str, name: str, text: str) -> None:
    machine = registry()
    machine.write(key, name, text, None, dry_run=False)
    for value in (machine.value(key, name, 0, 1000).value, machine.key(key).values[0].value):
        assert re.search(r"\b(?:user|host|address)-[0-9a-f]{12}\b", value)
        assert "adalbert" not in value.casefold() and "pluto7" not in value.casefold() and "203.0" not in value
    machine.close()


@pytest.mark.parametrize(
    "text",
    [
        "Definition Update (Definition 1.249.252.0)",
        "upgraded from version 4.8.1.12 to 4.8.2.3",
        "System.Web, Version=4.0.0.0, Culture=neutral",
        "Windows Workflow Foundation 3.0.0.0",
        "https://example.org/updates?to=5.19.6.0",
        "ProductVersion=10.1.2.3",
        "extension 2.5.29.15",
        "RA6=fe80::/64",
        "Queue=1::0+-1",
    ],
)
def test_versions_are_not_addresses(text: str) -> None:
    assert hidden({"message": text})["message"] == text


@pytest.mark.parametrize(
    "text",
    [
        "DHCPRELEASE of 10.1.2.3",
        "Bad protocol version identification from 203.0.113.9",
        "connection from 10.1.2.0 port 5",
        "route to 10.1.2.0/24",
        "version 1.2.3.4, client 10.1.2.3",
        "fe80::1ff:fe23:4567:890a",
        "::ffff:203.0.113.9",
    ],
)
def test_addresses_are_still_hidden(text: str) -> None:
    assert "address-" in hidden({"message": text})["message"]


def test_under_strict_every_doubtful_number_is_an_address() -> None:
    strict = Anonymizer("strict", b"k" * 32)
    assert "address-" in strict.anonymize({"message": "version 1.249.252.0"})["message"]
