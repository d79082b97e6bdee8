"""`portico publish --dry-run`: generate the documents with which registries and hosts list a server.

`server.json` is the entry of the MCP registry (schema 2025-12-11), `manifest.json` the manifest of an MCP bundle
(MCPB 0.4), `server-card.json` the card that a server at a URL publishes (SEP-2127). The marker in a README and the
label of an image prove that package and image belong to the entry.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from portico.cli.connect import run_with_client
from portico.cli.files import read_text, write_atomic
from portico.cli.inspect import list_or_empty
from portico.cli.output import Printer
from portico.cli.specs import parse_target_command
from portico.client.client import Client
from portico.protocol.errors import UsageError
from portico.protocol.meta import UNKNOWN_VERSION
from portico.protocol.versions import SUPPORTED_PROTOCOL_VERSIONS
from portico.settings_file import read_tables
from portico.text import one_line

SERVER_SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
CARD_SCHEMA = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
MANIFEST_VERSION = "0.4"
# Limits of the registry's schema.
MAX_NAME_CHARS = 200
MAX_TITLE_CHARS = 100
MAX_DESCRIPTION_CHARS = 100
MAX_VERSION_CHARS = 255
MAX_TOOL_DESCRIPTION_CHARS = 200
MAX_PROJECT_BYTES = 1024 * 1024
_NAME = re.compile(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+")
# The registry rejects ranges: ^1.2, ~1.2, >=1.2, 1.x, 1.*, latest.
_VERSION_RANGE = re.compile(r"[\^~<>=*]|\.x\b|\s|^latest$")
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_IMAGE = re.compile(r"[a-z0-9][a-z0-9._/:-]*:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_FILE_TARGET = re.compile(r"(.+\.py)(?::\w+)?")
# The characters of RFC 3986.
_URL = re.compile(r"https?://[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
_PLATFORMS = ("darwin", "linux", "win32")
_FORGES = {"github.com": "github", "gitlab.com": "gitlab"}


def run(argv: list[str]) -> int:
    """Run `portico publish`."""
    arguments = parse_target_command("publish", argv)
    if not arguments.dry_run:
        raise UsageError(
            "portico publish uploads nothing: add --dry-run to generate the documents, then submit server.json with "
            "the registry's mcp-publisher"
        )
    project = _read_project(arguments.project)
    return run_with_client(arguments, lambda client, printer: _publish(client, printer, arguments, project))


async def _publish(client: Client, printer: Printer, arguments: argparse.Namespace, project: Mapping[str, Any]) -> int:
    facts = await _collect_facts(client, arguments, project)
    documents: dict[str, Any] = {"server.json": _server_entry(facts, arguments, project)}
    manifest = _manifest(facts, arguments, project)
    if manifest is not None:
        documents["manifest.json"] = manifest
    documents["server-card.json"] = _server_card(facts, arguments, project)
    marker = f"<!-- mcp-name: {facts['name']} -->"
    label = f'LABEL io.modelcontextprotocol.server.name="{facts["name"]}"'
    if arguments.output is not None:
        _write(arguments.output, documents)
    if printer.is_json:
        printer.print_json({"documents": documents, "readme_marker": marker, "oci_label": label})
    else:
        for name, document in documents.items():
            printer.print_line(f"{name}:")
            printer.print_pretty_json(document)
        printer.print_line(f"README.md:   {marker}")
        printer.print_line(f"Dockerfile:  {label}")
    if manifest is None:
        printer.print_error("note: no MCPB manifest: the target is not a file; add --entry-point FILE")
    return 0


# The server


async def _collect_facts(client: Client, arguments: argparse.Namespace, project: Mapping[str, Any]) -> dict[str, Any]:
    """Return name, version, title, description and listed components, validated against the registry's limits."""
    info = client.server_info
    reported = info.version if info is not None and info.version != UNKNOWN_VERSION else None
    version = arguments.version or _text(project, "version") or reported
    if not version:
        raise UsageError("the server reports no version: add --version, or a version in pyproject.toml")
    if _VERSION_RANGE.search(version) or len(version) > MAX_VERSION_CHARS:
        raise UsageError(f"version must be one version such as 1.2.3, got {version!r}")
    title = one_line((info.title if info else None) or (info.name if info else "") or "", MAX_TITLE_CHARS)
    return {
        "name": _registry_name(arguments.name),
        "version": version,
        "title": title or arguments.name.partition("/")[2],
        "description": _description(arguments.description, project, client.instructions),
        "tools": [
            {"name": tool.name, "description": one_line(tool.description or "", MAX_TOOL_DESCRIPTION_CHARS)}
            for tool in await list_or_empty(client.list_tools)
        ],
        "has_prompts": bool(await list_or_empty(client.list_prompts)),
        "protocol_version": client.protocol_version,
    }


