"""The arguments of the commands of the gateway."""

from __future__ import annotations

from portico.cli.specs.options import JSON, SHORT_OUTPUT, STORE, UPSTREAM_TIMEOUT, count, limit
from portico.cli.specs.parser import CommandForm, flag, word

FORMS: dict[str, CommandForm] = {
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
                UPSTREAM_TIMEOUT,
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
        action_options={"--token": "status", "--json": "status", "--data": "status"},
        examples=("gateway check mcp.json", "gateway status http://127.0.0.1:8080"),
    ),
    "pins": CommandForm(
        "portico pins list|diff|approve FILE [options]",
        "What the tools behind a gateway were when they were approved, what has changed, and the approval of it.\n"
        "Approved definitions are in pins.lock beside FILE, or in the lock file that FILE names.",
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
                UPSTREAM_TIMEOUT,
            )
        },
        "Exit status: 0; 1 when something is not as it was approved; 2 for a mistake in the file;\n"
        "3 when an upstream cannot be reached.",
        action_options={"--yes": "approve"},
        examples=("pins list gateway.toml", "pins diff gateway.toml", "pins approve gateway.toml --tool search"),
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
                limit(50),
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
                *STORE,
                SHORT_OUTPUT,
                JSON,
            )
        },
        "Exit status: 0; 1 when the audit is not whole; 2 for a mistake on this line.",
        action_options={
            "--since": "list export",
            "--until": "list export",
            "--principal": "list export",
            "--tool": "list export",
            "--outcome": "list export",
            "--limit": "list",
            "--format": "export",
            "--file": "verify",
            "--key": "verify",
            "--expect": "verify",
        },
        examples=(
            "audit verify --key audit-keys.pub",
            "audit list --since 2h --outcome denied",
            "audit export --format ocsf",
            "audit head",
        ),
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
        action_options={
            "--as": "explain",
            "--group": "explain",
            "--scope": "explain",
            "--client": "explain",
            "--issuer": "explain",
            "--tool": "explain",
            "--prompt": "explain",
            "--resource": "explain",
            "--args": "explain",
        },
        examples=("policy explain gateway.toml --as alice --tool files.write_file", "policy test gateway.toml"),
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
                flag("--expires", metavar="DAYS", type=count, help="after so many days (default: never)"),
            ),
            "revoke": (
                flag("--upstream", metavar="ALIAS", help="the account at this upstream alone"),
                flag("--store", metavar="URL", help="the server's database (default: PORTICO_STORE, or access.db)"),
                flag("--data", metavar="DIR", help="the data directory with access.db"),
            ),
        },
        'The server reads the file with --auth-tokens FILE, or with tokens = "FILE" in [auth], and again when it '
        "changes.",
        action_options={
            "--file": "add list remove",
            "--scope": "add",
            "--group": "add",
            "--all": "add",
            "--expires": "add",
            "--upstream": "revoke",
            "--store": "revoke",
            "--data": "revoke",
        },
        examples=("tokens add ci --scope read --expires 90", "tokens list", "tokens remove ci", "tokens revoke alice"),
    ),
}
