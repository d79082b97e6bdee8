"""The commands that serve something: a server, its tasks, a recording."""

from __future__ import annotations

from portico.cli.specs.options import CWD, ENV, HEADER, SERVED, STORE, TARGET, TARGETS, TOKEN, WORKING, count, port
from portico.cli.specs.parser import CommandForm, flag, word

_GATEWAY = "a gateway.toml or an mcp.json for all the servers in it"
_URL = "a URL, to serve a proxy of the server there"


def _workers(text: str) -> int | str:
    return text if text == "auto" else count(text)


def _descriptor(text: str) -> int | str:
    return text if text == "systemd" else count(text)


FORMS: dict[str, CommandForm] = {
    "serve": CommandForm(
        "portico serve [TARGET] [options]",
        "Serve a server on stdio or over HTTP: your own, or the services that come with Portico.",
        (
            word(
                "target",
                "file",
                nargs="?",
                help=f"{SERVED}; {_GATEWAY}; {_URL}; none: the built-in services",
            ),
        ),
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
                HEADER,
                flag("--view", metavar="NAME", help="on stdio: one view of a gateway.toml in place of all of it"),
                flag(
                    "--face",
                    choices=("all", "search", "code", "auto"),
                    help="search: show find_tools and call_tool in place of all tools; code: find_tools and run; "
                    "auto: search, if there are many",
                ),
            ),
            "what is logged": (
                flag(
                    "--log-level",
                    metavar="LEVEL",
                    help="debug, info, warning, error or critical (default: LOG_LEVEL, or warning); info: a line for "
                    "each request",
                ),
                flag(
                    "--log-format",
                    choices=("text", "json"),
                    help="a line for each request, in this form; so is all that is logged (default: text, with lines "
                    "for requests over HTTP on a terminal)",
                ),
            ),
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
            "what is stored": (*STORE, WORKING),
            "over HTTP": (
                flag("--host", help="the address to listen on (default: 127.0.0.1)"),
                flag("--port", type=port, help="the port (default: 8080; 0: any free one)"),
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
                    help="serve the built-in services or a gateway to every user of this machine, without a token",
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
        examples=("serve --port 8080", "serve my_server.py", "serve mcp.json --port 8080"),
    ),
    "dev": CommandForm(
        "portico dev FILE [options]",
        "Serve a server in a file over HTTP, with a console if portico-console is installed. When the file changes it\n"
        "is loaded again: clients stay connected and are notified, and a file that fails to load leaves the last good\n"
        "version in place.",
        (word("target", "file", metavar="FILE", help="path/to/file.py, or path/to/file.py:object"),),
        {
            "": (
                flag("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)"),
                flag("--port", type=port, default=8080, help="the port (default: %(default)s; 0: any free one)"),
                flag("--path", default="/mcp", help="the endpoint (default: %(default)s)"),
                *STORE,
            )
        },
        examples=("dev my_server.py",),
    ),
    "work": CommandForm(
        "portico work TARGET [options]",
        "Run the tasks of a server, as `portico serve` does besides answering. Any number may share one store.",
        (word("target", "file", help=SERVED),),
        {
            "": (
                flag("--config", metavar="FILE", help="what is said of access: [[rule]], [audit], … as with serve"),
                *STORE,
                WORKING,
            )
        },
        examples=("work my_server.py --store postgresql://db/tasks",),
    ),
    "record": CommandForm(
        "portico record TARGET -o FILE [options]\n       portico record -o FILE [options] -- COMMAND …",
        "Stand between a client and a server, let everything through, and write every message to a file, without the\n"
        "secrets in it. The client starts this command in place of the server, and speaks to it on stdio; with --port\n"
        "it finds it over HTTP.",
        (TARGET,),
        {
            "": (
                flag("-o", "--out", required=True, metavar="FILE", help="where to; what was in it is lost"),
                HEADER,
                TOKEN,
                ENV,
                CWD,
                flag("--host", help="the address to listen at over HTTP (default: 127.0.0.1)"),
                flag("--port", type=port, help="listen over HTTP; 0: any free port"),
            )
        },
        f"{TARGETS}\n`portico replay FILE` is a server that answers as this one did.",
        examples=("record my_server.py -o session.jsonl",),
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
                flag("--port", type=port, help="default: 8080; 0: any free one"),
            )
        },
        "Exit status: 0; 1 when something was asked that is not in the recording, which is listed on standard error.",
        examples=("replay session.jsonl",),
    ),
}