def _registry_name(name: str) -> str:
    if not _NAME.fullmatch(name) or not 3 <= len(name) <= MAX_NAME_CHARS:
        raise UsageError(f"--name must have the form NAMESPACE/NAME, such as io.github.ada/weather, got {name!r}")
    return name


def _description(description: str | None, project: Mapping[str, Any], instructions: str | None) -> str:
    if description is not None and not 1 <= len(description.strip()) <= MAX_DESCRIPTION_CHARS:
        raise UsageError(
            f"--description must have 1 to {MAX_DESCRIPTION_CHARS} characters, got {len(description.strip())}"
        )
    text = one_line(description or _text(project, "description") or instructions or "", MAX_DESCRIPTION_CHARS)
    if not text:
        raise UsageError("the server has no description: add --description, or a description in pyproject.toml")
    return text


# The project


def _read_project(folder: str) -> Mapping[str, Any]:
    """Return the [project] table of a folder's pyproject.toml; by default the file may be missing."""
    path = Path(folder) / "pyproject.toml"
    if folder == "." and not path.exists():
        return {}
    project = read_tables(path, read_text(str(path), MAX_PROJECT_BYTES)).get("project", {})
    return project if isinstance(project, Mapping) else {}


def _text(project: Mapping[str, Any], key: str) -> str:
    """Return a string of the project, or "" if it is missing or dynamic."""
    value = project.get(key)
    return value if isinstance(value, str) else ""


def _author(arguments: argparse.Namespace, project: Mapping[str, Any]) -> str:
    authors = project.get("authors")
    first = authors[0] if isinstance(authors, list) and authors and isinstance(authors[0], Mapping) else {}
    # The manifest requires an author; a namespace such as io.github.ada identifies one.
    return arguments.author or _text(first, "name") or _text(first, "email") or arguments.name.partition("/")[0]


def _urls(project: Mapping[str, Any]) -> dict[str, str]:
    """Return the project's URLs by normalized label, without those that are not http(s)."""
    urls = project.get("urls")
    if not isinstance(urls, Mapping):
        return {}
    return {str(label).lower(): url for label, url in urls.items() if isinstance(url, str) and _is_url(url)}


def _is_url(text: str) -> bool:
    """Return whether a text is an http or https URL that may be published: without credentials."""
    try:
        parts = urlsplit(text)
        return bool(_URL.fullmatch(text)) and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        return False


def _links(arguments: argparse.Namespace, project: Mapping[str, Any]) -> dict[str, Any]:
    """Return the repository and the website, where they are known."""
    urls = _urls(project)
    repository = arguments.repository or urls.get("repository") or urls.get("source")
    if repository and not _is_url(repository):
        raise UsageError(f"--repository must be an http or https URL without credentials, got {repository!r}")
    result: dict[str, Any] = {}
    if repository:
        host = urlsplit(repository).hostname or ""
        result["repository"] = {"url": repository, "source": _FORGES.get(host, host)}
    website = urls.get("homepage") or urls.get("documentation")
    if website:
        result["websiteUrl"] = website
    return result


# The documents


def _server_entry(facts: dict[str, Any], arguments: argparse.Namespace, project: Mapping[str, Any]) -> dict[str, Any]:
    packages = _packages(facts, arguments, project)
    remotes = [{"type": "streamable-http", "url": url} for url in _remote_urls(arguments)]
    if not packages and not remotes:
        raise UsageError("expected a way to run the server: --package, --image, --url, or a pyproject.toml with a name")
    return {
        "$schema": SERVER_SCHEMA,
        **{key: facts[key] for key in ("name", "title", "description", "version")},
        **_links(arguments, project),
        **({"packages": packages} if packages else {}),
        **({"remotes": remotes} if remotes else {}),
    }


def _packages(facts: dict[str, Any], arguments: argparse.Namespace, project: Mapping[str, Any]) -> list[dict[str, Any]]:
    variables = [{"name": name, "isRequired": True, "isSecret": True} for name in _secrets(arguments)]
    shared: dict[str, Any] = {"transport": {"type": "stdio"}}
    if variables:
        shared["environmentVariables"] = variables
    packages: list[dict[str, Any]] = []
    package = arguments.package or _text(project, "name")
    if package:
        if not _PACKAGE.fullmatch(package):
            raise UsageError(f"--package must be the name of a Python package, got {package!r}")
        run_with = {"registryType": "pypi", "identifier": package, "version": facts["version"], "runtimeHint": "uvx"}
        packages.append({**run_with, **shared})
    if arguments.image:
        # An image has its version in the tag, and the registry rejects a separate one.
        if not _IMAGE.fullmatch(arguments.image) or arguments.image.endswith(":latest"):
            raise UsageError(
                f"--image must have a version tag, such as ghcr.io/ada/weather:1.2.3, got {arguments.image!r}"
            )
        packages.append({"registryType": "oci", "identifier": arguments.image, "runtimeHint": "docker", **shared})
    return packages


