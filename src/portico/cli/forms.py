"""What can be typed: one form for each command, and the parser made of it. Nothing heavy is imported here, because
completion and hooks read it too."""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any, NamedTuple, NoReturn

from portico.wire.revisions import REVISIONS

KINDS = ("tools", "resources", "templates", "prompts")
EVERYTHING = "everything"
CONTRACT_ACTIONS = ("render", "lint", "diff", "codegen", "lock", "check")
MEMORY_ACTIONS = (
    "capture", "recall", "list", "show", "edit", "delete", "restore", "sync", "export", "import", "stats",
    "model", "hook",
)  # fmt: skip
HOOKS = ("session-start", "user-prompt-submit", "post-tool-use", "pre-compact", "stop")
TASK_ACTIONS = (
    "add", "list", "show", "next", "start", "done", "fail", "reopen", "edit", "block", "unblock", "tree", "history",
    "note", "rm",
)  # fmt: skip

TARGET = """\
A TARGET is
  https://host/mcp            a server over HTTP
  path/to/file.py[:object]    a Server in a file, run inside this command
  module:object               the same, by the name of a module
  path/to/mcp.json[:name]     an entry of a configuration file; without a name all of them
  'command arg …'             a server to start; or, at the end of the line: -- command arg …
"""
STATUS = "Exit status: 0; 1 when the server refuses; 2 for a mistake on this line; 3 when the server cannot be reached."


class Parser(argparse.ArgumentParser):
    """argparse with our messages. `flags` and `completes` are for completion: the options, and what each positional
    argument is."""

    def __init__(self, command: str, usage: str, about: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"portico {command}".rstrip(),
            usage=usage,
            description=about,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.flags: list[argparse.Action] = []
        self.completes: list[Word] = []

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"portico: {message}\n")


class Word(NamedTuple):
    """A positional argument. `kind` says how it is completed: see `completion`."""

    name: str
    kind: str
    options: dict[str, Any]


class Flag(NamedTuple):
    names: tuple[str, ...]
    options: dict[str, Any]


class CommandForm(NamedTuple):
    usage: str
    about: str
    words: tuple[Word, ...]
    # By the heading that they stand under in the help.
    flags: dict[str, tuple[Flag, ...]]
    epilog: str = ""

    def parser(self, command: str, *, with_target: bool = True) -> Parser:
        parser = Parser(command, self.usage, self.about, self.epilog)
        for word in self.words:
            if with_target or word.name != "target":
                parser.add_argument(word.name, **word.options)
                parser.completes.append(word)
        for heading, flags in self.flags.items():
            group = parser.add_argument_group(heading) if heading else parser
            parser.flags += [group.add_argument(*flag.names, **flag.options) for flag in flags]
        return parser


def word(name: str, kind: str = "", **options: Any) -> Word:
    return Word(name, kind, options)


def flag(*names: str, **options: Any) -> Flag:
    return Flag(names, options)


# Reading a line


def parser_for(command: str, *, with_target: bool = True) -> Parser:
    return FORMS[command].parser(command, with_target=with_target)


def parse(command: str, words: list[str]) -> argparse.Namespace:
    """The arguments of a command that talks to a server. What stands behind `--` is a command in place of TARGET."""
    child: list[str] | None = None
    if "--" in words:
        at = words.index("--")
        words, child = words[:at], words[at + 1 :]
    parser = parser_for(command, with_target=child is None)
    if child == []:
        parser.error("a command is expected behind --")
    arguments = parser.parse_intermixed_args(words)
    check_text(parser, [getattr(arguments, name, "") for name in ("tool", "uri", "name")])
    if child is not None:
        arguments.target = child
    return arguments


