"""Command-line options of the gateway's commands."""

from __future__ import annotations

from portico.cli.specs.options import (
    DATA,
    FORMAT,
    STORE,
    UPSTREAM_TIMEOUT,
    limit_option,
    parse_count,
    repeatable,
    report_format,
)
from portico.cli.specs.parser import CommandSpec, argument, option

FORMS: dict[str, CommandSpec] = {
    "gateway": CommandSpec(
        "portico gateway check FILE\n       portico gateway status [URL]",
        "Check a gateway file, or show a running gateway's upstreams.\n\n"
        "  check    connect to every upstream once; report components and problems\n"
        "  status   show the state of the upstreams of a gateway that serves over HTTP",
        (
            argument("action", choices=("check", "status")),
            argument(
                "file",
                "file",
                nargs="?",
                metavar="FILE|URL",
                help="gateway.toml or mcp.json; URL of a gateway (default: http://127.0.0.1:8080)",
            ),
        ),
        {
            "": (
                UPSTREAM_TIMEOUT,
                option(
                    "--token",
                    metavar="TOKEN",
                    help="operator token (default: PORTICO_OPERATOR_TOKEN, or the token saved by `portico serve`)",
                ),
                report_format(),
                *DATA,
            )
        },
        "Exit status: 0 success; 1 an upstream is unreachable, lacks a secret or has a\n"
        "conflicting name; 2 usage error; 3 gateway unreachable.",
        action_options={"--token": "status", "--data": "status"},
        examples=("gateway check mcp.json", "gateway status http://127.0.0.1:8080"),
    ),
    "hub": CommandSpec(
        "portico hub start | stop | status [options]\n       portico hub restart|upgrade|logs [NAME …]",
        "Start, stop and observe the hub: a background process that runs the stdio servers\n"
        "of all hosts of this user. Hosts reach it with `portico connect`.\n\n"
        "  start    start the hub; bridges do this themselves\n"
        "  stop     stop the hub and its servers, until a host sends the next message\n"
        "  status   show the servers, their hosts and processes\n"
        "  restart  restart the hub, or the processes of NAME; calls in flight of NAME fail\n"
        "  upgrade  start new processes for all servers or NAME, move new calls to them,\n"
        "           and let calls in flight end\n"
        "  logs     print the end of the hub's log, or of the standard error of NAME",
        (
            argument("action", choices=("start", "stop", "status", "restart", "upgrade", "logs"), metavar="ACTION"),
            argument("names", nargs="*", metavar="NAME", help="name of a server"),
        ),
        {
            "": (
                option("--lines", metavar="N", type=parse_count, default=50, help="lines to print (default: 50)"),
                report_format(),
            )
        },
        "Settings: hub.toml in the hub's directory, which `status` shows.\n"
        "Exit status: 0 success; 1 a server could not be replaced; 2 usage error; 3 the\n"
        "hub is not running or cannot be used.",
        action_options={"--lines": "logs", "--format": "status"},
        examples=("hub status", "hub upgrade time", "hub logs --lines 100"),
    ),
    "connect": CommandSpec(
        "portico connect NAME [NAME …]\n       portico connect NAME [--env VAR …] [--cwd DIR] -- COMMAND [ARG …]",
        "Bridge a host to servers of the hub, over standard input and output. A host runs\n"
        "this command instead of the server. The hub is started if necessary.\n\n"
        "Without a command, NAME is a server of the hub's settings. Several names are\n"
        "combined, and their tools are prefixed.",
        (
            argument("names", nargs="+", metavar="NAME", help="name of a server"),
            argument("command", nargs="*", metavar="COMMAND", help="command that starts the server, after --"),
        ),
        {
            "": (
                repeatable("--env", "VAR", "environment variable that belongs to the server's configuration"),
                option("--cwd", metavar="DIR", help="working directory of the server (default: that of the host)"),
            )
        },
        "Exit status: 0 the host closed the connection; 2 usage error; 3 the hub cannot be\nused.",
        examples=("connect notes", "connect time -- uvx mcp-server-time"),
    ),
    "adopt": CommandSpec(
        "portico adopt [CLIENT …] [options]",
        "Change the configuration of hosts so that they run their servers through the hub.\n"
        "Prints the changes as a diff; --write applies them and keeps a backup. Secrets\n"
        "stay in the configuration of the host. CLIENT is claude-desktop, claude-code,\n"
        "cursor, vscode, windsurf or zed; by default all that are configured.",
        (argument("clients", nargs="*", metavar="CLIENT", help="host whose configuration is changed"),),
        {
            "": (
                option(
                    "--scope",
                    choices=("user", "project"),
                    default="user",
                    help="the user's configuration, or that of the current project (default: user)",
                ),
                option("--write", action="store_true", help="apply the changes"),
                option("--undo", action="store_true", help="restore the files as they were before"),
                repeatable("--server", "NAME", "only this server"),
            )
        },
        "Exit status: 0 success; 1 a file cannot be changed or restored; 2 usage error.",
        examples=("adopt", "adopt cursor --write", "adopt --undo --write"),
    ),
    "pins": CommandSpec(
        "portico pins list|diff|approve FILE [options]",
        "List, compare or approve pinned tool definitions. Approved definitions are\n"
        "stored in pins.lock next to FILE, or in the file of its pins_file setting.",
        (
            argument("action", choices=("list", "diff", "approve")),
            argument("file", "file", metavar="FILE", help="gateway.toml or mcp.json"),
        ),
        {
            "": (
                repeatable("--upstream", "ALIAS", "only this upstream"),
                repeatable("--tool", "NAME", "only this tool"),
                option("--yes", action="store_true", help="approve without confirmation"),
                UPSTREAM_TIMEOUT,
                report_format(),
            )
        },
        "Exit status: 0 success; 1 definitions differ from the approved ones; 2 usage\nerror; 3 upstream unreachable.",
        action_options={"--yes": "approve", "--format": "list"},
        examples=("pins list gateway.toml", "pins diff gateway.toml", "pins approve gateway.toml --tool search"),
    ),
    "audit": CommandSpec(
        "portico audit verify | list | export | checkpoint [options]",
        "Verify, list or export the audit log.\n\n"
        "  verify      find the first changed, removed, reordered or inserted record\n"
        "  list        list the newest records\n"
        "  export      write all records with their signatures\n"
        "  checkpoint  print the last checkpoint, to store it elsewhere",
        (argument("action", choices=("verify", "list", "export", "checkpoint"), metavar="ACTION"),),
        {
            "": (
                option("--since", metavar="WHEN", help="start: a date, a timestamp, or an age such as 2h"),
                option("--until", metavar="WHEN", help="end: a date, a timestamp, or an age such as 2h"),
                option("--principal", metavar="ID", help="only this principal"),
                option(
                    "--target", metavar="NAME", help="only this tool, resource or prompt; OWNER.* for all of one owner"
                ),
                option(
                    "--outcome",
                    metavar="OUTCOME",
                    help="only this outcome: ok, error, denied, unknown, invalid, failed, limited",
                ),
                limit_option(50),
                option(
                    "--export-format",
                    choices=("jsonl", "ocsf", "cef"),
                    default="jsonl",
                    help="record format (default: %(default)s)",
                ),
                repeatable("--input", "FILE", "verify exported files instead of a store, oldest first"),
                repeatable(
                    "--public-key", "FILE", "trusted signing key (default: audit-keys.pub in the data directory)"
                ),
                option("--checkpoint", metavar="NUMBER:HASH", help="checkpoint that must be in the log"),
                *STORE,
                FORMAT,
            )
        },
        "Exit status: 0 success; 1 the log was tampered with; 2 usage error.",
        action_options={
            "--since": "list export",
            "--until": "list export",
            "--principal": "list export",
            "--target": "list export",
            "--outcome": "list export",
            "--limit": "list",
            "--export-format": "export",
            "--input": "verify",
            "--public-key": "verify",
            "--checkpoint": "verify",
            "--format": "verify list checkpoint",
        },
        examples=(
            "audit verify --public-key audit-keys.pub",
            "audit list --since 2h --outcome denied",
            "audit export --export-format ocsf",
            "audit checkpoint",
        ),
    ),
    "usage": CommandSpec(
        "portico usage [--by DIMENSION] [--month YYYY-MM] [options]",
        "Show the calls, errors, latency and estimated tokens in the audit log of a server\n"
        "or gateway, by tool, upstream, client or principal. By principal also what is left of\n"
        "monthly budgets.",
        (),
        {
            "": (
                option(
                    "--by",
                    choices=("tool", "upstream", "client", "principal"),
                    default="tool",
                    help="one row for each of these (default: %(default)s)",
                ),
                option("--month", metavar="YYYY-MM", help="calendar month in UTC (default: the current one)"),
                option("--since", metavar="WHEN", help="start: a date, a timestamp, or an age such as 2h"),
                option("--until", metavar="WHEN", help="end: a date, a timestamp, or an age such as 2h"),
                *STORE,
                report_format("csv"),
            )
        },
        "Tokens are estimated as a quarter of the bytes.\nExit status: 0 success; 2 usage error.",
        examples=("usage --by principal", "usage --month 2026-11 --format csv", "usage --by client --since 7d"),
    ),
    "policy": CommandSpec(
        "portico policy explain FILE --principal ID --tool OWNER.NAME\n       portico policy test FILE [TESTS …]",
        "Explain or test the access rules of a file, or of a server.\n\n"
        "  explain  print the rules that match a call, up to the one that decides\n"
        "  test     run the tests in FILE, in NAME.tests.toml next to it and in TESTS",
        (
            argument("action", choices=("explain", "test"), metavar="ACTION"),
            argument("file", "file", metavar="FILE", help="gateway.toml"),
            argument("expectations", "file", nargs="*", metavar="TESTS", help="additional test files"),
        ),
        {
            "": (
                option(
                    "--principal",
                    default="local",
                    metavar="ID",
                    help="calling principal: an id, anonymous, or local for stdio (default: %(default)s)",
                ),
                repeatable("--group", "NAME", "group of the principal"),
                repeatable("--scope", "NAME", "scope of the principal; * for every scope"),
                option("--client", metavar="ID", help="client of the token"),
                option("--issuer", metavar="URL", help="issuer of the token"),
                option("--tool", metavar="OWNER.NAME", help="requested tool"),
                option("--prompt", metavar="OWNER.NAME", help="requested prompt"),
                option("--resource", metavar="OWNER.URI", help="requested resource"),
                option("--arguments", metavar="JSON", help="call arguments"),
                report_format(),
            )
        },
        "Exit status: 0 success; 1 denied, or a test failed; 2 usage error.",
        action_options=dict.fromkeys(
            (
                "--principal",
                "--group",
                "--scope",
                "--client",
                "--issuer",
                "--tool",
                "--prompt",
                "--resource",
                "--arguments",
            ),
            "explain",
        ),
        examples=("policy explain gateway.toml --principal alice --tool files.write_file", "policy test gateway.toml"),
    ),
    "tokens": CommandSpec(
        "portico tokens add ID [options]\n       portico tokens list|remove [ID] [options]\n"
        "       portico tokens revoke-user ID [--upstream ALIAS] [options]",
        "Manage static access tokens, for programs that cannot log in, such as CI. The\n"
        "file contains their hashes; a token is printed once. `revoke-user` revokes the\n"
        "grants and connected accounts of a user who logs in.",
        (
            argument("action", choices=("add", "list", "remove", "revoke-user"), metavar="add|list|remove|revoke-user"),
            argument("id", nargs="?", metavar="ID", help="principal of the token"),
        ),
        {
            "": (
                option("--file", default="tokens.toml", metavar="FILE", help="token file (default: %(default)s)"),
                repeatable("--scope", "SCOPE", "granted scope"),
                repeatable("--group", "NAME", "group of the principal"),
                option("--all-scopes", action="store_true", help="grant every scope"),
                option("--expires-in-days", metavar="N", type=parse_count, help="expiry (default: never)"),
                report_format(),
            ),
            "revoke-user": (
                option("--upstream", metavar="ALIAS", help="revoke only the account at this upstream"),
                *STORE,
            ),
        },
        "The server reads the file named by --token-file or by token_file in [auth], and\n"
        "reads it again when it changes.",
        action_options={
            "--file": "add list remove",
            "--scope": "add",
            "--group": "add",
            "--all-scopes": "add",
            "--expires-in-days": "add",
            "--format": "list",
            "--upstream": "revoke-user",
            "--store": "revoke-user",
            "--data": "revoke-user",
        },
        examples=(
            "tokens add ci --scope read --expires-in-days 90",
            "tokens list",
            "tokens remove ci",
            "tokens revoke-user alice",
        ),
    ),
}