def _remote_urls(arguments: argparse.Namespace) -> list[str]:
    """Return the URLs of --url, or the target if it is https: a local test server is of no use to others."""
    for url in arguments.url:
        if not _is_url(url):
            raise UsageError(f"--url must be an http or https URL without credentials, got {url!r}")
    target = arguments.target
    # A query may contain a key.
    is_public = isinstance(target, str) and target.startswith("https://") and _is_url(target) and "?" not in target
    return list(dict.fromkeys(arguments.url or ([target] if is_public else [])))


def _secrets(arguments: argparse.Namespace) -> list[str]:
    for name in arguments.secret:
        if not _VARIABLE.fullmatch(name):
            raise UsageError(f"--secret must be the name of an environment variable, got {name!r}")
    return list(dict.fromkeys(arguments.secret))


def _manifest(
    facts: dict[str, Any], arguments: argparse.Namespace, project: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the manifest of a bundle, or None if the target is not a file and no entry point is given.

    The type is `uv`: the host installs the dependencies of pyproject.toml. Other bundles would have to contain compiled
    dependencies for every platform.
    """
    target = arguments.target if isinstance(arguments.target, str) else ""
    match = _FILE_TARGET.fullmatch(target.strip())
    entry = arguments.entry_point or (os.path.relpath(match[1], arguments.project) if match else None)
    if entry is None:
        return None
    entry = entry.replace(os.sep, "/")
    if entry.startswith(("/", "../")) or not entry.endswith(".py"):
        raise UsageError(f"the entry point must be a Python file inside the project, got {entry!r}")
    server_object = target.strip()[len(match[1]) :] if match and not arguments.entry_point else ""
    secrets = _secrets(arguments)
    config: dict[str, Any] = {
        "command": "uv",
        "args": ["run", "--directory", "${__dirname}", "portico", "serve", f"{entry}{server_object}"],
    }
    if secrets:
        config["env"] = {name: f"${{user_config.{name}}}" for name in secrets}
    links = _links(arguments, project)
    manifest: dict[str, Any] = {
        "manifest_version": MANIFEST_VERSION,
        "name": facts["name"].partition("/")[2],
        "display_name": facts["title"],
        "version": facts["version"],
        "description": facts["description"],
        "author": {"name": _author(arguments, project)},
        "server": {"type": "uv", "entry_point": entry, "mcp_config": config},
        "tools": [tool if tool["description"] else {"name": tool["name"]} for tool in facts["tools"]],
        # The text of a prompt depends on its arguments, so the host asks the server.
        "prompts_generated": facts["has_prompts"],
        "compatibility": {
            "platforms": list(_PLATFORMS),
            "runtimes": {"python": _text(project, "requires-python") or ">=3.11"},
        },
    }
    if "repository" in links:
        manifest["repository"] = {"type": "git", "url": links["repository"]["url"]}
    if "websiteUrl" in links:
        manifest["homepage"] = links["websiteUrl"]
    if license_name := _text(project, "license"):
        manifest["license"] = license_name
    if secrets:
        manifest["user_config"] = {
            name: {
                "type": "string",
                "title": name,
                "description": f"Value of the environment variable {name}",
                "required": True,
                "sensitive": True,
            }
            for name in secrets
        }
    return manifest


def _server_card(facts: dict[str, Any], arguments: argparse.Namespace, project: Mapping[str, Any]) -> dict[str, Any]:
    # The versions that a Portico server supports are known; of another server, only the negotiated one.
    is_here = isinstance(arguments.target, str) and _FILE_TARGET.fullmatch(arguments.target.strip()) is not None
    versions = list(SUPPORTED_PROTOCOL_VERSIONS) if is_here else [facts["protocol_version"]]
    remotes = [
        {"type": "streamable-http", "url": url, "supportedProtocolVersions": versions}
        for url in _remote_urls(arguments)
    ]
    return {
        "$schema": CARD_SCHEMA,
        **{key: facts[key] for key in ("name", "title", "description", "version")},
        **_links(arguments, project),
        **({"remotes": remotes} if remotes else {}),
    }


def _write(folder: str, documents: dict[str, Any]) -> None:
    # Only needed here.
    import json

    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, document in documents.items():
            write_atomic(str(Path(folder) / name), json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    except OSError as failure:
        raise UsageError(f"cannot write to {folder}: {failure.strerror}") from None
