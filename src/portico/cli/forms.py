"""What can be typed: a parser for each command. Nothing heavy is imported here, because TAB reads it too."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from portico.wire.revisions import REVISIONS

KINDS = ("tools", "resources", "templates", "prompts")
OUTPUTS = ("table", "text", "json")
SHELLS = ("bash", "zsh", "fish")
CLIENTS = ("claude-desktop", "claude-code", "cursor", "vscode")
ERRANDS = ("list", "show", "cancel", "retry")
PROFILE_ERRANDS = ("list", "show")
CLAUSES = ("render", "lint", "diff", "codegen", "lock", "check")
STATUSES = ("queued", "running", "waiting", "completed", "failed", "cancelled")
CONCURRENCY = 16

TARGET = """\
A TARGET is
  https://host/mcp            a server over HTTP
  path/to/file.py[:object]    a Server in a file, run inside this command
  module:object               the same, by the name of a module
  path/to/mcp.json:name       an entry of a configuration file
  'command arg …'             a server to start; or, at the end of the line: -- command arg …
"""
STATUS = "Exit status: 0; 1 when the server refuses; 2 for a mistake on this line; 3 when the server cannot be reached."


class Parser(argparse.ArgumentParser):
    """argparse, speaking as `portico` does."""

    def __init__(self, command: str, usage: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"portico {command}".rstrip(),
            usage=usage,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.flags: list[argparse.Action] = []

    def flag(self, *names: str, group: Any = None, **options: Any) -> None:
        self.flags.append((group or self).add_argument(*names, **options))

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"portico: {message}\n")


# The commands that talk to a server


def parse(form: Callable[[bool], Parser], words: list[str]) -> argparse.Namespace:
    """What stands behind `--` is a command, in place of a TARGET. Options may stand between the other words."""
    command: list[str] | None = None
    if "--" in words:
        at = words.index("--")
        words, command = words[:at], words[at + 1 :]
    parser = form(command is None)
    if command == []:
        parser.error("a command is expected behind --")
    arguments = parser.parse_intermixed_args(words)
    for word in (getattr(arguments, name, "") for name in ("tool", "uri", "name")):
        if not is_text(word):
            parser.error(f"{word!r} is not text in UTF-8")
    if command is not None:
        arguments.target = command
    return arguments


def is_text(word: str) -> bool:
    """What a shell hands over may be any bytes; those that are no text arrive as halves of characters."""
    return not any("\ud800" <= char <= "\udfff" for char in word)


def list_form(with_target: bool = True) -> Parser:
    parser = _asking("list", f"{'|'.join(KINDS)} TARGET", f"{'|'.join(KINDS)} -- COMMAND …", "List what a server has.")
    parser.add_argument("kind", choices=KINDS, metavar="|".join(KINDS))
    _add_target(parser, with_target)
    _add_output(parser)
    return parser


def call_form(with_target: bool = True) -> Parser:
    parser = _asking(
        "call",
        "TARGET TOOL [key=value …]",
        "TOOL [key=value …] -- COMMAND …",
        "Call a tool.\n\n"
        "  key=value     a value, read as the tool's schema wants it\n"
        "  key=a key=b   several, for an array\n"
        "  a.b=value     inside an object\n"
        "  key=@file     what is in a file; key=- what is on standard input\n"
        "  key:=json     JSON as it is",
    )
    _add_target(parser, with_target)
    parser.add_argument("tool", metavar="TOOL")
    parser.add_argument("pairs", nargs="*", default=[], metavar="key=value")
    parser.flag("--json", metavar="JSON", dest="json_arguments", help="all arguments as JSON: '{…}', @file or -")
    _add_output(parser, short=False)
    _add_save(parser)
    return parser


def read_form(with_target: bool = True) -> Parser:
    parser = _asking("read", "TARGET URI", "URI -- COMMAND …", "Read a resource.")
    _add_target(parser, with_target)
    parser.add_argument("uri", metavar="URI")
    _add_output(parser)
    _add_save(parser)
    return parser


def prompt_form(with_target: bool = True) -> Parser:
    parser = _asking(
        "prompt",
        "TARGET NAME [key=value …]",
        "NAME [key=value …] -- COMMAND …",
        "Fill in a prompt. Its arguments are texts: key=value, key=@file, or key=- for standard input.",
    )
    _add_target(parser, with_target)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("pairs", nargs="*", default=[], metavar="key=value")
    _add_output(parser)
    _add_save(parser)
    return parser


def contracts_form(with_target: bool = True) -> Parser:
    parser = _asking(
        "contracts",
        f"{'|'.join(CLAUSES)} TARGET",
        f"{'|'.join(CLAUSES)} -- COMMAND …",
        "What the tools of a server promise.\n\n"
        "  render TARGET       write the specification of each tool, as Markdown\n"
        "  lint TARGET …       look whether specifications are complete: of a server, or in files (.md)\n"
        "  diff [OLD] TARGET   compare: with contracts.lock, or with another TARGET, a lock, a .md or a .json\n"
        "  codegen TARGET      write a typed client\n"
        "  lock TARGET         write contracts.lock: what the tools promise now\n"
        "  check TARGET        fail if that is not what they promise any more\n\n"
        "What is found ends with exit status 1.",
    )
    parser.add_argument("errand", choices=CLAUSES, metavar="|".join(CLAUSES))
    parser.add_argument("targets", nargs="*", default=[], metavar="TARGET")
    flag = parser.flag
    flag("--format", choices=["text", "json", "github"], default="text", help="of what is printed (default: text)")
    flag(
        "--tool", action="append", default=[], dest="tools", metavar="NAME", help="only this one; as often as you like"
    )
    flag("--language", choices=["python", "typescript"], default="python", help="of codegen (default: python)")
    flag("--out", metavar="FILE", help="write there: what was rendered or generated; of diff, the migration guide")
    flag("--lock", default="contracts.lock", metavar="FILE", help="the lock (default: %(default)s)")
    flag(
        "--fail-on",
        choices=["undeclared", "breaking", "minor", "patch", "never"],
        default="undeclared",
        help="which changes fail a diff (default: those that the versions do not declare)",
    )
    flag("--allow", choices=["nothing", "patch", "minor"], default="nothing", help="drift that passes a check")
    flag("--strict", action="store_true", help="warnings of lint fail, too")
    return parser


def _asking(command: str, first: str, second: str, description: str) -> Parser:
    usage = f"portico {command} {first} [options]\n       portico {command} [options] {second}"
    parser = Parser(command, usage, description, f"{TARGET}\n{STATUS}")
    group = parser.add_argument_group("how to reach the server")
    flag = parser.flag
    flag("--timeout", group=group, type=_seconds, metavar="SECONDS", help="how long an answer may take (default: 60)")
    flag("--revision", group=group, choices=REVISIONS, help="speak this one (default: the newest that both know)")
    flag("--header", group=group, action="append", default=[], metavar="'NAME: VALUE'", help="a header for HTTP")
    flag("--token", group=group, help="a bearer token for HTTP (better: in the environment, as PORTICO_CLIENT_TOKEN)")
    flag("--oauth", group=group, action="store_true", help="log in with a browser if the server wants that")
    flag("--env", group=group, action="append", default=[], metavar="NAME=VALUE", help="a variable for a command")
    flag("--cwd", group=group, metavar="DIR", help="the folder that a command starts in")
    flag("--trace", action="store_true", help="print every message, sent and received, to standard error")
    flag("--verbose", action="store_true", help="print what the server logs to standard error")
    return parser


def _add_target(parser: Parser, with_target: bool) -> None:
    if with_target:
        parser.add_argument("target", metavar="TARGET")


def _add_output(parser: Parser, *, short: bool = True) -> None:
    parser.flag("--output", choices=OUTPUTS, help="default: table on a terminal, json (one line each) elsewhere")
    if short:
        parser.flag("--json", action="store_const", const="json", dest="output", help="the same as --output json")


def _add_save(parser: Parser) -> None:
    parser.flag("--save", metavar="DIR", help="write images, sound and other binary data into files there")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"a number of seconds is expected, not {text!r}")
    return value


# The others


def install_form() -> Parser:
    parser = Parser(
        "install",
        f"portico install {'|'.join(CLIENTS)} [options] [-- SERVE …]",
        "Put `portico serve` into the configuration of a client. Shows what would change; --write changes it.",
        "What stands behind -- is given to `portico serve`: a TARGET of your own, --services, --config …\n\n"
        "The file keeps everything else that is in it, and a copy of what it was is put beside it.",
    )
    parser.add_argument("client", choices=CLIENTS)
    flag = parser.flag
    flag("--name", default="portico", help="what the client calls this server (default: %(default)s)")
    flag(
        "--scope",
        choices=["user", "project"],
        default="user",
        help="for you, or for everybody who works on the project in this folder (default: %(default)s)",
    )
    flag("--write", action="store_true", help="write it")
    flag("--remove", action="store_true", help="take it out again")
    return parser


def completion_form() -> Parser:
    parser = Parser(
        "completion",
        f"portico completion {'|'.join(SHELLS)}",
        "Print the script that completes `portico` in a shell.",
        'bash:  eval "$(portico completion bash)"              in ~/.bashrc\n'
        'zsh:   eval "$(portico completion zsh)"               in ~/.zshrc, behind compinit\n'
        "fish:  portico completion fish | source               in ~/.config/fish/config.fish\n\n"
        "Names of tools, prompts and resources are those that `portico list` and `portico call` have seen before: TAB\n"
        "starts no server and waits for no network.",
    )
    parser.add_argument("shell", choices=SHELLS)
    return parser


def work_form() -> Parser:
    parser = Parser(
        "work",
        "portico work TARGET [options]",
        "Run the tasks of a server, as `portico serve` does besides answering. Start as many as you like on one store.",
    )
    parser.add_argument("target", help="module:object or path/to/file.py:object (the object may be left out)")
    _add_store(parser)
    return parser


def jobs_form() -> Parser:
    parser = Parser(
        "jobs",
        "portico jobs list [options]\n       portico jobs show ID | cancel ID … | retry ID … [options]",
        "Look at the tasks in a store. An ID may be cut short.",
        "Exit status: 0; 1 when something could not be changed; 2 for a mistake on this line.",
    )
    parser.add_argument("errand", choices=ERRANDS)
    parser.add_argument("ids", nargs="*", default=[], metavar="ID")
    _add_store(parser, working=False)
    _add_output(parser)
    parser.flag("--status", choices=STATUSES, help="only these")
    parser.flag("--limit", type=_count, default=50, metavar="N", help="at most so many (default: %(default)s)")
    parser.flag("--watch", action="store_true", help="go on and show what changes, on a terminal")
    return parser


def _add_store(parser: Parser, *, working: bool = True, group: Any = None) -> None:
    parser.flag(
        "--store",
        group=group,
        metavar="URL",
        help="where tasks are kept: a path, sqlite:///path or postgresql://… (default: PORTICO_STORE, or a file in the"
        " data directory)",
    )
    parser.flag("--data", group=group, metavar="DIR", help="the data directory (default: PORTICO_DATA)")
    if working:
        parser.flag(
            "--concurrency",
            group=group,
            type=_count,
            default=CONCURRENCY,
            metavar="N",
            help="how many tasks run at once (default: %(default)s; 0: none)",
        )


def _count(text: str) -> int:
    if not text.isdigit() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"a number is expected, not {text!r}")
    return int(text)


def profiles_form() -> Parser:
    parser = Parser(
        "profiles",
        "portico profiles list | show NAME",
        "The profiles of `portico serve --profile NAME`: files of settings that make it look like another server.",
    )
    parser.add_argument("errand", choices=PROFILE_ERRANDS)
    parser.add_argument("name", nargs="?", metavar="NAME", help="one of them, or the path of a file of your own")
    return parser


def serve_form() -> Parser:
    usage = "portico serve [TARGET] [options]"
    parser = Parser(
        "serve", usage, "Serve a server on stdio or over HTTP: your own, or the services that come with Portico."
    )
    flag = parser.flag
    parser.add_argument(
        "target",
        nargs="?",
        help="module:object or path/to/file.py:object (the object may be left out); none: the built-in services",
    )
    flag("--transport", choices=["stdio", "http"], default="stdio", help="default: %(default)s")
    flag(
        "--lifecycle",
        choices=["auto", "strict", "lenient"],
        help="whether requests must wait for notifications/initialized (default: auto, by revision)",
    )
    flag("--max-message", type=int, metavar="BYTES", help="the longest message that is read (default: 4 MiB)")
    built_in = parser.add_argument_group("the built-in services")
    flag("--services", group=built_in, metavar="NAMES", help="which of them: names with commas between them")
    flag(
        "--profile",
        group=built_in,
        metavar="NAME",
        help="look like another server: one of `portico profiles list`, or the path of such a file",
    )
    flag("--config", group=built_in, metavar="FILE", help="their settings: a portico.toml")
    flag("--read-only", group=built_in, action="store_true", help="nothing is changed, whatever the settings say")
    _add_store(parser, group=parser.add_argument_group("what is kept"))
    http = parser.add_argument_group("over HTTP")
    flag("--host", group=http, default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    flag("--port", group=http, type=int, default=8080, help="the port (default: %(default)s; 0: any free one)")
    flag("--path", group=http, default="/mcp", help="the endpoint (default: %(default)s; / is the same)")
    flag("--allow-host", group=http, action="append", default=[], metavar="NAME", help="a name we are reached by")
    flag("--allow-origin", group=http, action="append", default=[], metavar="URL", help="an origin that pages have")
    flag("--insecure", group=http, action="store_true", help="serve other machines without a token")
    flag("--sse", group=http, action="store_true", help="also the two endpoints of 2024-11-05: /sse and /messages")
    flag("--certificate", group=http, metavar="FILE", help="a TLS certificate with its chain")
    flag("--key", group=http, metavar="FILE", help="its private key, if it is not in the same file")
    return parser