def complete_serving(arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments of `serve` with what was left out: a place to listen at means HTTP."""
    places = (arguments.host, arguments.port, arguments.unix, arguments.fd, arguments.workers)
    if arguments.transport is None:
        arguments.transport = "stdio" if all(one is None for one in places) else "http"
    arguments.host = "127.0.0.1" if arguments.host is None else arguments.host
    arguments.port = 8080 if arguments.port is None else arguments.port
    return arguments


def check_text(parser: Parser, words: list[str]) -> None:
    for one in words:
        if not is_text(one):
            parser.error(f"{one!r} is not text in UTF-8")


def is_text(word: str) -> bool:
    """Whether a word is valid UTF-8. Python turns other bytes of a command line into lone surrogates."""
    return not any("\ud800" <= char <= "\udfff" for char in word)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds, not {text!r}")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"expected a number, not {text!r}")
    return int(text)


def _port(text: str) -> int:
    """0 is any that is free."""
    if not text.isdecimal() or int(text[:9]) > 65535:
        raise argparse.ArgumentTypeError(f"a port is 1 to 65535, or 0 for any that is free: not {text!r}")
    return int(text)


def _workers(text: str) -> int | str:
    return text if text == "auto" else _count(text)


def _descriptor(text: str) -> int | str:
    return text if text == "systemd" else _count(text)


# Options that several commands have

_CONNECTION = {
    "how to reach the server": (
        flag("--timeout", type=_seconds, metavar="SECONDS", help="how long an answer may take (default: 60)"),
        flag("--revision", choices=REVISIONS, help="speak this one (default: the newest that both know)"),
        flag("--header", action="append", default=[], metavar="'NAME: VALUE'", help="a header for HTTP"),
        flag("--token", help="a bearer token for HTTP (better: in the environment, as PORTICO_CLIENT_TOKEN)"),
        flag("--oauth", action="store_true", help="log in with a browser if the server wants that"),
        flag("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable for a command"),
        flag("--cwd", metavar="DIR", help="the folder that a command starts in"),
    )
}
_SEEING = (
    flag("--trace", action="store_true", help="print every message, sent and received, to standard error"),
    flag("--verbose", action="store_true", help="print what the server logs to standard error"),
)
_OUTPUT = flag("--output", choices=("table", "text", "json"), help="default: table on a terminal, json elsewhere")
_JSON = flag("--json", action="store_const", const="json", dest="output", help="the same as --output json")
_SHORT_OUTPUT = flag("-o", *_OUTPUT.names, **_OUTPUT.options)
_LOGGING = (
    flag(
        "--log-level",
        metavar="LEVEL",
        help="debug, info, warning, error or critical (default: LOG_LEVEL, or warning); info: a line for each request",
    ),
    flag(
        "--log-format",
        choices=("text", "json"),
        help="a line for each request, in this form; so is all that is logged (default: text, with lines for requests "
        "over HTTP on a terminal)",
    ),
)
_SAVE = flag("--save", metavar="DIR", help="write images, sound and other binary data into files there")
_STORE = (
    flag(
        "--store",
        metavar="URL",
        help="the database: a path, sqlite:///path or postgresql://… (default: PORTICO_STORE, or a file in the data "
        "directory)",
    ),
    flag("--data", metavar="DIR", help="the data directory (default: PORTICO_DATA)"),
)
_DATA = _STORE[1:]
_WORKING = flag(
    "--concurrency",
    type=_count,
    default=16,
    metavar="N",
    help="how many tasks run at once (default: %(default)s; 0: none)",
)
_SERVED = "module:object or path/to/file.py:object (the object may be left out)"
_GATEWAY = "a gateway.toml or an mcp.json for all the servers in it"
_POLICIES = ("block", "redact", "allow")


def _limit(default: int | None = None) -> Flag:
    shown = "" if default is None else " (default: %(default)s)"
    return flag("--limit", type=_count, default=default, metavar="N", help=f"at most this many{shown}")


def _asking(command: str, first: str, second: str, about: str, words: tuple[Word, ...], *own: Flag) -> CommandForm:
    usage = f"portico {command} {first} [options]\n       portico {command} [options] {second}"
    return CommandForm(usage, about, words, {**_CONNECTION, "": (*_SEEING, *own)}, f"{TARGET}\n{STATUS}")


# The commands

_TARGET = word("target", "target", metavar="TARGET")
_PAIRS = word("pairs", "pairs", nargs="*", default=[], metavar="key=value")
_ACTIONS = "|".join(CONTRACT_ACTIONS)

FORMS: dict[str, CommandForm] = {
    "serve": CommandForm(
        "portico serve [TARGET] [options]",
        "Serve a server on stdio or over HTTP: your own, or the services that come with Portico.",
        (word("target", "file", nargs="?", help=f"{_SERVED}; {_GATEWAY}; none: the built-in services"),),
        {
            "": (
                flag(
                    "--transport",
                    choices=("stdio", "http"),
                    help="default: stdio; with --host, --port, --unix, --fd or --workers: http",
                ),
                flag(
                    "--lifecycle",
                    choices=("auto", "strict", "lenient"),
                    help="whether requests must wait for notifications/initialized (default: auto, by revision)",
                ),
                flag("--max-message", type=int, metavar="BYTES", help="the longest message accepted (default: 4 MiB)"),
                flag("--view", metavar="NAME", help="on stdio: one view of a gateway.toml in place of all of it"),
                flag(
                    "--face",
                    choices=("all", "search", "code", "auto"),
                    help="search: show find_tools and call_tool in place of all tools; code: find_tools and run; "
                    "auto: search, if there are many",
                ),
            ),
            "what is logged": _LOGGING,
            "the built-in services": (
                flag("--services", metavar="NAMES", help="which ones, separated by commas"),
                flag(
                    "--profile",
                    metavar="NAME",
                    help="look like another server: a name of `portico profiles list`, or a file",
                ),
                flag(
                    "--config",
                    metavar="FILE",
                    help="their settings, a portico.toml; what it says of access, such as [auth], is for any target",
                ),
                flag(
                    "--root",
                    action="append",
                    default=[],
                    metavar="PATH",
                    help="a folder, or a file, that the system service may look into; may be repeated",
                ),
                flag(
                    "--project",
                    action="append",
                    default=[],
                    metavar="PATH",
                    help="a project whose packages live Python can import and read; may be repeated",
                ),
                flag("--read-only", action="store_true", help="change nothing, whatever the settings say"),
                flag(
                    "--operator",
                    action="store_true",
                    help="offer tools that switch services on and off; over HTTP to who has the operator's token",
                ),
            ),
            "what is stored": (*_STORE, _WORKING),
            "over HTTP": (
                flag("--host", help="the address to listen on (default: 127.0.0.1)"),
                flag("--port", type=_port, help="the port (default: 8080; 0: any free one)"),
                flag("--unix", metavar="PATH", help="listen on a Unix socket, which is for this user alone"),
                flag(
                    "--fd",
                    nargs="?",
                    const="systemd",
                    type=_descriptor,
                    metavar="N",
                    help="listen on a socket that is open already; without a number: on those of systemd",
                ),
                flag(
                    "--workers",
                    type=_workers,
                    metavar="N",
                    help="serve with so many processes; auto: one for each core (default: PORTICO_WORKERS)",
                ),
                flag("--path", default="/mcp", help="the endpoint (default: %(default)s; / is the same)"),
                flag(
                    "--allow-host",
                    action="append",
                    default=[],
                    metavar="NAME",
                    help="a host name of this server, or *.example.com",
                ),
                flag("--allow-origin", action="append", default=[], metavar="URL", help="an origin of web pages"),
                flag(
                    "--trusted-proxy",
                    action="append",
                    default=[],
                    metavar="ADDRESS",
                    help="a proxy, or a network of them, whose X-Forwarded-For is believed",
                ),
                flag(
                    "--auth-issuer",
                    action="append",
                    default=[],
                    metavar="URL",
                    help="an authorization server whose tokens are good here; may be repeated",
                ),
                flag("--audience", metavar="TEXT", help="what these tokens have to be for (default: the public URL)"),
                flag("--public-url", metavar="URL", help="where clients find this server, without --path"),
                flag("--auth-tokens", metavar="FILE", help="tokens that were given out by hand: see `portico tokens`"),
                flag("--insecure", action="store_true", help="serve other machines without a token"),
                flag(
                    "--open",
                    action="store_true",
                    help="serve the built-in services to every user of this machine, without a token",
                ),
                flag(
                    "--console",
                    default="local",
                    metavar="WHO",
                    help="the page for people: off; local: for browsers on this machine, with the link that is printed "
                    "(the default); scope:NAME: for everybody whose token has that scope",
                ),
                flag(
                    "--stateless",
                    action="store_true",
                    help="keep no sessions: any process answers; without questions, server streams and subscriptions",
                ),
                flag("--sse", action="store_true", help="also the endpoints of 2024-11-05: /sse and /messages"),
                flag("--certificate", metavar="FILE", help="a TLS certificate with its chain"),
                flag("--key", metavar="FILE", help="its private key, if it is not in the same file"),
            ),
        },
    ),
    "list": _asking(
        "list",
        f"[{'|'.join(KINDS)}] TARGET",
        f"[{'|'.join(KINDS)}] -- COMMAND …",
        "List what a server has: everything, or one kind of it.",
        (word("kind", choices=(*KINDS, EVERYTHING), metavar="|".join(KINDS)), _TARGET),
        _OUTPUT,
        _JSON,
    ),
    "call": _asking(
        "call",
        "TARGET TOOL [key=value …]",
        "TOOL [key=value …] -- COMMAND …",
        "Call a tool.\n\n"
        "  key=value     a value, read as the tool's schema wants it\n"
        "  key=a key=b   several, for an array\n"
        "  a.b=value     inside an object\n"
        "  key=@file     what is in a file; key=- what is on standard input\n"
        "  key:=json     JSON as it is",
        (_TARGET, word("tool", "tools", metavar="TOOL"), _PAIRS),
        flag("--json", metavar="JSON", dest="json_arguments", help="all arguments as JSON: '{…}', @file or -"),
        _OUTPUT,
        _SAVE,
    ),
    "inspect": _asking(
        "inspect",
        "TARGET",
        "-- COMMAND …",
        "What a server is: name, revisions, instructions, capabilities, what it offers, how many tokens its tools\n"
        "take, and what is wrong with them.",
        (_TARGET,),
        _OUTPUT,
        _JSON,
    ),
    "doctor": CommandForm(
        "portico doctor [TARGET] [options]\n       portico doctor [options] -- command arg …",
        "What would keep a server from working here: Python, extras, the store, the port, the configurations of\n"
        "clients; of a TARGET also whether it answers, and where its login breaks. Nothing is changed.",
        (word("target", "target", nargs="?", help="a server to try"),),
        {
            "": (
                flag("--port", type=_port, metavar="PORT", help="whether this one is free (default: 8080)"),
                *_STORE,
                *_SEEING,
                _SHORT_OUTPUT,
                _JSON,
            ),
            **_CONNECTION,
        },
        TARGET + "\nExit status: 0; 1 when something is wrong; 2 for a mistake on this line.",
    ),
    "read": _asking(
        "read",
        "TARGET URI",
        "URI -- COMMAND …",
        "Read a resource.",
        (_TARGET, word("uri", "resources", metavar="URI")),
        _OUTPUT,
        _JSON,
        _SAVE,
    ),
    "prompt": _asking(
        "prompt",
        "TARGET NAME [key=value …]",
        "NAME [key=value …] -- COMMAND …",
        "Fill in a prompt. Its arguments are texts: key=value, key=@file, or key=- for standard input.",
        (_TARGET, word("name", "prompts", metavar="NAME"), _PAIRS),
        _OUTPUT,
        _JSON,
        _SAVE,
    ),
    "console": CommandForm(
        "portico console TARGET [options]\n       portico console [options] -- COMMAND …",
        "Look at a server in a browser: its tools, resources and prompts, and every message. Prints a link that is\n"
        "good once. For the address of a `portico serve` of yours, without a path: a new link to its own console.",
        (_TARGET,),
        {
            **_CONNECTION,
            "": (flag("--port", type=_port, default=0, help="of the page (default: any free one)"), *_DATA),
        },
        f"{TARGET}\n{STATUS}",
    ),
    "dev": CommandForm(
        "portico dev FILE [options]",
        "Serve a server in a file over HTTP, with its console. When the file changes it is loaded again: clients keep\n"
        "their connections and are told, and a file that cannot be loaded leaves the last good version.",
        (word("target", "file", metavar="FILE", help="path/to/file.py, or path/to/file.py:object"),),
        {
            "": (
                flag("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)"),
                flag("--port", type=_port, default=8080, help="the port (default: %(default)s; 0: any free one)"),
                flag("--path", default="/mcp", help="the endpoint (default: %(default)s)"),
                *_STORE,
            )
        },
    ),
    "record": CommandForm(
        "portico record TARGET -o FILE [options]\n       portico record -o FILE [options] -- COMMAND …",
        "Stand between a client and a server, let everything through, and write every message to a file, without the\n"
        "secrets in it. The client starts this command in place of the server, and speaks to it on stdio; with --port\n"
        "it finds it over HTTP.",
        (_TARGET,),
        {
            "": (
                flag("-o", "--out", required=True, metavar="FILE", help="where to; what was in it is lost"),
                flag("--header", action="append", default=[], metavar="'NAME: VALUE'", help="a header for HTTP"),
                flag("--token", help="a bearer token for HTTP (better: in the environment, as PORTICO_CLIENT_TOKEN)"),
                flag("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable for a command"),
                flag("--cwd", metavar="DIR", help="the folder that a command starts in"),
                flag("--host", help="the address to listen at over HTTP (default: 127.0.0.1)"),
                flag("--port", type=_port, help="listen over HTTP; 0: any free port"),
            )
        },
        f"{TARGET}\n`portico replay FILE` is a server that answers as this one did.",
    ),
    "replay": CommandForm(
        "portico replay FILE [options]",
        "Serve what `portico record` has written: the same request gets the same answer, with the same questions and\n"
        "notifications before it. Equal requests are answered in the order of the recording.",
        (word("file", "file", metavar="FILE"),),
        {
            "": (
                flag("--transport", choices=("stdio", "http"), help="default: stdio; with --host or --port: http"),
                flag("--host", help="the address to listen at (default: 127.0.0.1)"),
                flag("--port", type=_port, help="default: 8080; 0: any free one"),
            )
        },
        "Exit status: 0; 1 when something was asked that is not in the recording, which is listed on standard error.",
    ),
    "gateway": CommandForm(
        "portico gateway check FILE\n       portico gateway status [URL]",
        "check: start every server of a gateway.toml or an mcp.json once, and show what there is and what is wrong.\n"
        "status: how the upstreams of a gateway are that serves over HTTP, and what they said last.",
        (
            word("action", choices=("check", "status")),
            word(
                "file",
                "file",
                nargs="?",
                metavar="FILE|URL",
                help="a gateway.toml or an mcp.json; the address of a gateway (default: http://127.0.0.1:8080)",
            ),
        ),
        {
            "": (
                flag("--timeout", type=_seconds, default=30.0, metavar="SECONDS", help="default: %(default)g"),
                flag(
                    "--token",
                    help="of the operator (default: PORTICO_OPERATOR_TOKEN, or what `portico serve` has left)",
                ),
                flag("--json", action="store_true", help="status: all of it, as JSON"),
                flag("--data", metavar="DIR", help="where `portico serve` has left its tokens"),
            )
        },
        "Exit status: 0; 1 when a server cannot be reached, lacks a secret, or has a name that is taken; 2 for a\n"
        "mistake in the file; 3 when the gateway itself cannot be reached.",
    ),
    "pins": CommandForm(
        "portico pins list|diff|approve FILE [options]",
        "What the tools behind a gateway were when they were approved, what has changed, and the approval of it.",
        (
            word("action", choices=("list", "diff", "approve")),
            word("file", "file", metavar="FILE", help="a gateway.toml or an mcp.json whose upstreams have pins"),
        ),
        {
            "": (
                flag(
                    "--upstream", action="append", default=[], metavar="ALIAS", help="only of this one; may be repeated"
                ),
                flag("--tool", action="append", default=[], metavar="NAME", help="only this one; may be repeated"),
                flag("--yes", action="store_true", help="approve without being asked"),
                flag("--timeout", type=_seconds, default=30.0, metavar="SECONDS", help="default: %(default)g"),
            )
        },
        "Exit status: 0; 1 when something is not as it was approved; 2 for a mistake in the file;\n"
        "3 when an upstream cannot be reached.",
    ),
    "work": CommandForm(
        "portico work TARGET [options]",
        "Run the tasks of a server, as `portico serve` does besides answering. Any number may share one store.",
        (word("target", "file", help=_SERVED),),
        {
            "": (
                flag("--config", metavar="FILE", help="what is said of access: [[rule]], [audit], … as with serve"),
                *_STORE,
                _WORKING,
            )
        },
    ),
    "jobs": CommandForm(
        "portico jobs list [options]\n       portico jobs show ID | cancel ID … | retry ID … [options]",
        "Look at the tasks in a store. An ID may be abbreviated.",
        (word("action", choices=("list", "show", "cancel", "retry")), word("ids", nargs="*", default=[], metavar="ID")),
        {
            "": (
                *_STORE,
                _OUTPUT,
                _JSON,
                flag("--status", choices=("queued", "running", "waiting", "completed", "failed", "cancelled")),
                _limit(50),
                flag("--watch", action="store_true", help="on a terminal: keep running and show changes"),
            )
        },
        "Exit status: 0; 1 when something could not be changed; 2 for a mistake on this line.",
    ),
    "status": CommandForm(
        "portico status [options]",
        "The processes that are one server, by the store that they share: workers, how many sessions each has, and\n"
        "what is held for a time. Without --store: the stores of the data directory, and the supervisors of this\n"
        "user on this machine whose servers have no store.",
        (),
        {
            "": (
                *_STORE,
                _SHORT_OUTPUT,
                _JSON,
                flag("--sessions", action="store_true", help="the sessions too, those that were written last first"),
                _limit(50),
            )
        },
        "Exit status: 0; 2 for a mistake on this line, or a store that is not there.",
    ),
    "audit": CommandForm(
        "portico audit verify | list | export | head [options]",
        "What was asked of a server with an [audit], and whether the record of it is whole.\n\n"
        "  verify   name the first record that was changed, removed, reordered, inserted or cut off\n"
        "  list     the newest records               head   the last checkpoint, to be kept elsewhere\n"
        "  export   all records, a line each, with what is signed of them",
        (word("action", choices=("verify", "list", "export", "head"), metavar="ACTION"),),
        {
            "": (
                flag("--since", metavar="WHEN", help="of list and export: a date, a moment, or 2h for so long ago"),
                flag("--until", metavar="WHEN", help="the same, for the last one"),
                flag("--principal", metavar="ID", help="only what this one has asked"),
                flag("--tool", metavar="NAME", help="only this tool, resource or prompt; OWNER.* are all of one owner"),
                flag("--outcome", metavar="WORD", help="ok, error, denied, unknown, invalid, failed, limited, …"),
                _limit(50),
                flag("--format", choices=("jsonl", "ocsf", "cef"), default="jsonl", help="of export (default: jsonl)"),
                flag(
                    "--file",
                    action="append",
                    default=[],
                    metavar="FILE",
                    help="of verify: JSON lines of a sink or an "
                    "export, in place of a store; repeatable, the oldest first",
                ),
                flag(
                    "--key",
                    action="append",
                    default=[],
                    metavar="FILE",
                    help="of verify: the public keys to believe (default: audit-keys.pub in the data directory)",
                ),
                flag(
                    "--expect", metavar="NUMBER:HASH", help="of verify: a checkpoint that is known to have been written"
                ),
                *_STORE,
                _SHORT_OUTPUT,
                _JSON,
            )
        },
        "Exit status: 0; 1 when the audit is not whole; 2 for a mistake on this line.",
    ),
    "policy": CommandForm(
        "portico policy explain FILE --as WHO --tool OWNER.NAME | portico policy test FILE [EXPECTATIONS …]",
        "Who may do what, by the [[rule]] and [[require]] of a file, or of a server that has some.\n\n"
        "  explain  print the rules that a call meets, down to the one that decides\n"
        "  test     run the [[expect]] of the file, of NAME.expect.toml beside it, and of the files named",
        (
            word("action", choices=("explain", "test"), metavar="ACTION"),
            word("file", "file", metavar="FILE"),
            word("expectations", "file", nargs="*", metavar="EXPECTATIONS"),
        ),
        {
            "of explain": (
                flag(
                    "--as",
                    dest="principal",
                    default="local",
                    metavar="PRINCIPAL",
                    help="who asks: a principal's id, anonymous, or local for stdio (default: local)",
                ),
                flag("--group", action="append", default=[], metavar="NAME", help="a group of it; may be repeated"),
                flag("--scope", action="append", default=[], metavar="NAME", help="a scope of it; * is every one"),
                flag("--client", metavar="ID", help="the client that it uses"),
                flag("--issuer", metavar="URL", help="who says who it is"),
                flag("--tool", metavar="OWNER.NAME", help="what is asked for: a tool"),
                flag("--prompt", metavar="OWNER.NAME", help="a prompt"),
                flag("--resource", metavar="OWNER.URI", help="a resource"),
                flag("--args", metavar="JSON", help="the arguments, an object"),
            )
        },
        "Exit status: 0; 1 when it is denied, or something is not as expected; 2 for a mistake on this line.",
    ),
    "contracts": _asking(
        "contracts",
        f"{_ACTIONS} TARGET",
        f"{_ACTIONS} -- COMMAND …",
        "What the tools of a server promise.\n\n"
        "  render TARGET       write the specification of each tool, as Markdown\n"
        "  lint TARGET …       check that specifications are complete: of a server, or in files (.md)\n"
        "  diff [OLD] TARGET   compare with contracts.lock, or with another TARGET, a lock, a .md or a .json\n"
        "  codegen TARGET      write a typed client\n"
        "  lock TARGET         write contracts.lock: what the tools promise now\n"
        "  check TARGET        fail if that is not what they promise any more\n\n"
        "The exit status is 1 if there are findings.",
        (
            word("action", choices=CONTRACT_ACTIONS, metavar=_ACTIONS),
            word("targets", "targets", nargs="*", default=[], metavar="TARGET"),
        ),
        flag("--format", choices=("text", "json", "github"), default="text", help="of the output (default: text)"),
        flag("--tool", action="append", default=[], dest="tools", metavar="NAME", help="only this one; repeatable"),
        flag("--language", choices=("python", "typescript"), default="python", help="of codegen (default: python)"),
        flag("--out", metavar="FILE", help="write there: what was rendered or generated; of diff, the migration guide"),
        flag("--lock", default="contracts.lock", metavar="FILE", help="the lock (default: %(default)s)"),
        flag(
            "--fail-on",
            choices=("undeclared", "breaking", "minor", "patch", "never"),
            default="undeclared",
            help="which changes fail a diff (default: those that the versions do not declare)",
        ),
        flag("--allow", choices=("nothing", "patch", "minor"), default="nothing", help="drift that passes a check"),
        flag("--strict", action="store_true", help="warnings of lint fail, too"),
    ),
    "memory": CommandForm(
        "portico memory capture TEXT … | recall WORDS … | list | show ID | edit ID TEXT … | delete ID …\n"
        "       portico memory restore ID … | sync | export | import [FILE] | stats | model | hook NAME [options]",
        "Store and find memories. A TEXT of - is read from standard input.\n\n"
        "  capture TEXT      store a memory            edit ID TEXT   change one\n"
        "  recall WORDS      find memories             delete ID …    delete some; --hard for good\n"
        "  list              the newest                show ID        one with its history\n"
        "  restore ID …      bring back deleted ones   export, import  as JSON lines or Markdown\n"
        "  sync              share those of this project through its git repository\n"
        "  stats             how many there are        model          get the model for search by meaning (91 MB)\n"
        f"  hook NAME         answer an assistant's hook: {', '.join(HOOKS)}",
        (
            word("action", choices=MEMORY_ACTIONS, metavar="ACTION"),
            word("words", "hook", nargs="*", default=[], metavar="WORD"),
        ),
        {
            "": (
                flag("-n", "--namespace", metavar="NAME", help="what kind of memory (capture: guessed if left out)"),
                flag("-t", "--tag", action="append", default=[], metavar="TAG", help="a tag; repeatable"),
                flag("-f", "--filter", default="", metavar="FILTER", help="such as 'ns:decisions since:7d -tag:old'"),
                flag("--domain", choices=("project", "user", "org"), default="project", help="default: %(default)s"),
                flag("--source", metavar="TEXT", help="where it comes from"),
                flag("--author", metavar="NAME", help="who said it"),
                flag("--thread", metavar="NAME", help="the conversation, file or session it belongs to"),
                flag("--ttl", metavar="SPAN", help="how long it is kept: 7d, 24h"),
                _limit(),
                flag("--hard", action="store_true", help="delete for good"),
                flag("--format", choices=("jsonl", "markdown"), default="jsonl", help="of export and import (jsonl)"),
                flag("--direction", choices=("push", "fetch", "full"), default="full", help="of sync (full)"),
                flag("--remote", metavar="NAME", help="of sync: a remote of the repository (origin)"),
                flag("--confirm", action="store_true", help="of sync: also where many memories would be deleted here"),
                flag("--undo", metavar="RUN", help="of sync: bring back what that run has deleted here"),
                flag("--project", metavar="NAME", help="instead of the repository this folder is in"),
                flag("--secrets", choices=_POLICIES, default="block", help="secrets in a text (%(default)s)"),
                flag("--personal", choices=_POLICIES, default="allow", help="personal data in a text (%(default)s)"),
                _SHORT_OUTPUT,
                *_STORE,
            )
        },
        "Exit status: 0; 1 when it was refused; 2 for a mistake on this line.",
    ),
    "tasks": CommandForm(
        "portico tasks add TEXT … | list [WORD …] | show ID | next | start ID | done ID [RESULT …] | fail ID [REASON …]"
        "\n       portico tasks reopen ID | edit ID [TEXT …] | block ID BY … | unblock ID BY … | tree [ID] | history ID"
        "\n       portico tasks note ID TEXT … | rm ID … [options]",
        "Work items: what is to be done, and in which order. An ID may be any beginning or end that is unique.\n\n"
        "  add TEXT          make a task               list [WORD …]   the open ones; those with all of these words\n"
        "  next              get something to do       show ID         one with everything\n"
        "  start ID          begin one                 tree [ID]       a task and its parts, or all of them\n"
        "  done ID [RESULT]  it is completed           history ID      what was done to it\n"
        "  fail ID [REASON]  it is given up            reopen ID       it is pending again\n"
        "  block ID BY …     it waits for others       unblock ID BY … it does not\n"
        "  edit ID [TEXT]    change it                 rm ID …         delete some\n"
        "  note ID TEXT      add a note to it",
        (
            word("action", choices=TASK_ACTIONS, metavar="ACTION"),
            word("words", nargs="*", default=[], metavar="WORD"),
        ),
        {
            "": (
                flag("-p", "--priority", type=int, choices=range(1, 6), metavar="N", help="1 (most urgent) to 5; 3"),
                flag("--parent", metavar="ID", help="what it is a part of; list: only its children"),
                flag("--blocked-by", action="append", default=[], metavar="ID", help="of add: repeatable"),
                flag("--context", metavar="TEXT", help="what a worker has to know"),
                flag("--worker", metavar="NAME", help="who works on it (default: your user name)"),
                flag("--lease", type=int, metavar="SECONDS", help="of next and start: how long it is yours"),
                flag("--wait", action="store_true", help="of next: until there is something to do"),
                flag("-s", "--status", choices=("pending", "in_progress", "completed", "failed"), help="of list"),
                flag("--all", action="store_true", help="of list and tree: also completed and failed ones"),
                flag("--ready", action="store_true", help="of list: those that can be started, the next one first"),
                flag("--blocked", action="store_true", help="of list: those that wait for a blocker"),
                flag("--overdue", action="store_true", help="of list: those that should have been done by now"),
                flag(
                    "--due", metavar="DATE", help="when it is due; list: those that are due before; edit: '' for never"
                ),
                flag(
                    "-l",
                    "--label",
                    action="append",
                    dest="add_labels",
                    metavar="LABEL",
                    help="to add; of list and next: only those that have it; repeatable",
                ),
                flag("--unlabel", action="append", dest="remove_labels", metavar="LABEL", help="of edit: to take off"),
                flag("--project", metavar="NAME", help="whose list ('*': all; default: that of this folder)"),
                _limit(50),
                flag("--children", choices=("delete", "keep"), help="of rm: the tasks below it (default: refuse)"),
                flag("--dry-run", action="store_true", help="of rm: only say what would be deleted"),
                _SHORT_OUTPUT,
                _JSON,
                *_STORE,
            )
        },
        "Exit status: 0; 1 when it was refused, or there is nothing to do; 2 for a mistake on this line.",
    ),
    "install": CommandForm(
        "portico install CLIENT [options] [-- SERVE …]",
        "Put `portico serve` into the configuration of a client. Shows what would change; --write changes it.",
        (word("client", choices=("claude-desktop", "claude-code", "cursor", "vscode")),),
        {
            "": (
                flag("--name", default="portico", help="what the client calls this server (default: %(default)s)"),
                flag(
                    "--scope",
                    choices=("user", "project"),
                    default="user",
                    help="for you, or for all who work on the project in this folder (default: %(default)s)",
                ),
                flag("--write", action="store_true", help="write it"),
                flag("--remove", action="store_true", help="take it out again"),
            )
        },
        "What stands behind -- is given to `portico serve`: a TARGET of your own, --services, --config …\n\n"
        "The file keeps everything else that is in it, and a copy of the old one is put beside it.",
    ),
    "port": CommandForm(
        "portico port PATH … [--write]",
        "Rewrite a project that uses FastMCP or the official SDK for Portico. Shows what would change; --write changes "
        "it. No code of the project is run.",
        (word("paths", "file", nargs="+", metavar="PATH", help="files, or folders with the files in them"),),
        {"": (flag("--write", action="store_true", help="change the files"),)},
        "What it cannot do is listed on standard error: the file, the line, and what to do.\n\n"
        "exit status: 0 all is done, 1 something is left to do by hand, 2 a mistake on the line.\n\n"
        "It needs libcst: install portico[port].",
    ),
    "tokens": CommandForm(
        "portico tokens add ID [options]\n       portico tokens list|remove [ID] [options]\n"
        "       portico tokens revoke ID [--upstream ALIAS] [options]",
        "Tokens for programs that cannot log in, such as CI. The file has their hashes; a token is printed once.\n"
        "`revoke` takes back what a person has who logs in: what they let programs do, and accounts they connected.",
        (
            word("action", choices=("add", "list", "remove", "revoke"), metavar="add|list|remove|revoke"),
            word("id", nargs="?", metavar="ID", help="whose token it is: what the server takes its caller for"),
        ),
        {
            "": (
                flag(
                    "--file", default="tokens.toml", metavar="FILE", help="where they are kept (default: %(default)s)"
                ),
                flag(
                    "--scope",
                    action="append",
                    default=[],
                    metavar="SCOPE",
                    help="something that it may do; may be repeated",
                ),
                flag("--group", action="append", default=[], metavar="NAME", help="for rules; may be repeated"),
                flag("--all", action="store_true", help="it may do everything"),
                flag("--expires", metavar="DAYS", type=_count, help="after so many days (default: never)"),
            ),
            "revoke": (
                flag("--upstream", metavar="ALIAS", help="the account at this upstream alone"),
                flag("--store", metavar="URL", help="the server's database (default: PORTICO_STORE, or access.db)"),
                flag("--data", metavar="DIR", help="the data directory with access.db"),
            ),
        },
        'The server reads the file with --auth-tokens FILE, or with tokens = "FILE" in [auth], and again when it '
        "changes.",
    ),
    "profiles": CommandForm(
        "portico profiles list | show NAME",
        "The profiles of `portico serve --profile NAME`: files of settings that make it look like another server.",
        (
            word("action", choices=("list", "show")),
            word("name", "profile", nargs="?", metavar="NAME", help="one of them, or the path of a file of your own"),
        ),
        {},
    ),
    "completion": CommandForm(
        "portico completion bash|zsh|fish",
        "Print the script that completes `portico` in a shell.",
        (word("shell", choices=("bash", "zsh", "fish")),),
        {},
        'bash:  eval "$(portico completion bash)"              in ~/.bashrc\n'
        'zsh:   eval "$(portico completion zsh)"               in ~/.zshrc, behind compinit\n'
        "fish:  portico completion fish | source               in ~/.config/fish/config.fish\n\n"
        "Names of tools, prompts and resources are those that `portico list` and `portico call` have seen before: TAB\n"
        "starts no server and waits for no network.",
    ),
}
