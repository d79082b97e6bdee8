"""`portico publish --dry-run`: its documents match the published schemas, whatever the server reports."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from portico.cli.main import main
from support.paths import ROOT

SCHEMAS = Path(__file__).parent / "schemas"
# By the document that they describe.
VALIDATORS = {
    document: jsonschema_rs.validator_for(json.loads((SCHEMAS / schema).read_text()), validate_formats=True)
    for document, schema in {
        "server.json": "server-2025-12-11.json",
        "manifest.json": "mcpb-manifest-0.4.json",
        "server-card.json": "server-card-v1.json",
    }.items()
}
SERVER = """\
from portico import Server
server = Server({arguments})

@server.tool
def greet(name: str) -> str:
    {docstring}
    return name

@server.prompt
def review(code: str) -> str:
    return code
"""
NAME = ["--name", "io.github.ada/weather"]
Publish = Callable[..., dict[str, Any]]


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Publish:
    monkeypatch.chdir(tmp_path)

    def run(*words: str, arguments: str = "'weather', version='1.2.3'", docstring: str = "'Greet.'") -> dict[str, Any]:
        (tmp_path / "weather.py").write_text(SERVER.format(arguments=arguments, docstring=docstring))
        target = [] if "--" in words else ["weather.py"]
        capsys.readouterr()
        main(["publish", *target, "--dry-run", "--format", "jsonl", *words])
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        for name, document in result["documents"].items():
            VALIDATORS[name].validate(document)
        return result

    return run


@pytest.fixture
def refuse(publish: Publish, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*words: str, **options: str) -> str:
        with pytest.raises(SystemExit) as end:
            publish(*words, **options)
        assert end.value.code == 2
        return capsys.readouterr().err

    return run


def test_all_documents_of_a_file(publish: Publish) -> None:
    result = publish(
        *NAME, "--package", "weather-mcp", "--description", "Weather", "--url", "https://mcp.example.com/mcp"
    )
    documents = result["documents"]
    assert documents.keys() == {"server.json", "manifest.json", "server-card.json"}
    entry = documents["server.json"]
    assert entry["name"] == "io.github.ada/weather" and entry["version"] == "1.2.3"
    assert entry["packages"] == [
        {
            "registryType": "pypi",
            "identifier": "weather-mcp",
            "version": "1.2.3",
            "runtimeHint": "uvx",
            "transport": {"type": "stdio"},
        }
    ]
    manifest = documents["manifest.json"]
    assert manifest["server"]["type"] == "uv" and manifest["server"]["entry_point"] == "weather.py"
    assert manifest["server"]["mcp_config"]["args"][-3:] == ["portico", "serve", "weather.py"]
    assert manifest["tools"] == [{"name": "greet", "description": "Greet."}] and manifest["prompts_generated"]
    (remote,) = documents["server-card.json"]["remotes"]
    assert remote["url"] == "https://mcp.example.com/mcp" and "2026-07-28" in remote["supportedProtocolVersions"]
    assert result["readme_marker"] == "<!-- mcp-name: io.github.ada/weather -->"
    assert result["oci_label"] == 'LABEL io.modelcontextprotocol.server.name="io.github.ada/weather"'


def test_defaults_come_from_pyproject(publish: Publish, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("""\
[project]
name = "weather-mcp"
version = "2.0.0"
description = "Forecasts for every city"
requires-python = ">=3.12"
license = "MIT"
authors = [{ name = "Ada" }]
[project.urls]
Homepage = "https://weather.example.com"
Repository = "https://github.com/ada/weather"
""")
    documents = publish(*NAME)["documents"]
    entry, manifest = documents["server.json"], documents["manifest.json"]
    assert entry["version"] == entry["packages"][0]["version"] == manifest["version"] == "2.0.0"
    assert entry["description"] == "Forecasts for every city"
    assert entry["repository"] == {"url": "https://github.com/ada/weather", "source": "github"}
    assert entry["websiteUrl"] == "https://weather.example.com"
    assert manifest["author"] == {"name": "Ada"} and manifest["compatibility"]["runtimes"]["python"] == ">=3.12"


@pytest.mark.parametrize(
    "arguments, docstring",
    [
        ("'weather', version='1', instructions='word ' * 100", "'Greet.'"),
        ("'weather', version='1', title='T' * 300, instructions='Line one.\\nLine two.\\x07'", "'x' * 1000"),
        ("'wéather ☂', version='1.0.0+build', instructions='☂' * 300", "None"),
    ],
)
def test_documents_of_unusual_servers_are_valid(publish: Publish, arguments: str, docstring: str) -> None:
    publish(*NAME, "--package", "weather", arguments=arguments, docstring=docstring)


def test_secrets_and_images(publish: Publish) -> None:
    words = [
        "--description",
        "Weather",
        "--image",
        "ghcr.io/ada/weather:1.2.3",
        "--secret",
        "API_KEY",
        "--secret",
        "api_key",
    ]
    documents = publish(*NAME, *words)["documents"]
    (package,) = documents["server.json"]["packages"]
    assert package["registryType"] == "oci" and "version" not in package
    assert [item["name"] for item in package["environmentVariables"]] == ["API_KEY", "api_key"]
    manifest = documents["manifest.json"]
    assert manifest["server"]["mcp_config"]["env"]["API_KEY"] == "${user_config.API_KEY}"
    assert all(item["sensitive"] for item in manifest["user_config"].values()) and len(manifest["user_config"]) == 2


def test_output_writes_the_documents(publish: Publish, tmp_path: Path) -> None:
    result = publish(*NAME, "--package", "weather", "--description", "Weather", "--output", "published")
    written = {path.name: json.loads(path.read_text()) for path in (tmp_path / "published").iterdir()}
    assert written == result["documents"]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--name", "weather"], "--name must have the form NAMESPACE/NAME"),
        (["--name", "a/b/c"], "--name must have the form NAMESPACE/NAME"),
        ([*NAME], "expected a way to run the server"),
        ([*NAME, "--package", "a b"], "--package must be the name of a Python package"),
        ([*NAME, "--package", "w", "--version", ">=1.2"], "version must be one version"),
        ([*NAME, "--package", "w", "--version", "latest"], "version must be one version"),
        ([*NAME, "--package", "w", "--description", "x" * 101], "--description must have 1 to 100 characters, got 101"),
        ([*NAME, "--image", "ghcr.io/ada/weather"], "--image must have a version tag"),
        ([*NAME, "--image", "ghcr.io/ada/weather:latest"], "--image must have a version tag"),
        ([*NAME, "--url", "ftp://example.com"], "--url must be an http or https URL"),
        ([*NAME, "--url", "https://me:secret@example.com/mcp"], "--url must be an http or https URL without"),
        ([*NAME, "--package", "w", "--repository", "git@example.com:x"], "--repository must be an http or https URL"),
        ([*NAME, "--package", "w", "--secret", "A=1"], "--secret must be the name of an environment variable"),
        ([*NAME, "--package", "w", "--entry-point", "../x.py"], "must be a Python file inside the project"),
        ([*NAME, "--package", "w", "--project", "nowhere"], "nowhere"),
        ([*NAME, "--packge", "w"], "did you mean --package?"),
    ],
)
def test_invalid_options_are_rejected(refuse: Callable[..., str], words: list[str], message: str) -> None:
    described = [] if "--description" in words else ["--description", "Weather"]
    assert message in refuse(*words, *described)


def test_server_without_version_or_description_is_rejected(refuse: Callable[..., str]) -> None:
    assert "the server reports no version: add --version" in refuse(*NAME, "--package", "w", arguments="'weather'")
    assert "the server has no description: add --description" in refuse(*NAME, "--package", "w")


def test_nothing_is_uploaded_without_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["publish", str(tmp_path / "weather.py"), *NAME])
    assert end.value.code == 2
    assert "portico publish uploads nothing: add --dry-run" in capsys.readouterr().err


def test_command_of_the_how_to_page_runs(publish: Publish) -> None:
    page = (ROOT / "docs" / "how-to" / "publish-a-server.md").read_text()
    (block,) = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    _, _, target, *words = shlex.split(block.replace("\\\n", " "))
    assert target == "weather.py"
    words.remove("--dry-run")
    assert publish(*words)["documents"]["server.json"]["packages"]
