"""Options and settings are validated against their annotations."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from portico import Client, Server, Skills, SyncClient, UsageError
from portico._options import _resolve_hint, expand_paths, matches_type
from portico.auth import ClientRegistration, OAuth
from portico.extend import serve_http
from portico.server import http
from portico.server.components.prompts import PromptOptions
from portico.server.components.resources import ResourceOptions
from portico.server.components.tools import ToolOptions
from portico.server.settings import ServeSection
from portico.transports.stdio import StdioOptions
from portico_services.contracts import Contracts
from portico_services.livepython import LivePython
from portico_services.memory import Memory
from portico_services.system import System
from portico_services.workitems import Tasks

SERVICES: dict[str, type[Any]] = {
    "memory": Memory,
    "tasks": Tasks,
    "system": System,
    "live": LivePython,
    "contracts": Contracts,
}
PATHS: dict[str, set[str]] = {
    "memory": {"store", "project_dir", "embedding_model_dir"},
    "tasks": {"store", "project_dir"},
    "system": {"allowed_paths", "logs", "hives", "deny", "data_dir"},
    "live": {"python", "readable_paths", "project_dirs", "saved_sessions_dir"},
    "contracts": set(),
}
CONSTRUCTED = [Server, Client, SyncClient, OAuth, Skills, *SERVICES.values()]
OPTIONS = [ToolOptions, ResourceOptions, PromptOptions, http.HttpServerOptions, http.AsgiAppOptions, StdioOptions]
SEVERAL = (list, tuple, set, frozenset, Sequence, Iterable, Collection)


@pytest.mark.parametrize(
    ("value", "kind", "is_fit"),
    [
        ("/tmp", Sequence[str], False),
        (b"/tmp", Iterable[str], False),
        (["/tmp"], Iterable[str | os.PathLike[str]], True),
        ([Path("/tmp")], Iterable[str | os.PathLike[str]], True),
        ([1], Iterable[str], False),
        ((), Collection[str], True),
        (iter(["a"]), Iterable[str], True),
        (iter(["a"]), Sequence[str], True),
        ({"a": "b"}, Sequence[str], False),
        (None, Sequence[str] | None, True),
        (None, Sequence[str], False),
        ("a", str | Sequence[str], True),
        (True, int, False),
        (1, bool, False),
        (1, float, True),
        ("1", int, False),
        ("blok", Literal["block", "allow"], False),
        ("block", Literal["block", "allow"], True),
        ({"a": 1}, Mapping[str, str], False),
        ({"a": "1"}, dict[str, str], True),
        ("a", Mapping[str, str], False),
        (3, Annotated[int, "so many"], True),
        (len, Callable[..., Any], True),
        (3, Callable[..., Any], False),
        (object(), Any, True),
    ],
)
def test_value_fits_its_annotation_or_does_not(value: Any, kind: Any, is_fit: bool) -> None:
    assert matches_type(value, kind) is is_fit


def several(hint: Any) -> bool:
    """Whether a list is meant, and a text is not."""
    return matches_type(["x"], hint) and not matches_type("x", hint)


def hints(kind: Any) -> dict[str, Any]:
    """The types of its options; those that only a type checker can read are Any."""
    request = inspect.unwrap(kind.__init__) if kind in CONSTRUCTED else kind
    names = vars(sys.modules[request.__module__])
    return {name: _resolve_hint(hint, names) for name, hint in request.__annotations__.items() if name != "return"}


def lists() -> Iterator[Any]:
    """Every option that is a list, with what sets it."""
    for kind in CONSTRUCTED:
        for name, hint in hints(kind).items():
            if several(hint):
                yield pytest.param(
                    lambda value, kind=kind, name=name: made(kind, {name: value}), id=f"{kind.__name__}.{name}"
                )
    for name in ("aliases", "scopes", "icons"):
        yield pytest.param(lambda value, name=name: Server("s").tool(**{name: value}), id=f"tool.{name}")
    for name in ("allowed_hosts", "allowed_origins"):
        yield pytest.param(lambda value, name=name: Server("s").http_app(**{name: value}), id=f"asgi.{name}")
        yield pytest.param(lambda value, name=name: Server("s").run("http", **{name: value}), id=f"run.{name}")
    for name in ("redirect_uris", "scopes"):
        yield pytest.param(
            lambda value, name=name: ClientRegistration(client_id="x", **{name: value}), id=f"Registration.{name}"
        )
    yield pytest.param(lambda value: Client(Server("s")).listen(uris=value), id="listen.uris")


def made(kind: type[Any], options: dict[str, Any]) -> None:
    needed: dict[Any, tuple[Any, ...]] = {
        Server: ("s",),
        Client: (Server("s"),),
        SyncClient: (Server("s"),),
        Skills: (".",),
    }
    if kind is OAuth:
        options = {"clock": float, **options}
        needed[OAuth] = ("https://example.com", None)
    kind(*needed.get(kind, ()), **options)


@pytest.mark.parametrize("set_to", list(lists()))
@pytest.mark.parametrize("text", ["/", "buy", ""])
def test_text_where_a_list_is_meant_is_rejected(set_to: Callable[[Any], Any], text: str) -> None:
    with pytest.raises(UsageError, match="expected a list"):
        set_to(text)


def test_list_of_lists_is_not_empty() -> None:
    names = {item.id for item in lists()}
    assert {
        "System.allowed_paths",
        "System.deny",
        "LivePython.readable_paths",
        "LivePython.preload",
        "OAuth.scopes",
        "tool.aliases",
    } <= names


@pytest.mark.parametrize("kind", [*CONSTRUCTED, *OPTIONS], ids=lambda kind: kind.__name__)
def test_every_annotation_can_be_read_when_it_is_needed(kind: Any) -> None:
    """One that only a type checker can read would let everything through."""
    assert {name for name, hint in hints(kind).items() if hint is Any} <= {
        "auth",
        "open_browser",
        "principal",
        "token_verifier",
        "trace",
        "ui",
    }


def test_rejection_names_the_required_option() -> None:
    with pytest.raises(
        UsageError, match=r"System: allowed_paths: expected a list, got '/srv/data' \(write \['/srv/data'\]\)"
    ):
        System(allowed_paths="/srv/data")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Memory: secrets: expected one of block, redact, allow, got 'blok'"):
        Memory(secrets="blok")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"System: unknown option 'allowed_path' \(did you mean 'allowed_paths'\?\)"):
        System(allowed_path=["/srv/data"])  # type: ignore[call-arg]


def test_serving_on_a_loop_checks_as_well() -> None:
    with pytest.raises(UsageError, match="expected a list"):
        serve_http(Server("s"), allowed_hosts="example.com").send(None)  # type: ignore[arg-type]


# A file of settings


def serve(tmp_path: Path, config: str, *words: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "portico.toml"
    file.write_text(config)
    command = [
        sys.executable,
        "-m",
        "portico",
        "serve",
        "--config",
        str(file),
        "--data",
        str(tmp_path / "data"),
        *words,
    ]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("config", "line", "said"),
    [
        (
            '[services.system]\nfile_index = false\nallowed_paths = "/tmp"',
            3,
            "allowed_paths: expected a list, got '/tmp'",
        ),
        ('[services.live]\nreadable_paths = "/srv/data"', 2, "readable_paths: expected a list, got '/srv/data'"),
        (
            '# ours\n\n[services.memory]\nsecrets = "blok"',
            4,
            "secrets: expected one of block, redact, allow, got 'blok'",
        ),
        ("[services.memory]\nfoo = 1", 2, "Memory: unknown option 'foo'"),
        ("[services.system.access_levels]\nfiles = 3", 1, "access_levels: expected"),
        ('services.system.deny = "x"', 1, "deny: expected a list, got 'x'"),
        ('[services]\nsystem = { allowed_paths = "/tmp" }', 2, "allowed_paths: expected a list, got '/tmp'"),
        ('[serve]\nmax_message_size = "much"', 2, "max_message_size"),
        ('[serve]\nservices = "memory"', 2, "services"),
        ("[services.memry]\nfoo = 1", 1, "[services] memry: unknown key (did you mean 'memory'?)"),
        ("[server]\nname = 3", 2, "name"),
        ("[serve]\nfoo = 3", 2, "foo"),
        ("x = ]", 1, "invalid TOML"),
    ],
)
def test_invalid_setting_prevents_start_and_names_the_line(tmp_path: Path, config: str, line: int, said: str) -> None:
    done = serve(tmp_path, config)
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and f"portico.toml:{line}:" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1


# Paths in a file of settings


@pytest.mark.parametrize("service", SERVICES)
def test_every_path_of_every_service_may_begin_with_home(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its annotation: a path, a list of them, a table of them."""
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("USERPROFILE", "/home/me")
    monkeypatch.setenv("SHOP", "corner")
    init = SERVICES[service].__init__
    annotations = inspect.unwrap(init).__annotations__
    paths = [name for name, kind in annotations.items() if "PathLike" in kind or "Paths" in kind]
    # Exact, so that a renamed option cannot drop out of this test unnoticed.
    assert set(paths) == PATHS[service]
    for name in paths:
        for made in (lambda text: text, lambda text: [text], lambda text: {"a": text}):
            result = expand_paths(init, {name: made("~/${SHOP}/x")})
            if matches_type(made("x"), _resolve_hint(annotations[name], inspect.unwrap(init).__globals__)):
                assert result == {name: made("/home/me/corner/x")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "/srv/${NO_SUCH_VARIABLE}/x",
            "the environment variable 'NO_SUCH_VARIABLE' in '/srv/${NO_SUCH_VARIABLE}/x' is not set",
        ),
        ("${}", "the environment variable '' in '${}' is not set"),
        ("/srv/${HOME", "missing } after ${ in '/srv/${HOME'"),
        ("~nobody-of-this-name/x", "does not exist or has no home directory"),
    ],
)
def test_unresolvable_path_is_rejected(tmp_path: Path, text: str, said: str) -> None:
    done = serve(tmp_path, f"[services.system]\nfile_index = false\nlogs = {{ shop = '{text}' }}")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and "portico.toml:3:" in done.stderr, done.stderr


def test_values_that_are_not_paths_are_not_expanded() -> None:
    values = {"privacy": "~", "access_levels": {"registry": "${X}"}, "allowed_paths": ["plain", "$HOME", "a~b"]}
    assert expand_paths(System.__init__, values) == values


def test_tool_search_and_code_mode_exclude_each_other() -> None:
    assert ServeSection(tool_search="auto").tool_exposure == "auto"
    assert ServeSection(code_mode=True).tool_exposure == "code"
    with pytest.raises(UsageError, match="set tool_search or code_mode, not both"):
        _ = ServeSection(tool_search=True, code_mode=True).tool_exposure
