"""The commands of a client: list, call, read, prompt, inspect, publish, doctor."""

from __future__ import annotations

from portico.cli.specs.options import (
    ARGUMENT_PAIRS,
    CONNECTION,
    DEBUGGING,
    EXIT_STATUS_HELP,
    FORMAT,
    SAVE_DIR,
    STORE,
    TARGET,
    TARGET_HELP,
    client_command,
    parse_port,
    parse_seconds,
)
from portico.cli.specs.parser import CommandSpec, argument, option

KINDS = ("tools", "resources", "templates", "prompts")
ALL_KINDS = "everything"

COMMAND_SPECS: dict[str, CommandSpec] = {
    "list": client_command(
        "list",
        f"[{'|'.join(KINDS)}] TARGET",
        f"[{'|'.join(KINDS)}] -- COMMAND …",
        "List a server's tools, resources, resource templates or prompts.",
        (
            argument("kind", choices=(*KINDS, ALL_KINDS), metavar="|".join(KINDS), help="kind to list (default: all)"),
            TARGET,
        ),
        FORMAT,
        examples=("list tools http://127.0.0.1:8080/mcp", "list resources my_server.py"),
    ),
    "call": client_command(
        "call",
        "TARGET TOOL [key=value …]",
        "TOOL [key=value …] -- COMMAND …",
        "Call a tool.\n\n"
        "  key=value     a value, converted to the type in the tool's schema\n"
        "  key=a key=b   several values, for an array\n"
        "  a.b=value     a member of an object\n"
        "  key=@file     the contents of a file; key=- for standard input\n"
        "  key:=json     a JSON value",
        (TARGET, argument("tool", "tools", metavar="TOOL", help="name of the tool"), ARGUMENT_PAIRS),
        option(
            "--arguments",
            metavar="JSON",
            dest="json_arguments",
            help="arguments as a JSON object: '{…}', @file or -; key=value takes precedence",
        ),
        FORMAT,
        SAVE_DIR,
        examples=("call my_server.py greet name=Ada", "call http://127.0.0.1:8080/mcp memory_status"),
    ),
    "inspect": client_command(
        "inspect",
        "TARGET",
        "-- COMMAND …",
        "Show a server's info, protocol versions, instructions, capabilities, token cost\n"
        "and the problems of its tool definitions.",
        (TARGET,),
        FORMAT,
        examples=("inspect my_server.py", "inspect -- npx -y @modelcontextprotocol/server-everything"),
    ),
    "doctor": CommandSpec(
        "portico doctor [TARGET] [options]\n       portico doctor [options] -- COMMAND …",
        "Check the environment, the store and a server's health: Python, extras, the\n"
        "store, the port and the configuration files of clients; with a TARGET also\n"
        "whether it responds, and where its login fails. Changes nothing.",
        (argument("target", "target", nargs="?", help="server to check"),),
        {
            "": (
                option(
                    "--port", type=parse_port, metavar="PORT", help="check whether this port is free (default: 8080)"
                ),
                *STORE,
                *DEBUGGING,
                FORMAT,
            ),
            **CONNECTION,
        },
        TARGET_HELP + "\nExit status: 0 success; 1 problems found; 2 usage error.",
        examples=("doctor", "doctor https://mcp.example.com/mcp"),
    ),
    "publish": client_command(
        "publish",
        "TARGET --dry-run --name NAMESPACE/NAME",
        "--dry-run --name NAMESPACE/NAME -- COMMAND …",
        "Generate the documents that list a server in registries and hosts:\n"
        "server.json, an MCPB manifest, a server card, the README marker and the image\n"
        "label. Uploads nothing.",
        (TARGET,),
        option("--dry-run", action="store_true", help="generate the documents without publishing; required"),
        option("--name", required=True, metavar="NAMESPACE/NAME", help="registry name, such as io.github.ada/weather"),
        option("--output", metavar="DIR", help="also write the documents to this directory"),
        option(
            "--project",
            default=".",
            metavar="DIR",
            help="directory whose pyproject.toml has version, description and authors (default: the current one)",
        ),
        option("--package", metavar="NAME", help="Python package (default: the name in pyproject.toml)"),
        option("--image", metavar="IMAGE:TAG", help="container image"),
        option("--url", action="append", default=[], metavar="URL", help="public URL of the server; repeatable"),
        option(
            "--entry-point", metavar="FILE", help="file that the bundle starts (default: the TARGET, if it is a file)"
        ),
        option(
            "--secret",
            action="append",
            default=[],
            metavar="NAME",
            help="environment variable that each user has to set; repeatable",
        ),
        option("--version", metavar="VERSION", help="version (default: pyproject.toml, or what the server reports)"),
        option(
            "--description", metavar="TEXT", help="at most 100 characters (default: pyproject.toml, or instructions)"
        ),
        option("--author", metavar="NAME", help="author of the bundle (default: pyproject.toml)"),
        option("--repository", metavar="URL", help="source repository (default: pyproject.toml)"),
        FORMAT,
        examples=(
            "publish weather.py --dry-run --name io.github.ada/weather",
            "publish https://mcp.example.com/mcp --dry-run --name com.example/shop",
        ),
    ),
    "read": client_command(
        "read",
        "TARGET URI",
        "URI -- COMMAND …",
        "Read a resource.",
        (TARGET, argument("uri", "resources", metavar="URI", help="URI of the resource")),
        FORMAT,
        SAVE_DIR,
        examples=("read my_server.py config://app",),
    ),
    "prompt": client_command(
        "prompt",
        "TARGET NAME [key=value …]",
        "NAME [key=value …] -- COMMAND …",
        "Render a prompt. Its arguments are strings: key=value, key=@file, or key=- for\n"
        "standard input; key:='\"@name\"' is a JSON string, for a value that begins with @\n"
        "or is a single dash.",
        (TARGET, argument("name", "prompts", metavar="NAME", help="name of the prompt"), ARGUMENT_PAIRS),
        FORMAT,
        SAVE_DIR,
        examples=("prompt my_server.py review code=@main.py",),
    ),
    "login": CommandSpec(
        "portico login URL [options]",
        "Log in to a server with OAuth and store the token, which other commands then use.\n"
        "Opens a browser; without one, shows a code to enter on another device if the\n"
        "authorization server supports it (RFC 8628).",
        (argument("url", metavar="URL", help="URL of the server"),),
        {
            "": (
                option("--device", action="store_true", help="show a code to enter on another device"),
                option("--scope", action="append", default=[], metavar="SCOPE", help="scope to request; repeatable"),
                option("--client-id", metavar="ID", help="client id, if the server does not register clients"),
                option(
                    "--timeout",
                    type=parse_seconds,
                    default=600.0,
                    metavar="SECONDS",
                    help="time to complete the login (default: %(default)g)",
                ),
            )
        },
        EXIT_STATUS_HELP,
        examples=("login https://mcp.example.com/mcp", "login https://mcp.example.com/mcp --device"),
    ),
    "logout": CommandSpec(
        "portico logout URL",
        "Delete the stored token of a server. The token is not revoked.",
        (argument("url", metavar="URL", help="URL of the server"),),
        {},
        EXIT_STATUS_HELP,
        examples=("logout https://mcp.example.com/mcp",),
    ),
}
