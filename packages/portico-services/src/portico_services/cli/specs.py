"""Arguments of the services' commands."""

from __future__ import annotations

from portico.cli.specs.options import FORMAT, STORE, client_command, limit_option, report_format
from portico.cli.specs.parser import CommandSpec, Option, argument, option

CONTRACT_ACTIONS = ("render", "lint", "diff", "codegen", "lock", "check")
MEMORY_ACTIONS = (
    "capture", "recall", "list", "show", "edit", "delete", "restore", "sync", "conflicts", "export", "import",
    "stats", "download-model", "hook", "hooks",
)  # fmt: skip
HOOKS = ("session-start", "user-prompt-submit", "post-tool-use", "pre-compact", "stop")
ITEM_ACTIONS = (
    "add", "list", "show", "next", "start", "done", "fail", "reopen", "edit", "block", "unblock", "tree", "history",
    "note", "delete",
)  # fmt: skip
# As `ScreeningAction` of the memory service. Parsing must not import it: completion runs on every keystroke.
_POLICIES = ("block", "redact", "allow")


def _repeatable(*names: str, metavar: str, help: str, **options: str) -> Option:
    return option(*names, action="append", default=[], metavar=metavar, help=f"{help}; repeatable", **options)


# A table without imports of the services, so that --help and shell completion stay fast.
FORMS: dict[str, CommandSpec] = {
    "contracts": client_command(
        "contracts",
        "ACTION TARGET",
        "ACTION -- COMMAND …",
        "Lint, diff, lock and check tool contracts.\n\n"
        "  render TARGET       write the specification of each tool as Markdown\n"
        "  lint TARGET …       check the specifications of a server or of .md files\n"
        "  diff [OLD] TARGET   compare with the lock file, or with another TARGET, .md or\n"
        "                      .json file\n"
        "  codegen TARGET      write a typed client\n"
        "  lock TARGET         write the lock file\n"
        "  check TARGET        compare with the lock file and fail if they differ\n\n"
        "The exit status is 1 if there are findings.",
        (
            argument("action", choices=CONTRACT_ACTIONS, metavar="ACTION"),
            argument("targets", "targets", nargs="*", default=[], metavar="TARGET", help="server or .md file"),
        ),
        report_format("github"),
        _repeatable("--tool", dest="tools", metavar="NAME", help="only this tool"),
        option(
            "--language",
            choices=("python", "typescript"),
            default="python",
            help="codegen language (default: %(default)s)",
        ),
        option("-o", "--output", metavar="FILE", help="output file; for diff, the migration guide"),
        option("--lock-file", default="contracts.lock", metavar="FILE", help="lock file (default: %(default)s)"),
        option(
            "--fail-on",
            choices=("undeclared", "breaking", "minor", "patch", "never"),
            default="undeclared",
            help="level of change that fails a diff (default: changes that the version numbers do not declare)",
        ),
        option(
            "--allow-drift",
            choices=("nothing", "patch", "minor"),
            default="nothing",
            help="drift that passes a check (default: %(default)s)",
        ),
        option("--strict", action="store_true", help="treat warnings as errors"),
        action_options={
            "--language": "codegen",
            "--output": "render codegen diff",
            "--lock-file": "diff lock check",
            "--fail-on": "diff",
            "--allow-drift": "check",
            "--strict": "lint",
        },
        examples=(
            "contracts render my_server.py --output tools.md",
            "contracts lint my_server.py --strict",
            "contracts diff my_server.py",
            "contracts codegen my_server.py --language typescript -o client.ts",
            "contracts lock my_server.py",
            "contracts check my_server.py",
        ),
    ),
    "memory": CommandSpec(
        "portico memory ACTION [WORD …] [options]",
        "Store, search and sync memories. A TEXT of - is read from standard input.\n\n"
        "  capture TEXT      store a memory\n"
        "  recall WORDS      search memories\n"
        "  list              list the newest memories\n"
        "  show ID           show a memory with its history\n"
        "  edit ID TEXT      edit a memory\n"
        "  delete ID …       delete memories\n"
        "  restore ID …      restore deleted memories\n"
        "  conflicts         list memories that contradict each other\n"
        "  sync              sync with the project's git repository\n"
        "  export [FILE]     export the memories of this project and of the user\n"
        "  import [FILE]     import an export, all or nothing\n"
        "  stats             show counts\n"
        "  download-model    download the embedding model (91 MB)\n"
        "  hook NAME         answer an assistant hook event read from standard input\n"
        "  hooks install|remove [HOOK …]\n"
        "                    add the hooks to Claude Code, or remove them\n\n"
        f"Hooks: {', '.join(HOOKS)}.",
        (
            argument("action", choices=MEMORY_ACTIONS, metavar="ACTION"),
            argument(
                "words",
                completions=HOOKS,
                nargs="*",
                default=[],
                metavar="WORD",
                help="words of the action, as listed above",
            ),
        ),
        {
            "": (
                option("-n", "--namespace", metavar="NAME", help="kind of memory (capture: detected by default)"),
                _repeatable("-t", "--tag", metavar="TAG", help="tag"),
                _repeatable("--remove-tag", metavar="TAG", help="tag to remove"),
                option("--replace-tags", action="store_true", help="replace all tags by the values of --tag"),
                option(
                    "-f",
                    "--filter",
                    default="",
                    metavar="FILTER",
                    help="filter such as 'ns:decisions since:7d -tag:old'",
                ),
                option(
                    "--domain",
                    choices=("project", "user", "org"),
                    default="project",
                    help="domain (default: %(default)s)",
                ),
                option("--source", metavar="TEXT", help="source of the memory"),
                option("--author", metavar="NAME", help="author of the memory"),
                option("--thread", metavar="NAME", help="conversation, file or session of the memory"),
                option("--ttl", metavar="SPAN", help="time to live, such as 7d or 24h"),
                limit_option(),
                option("--permanent", action="store_true", help="delete permanently"),
                option(
                    "--export-format",
                    choices=("jsonl", "markdown"),
                    default="jsonl",
                    help="format of export and import (default: %(default)s)",
                ),
                option("--all", action="store_true", help="export the memories of all projects"),
                option("--force", action="store_true", help="overwrite an existing export"),
                option("--skip-invalid", action="store_true", help="skip entries that cannot be imported"),
                option(
                    "--direction",
                    choices=("push", "fetch", "full"),
                    default="full",
                    help="sync direction (default: %(default)s)",
                ),
                option("--remote", metavar="NAME", help="git remote to sync with (default: origin)"),
                option(
                    "--allow-bulk-delete",
                    action="store_true",
                    help="allow a sync or a filter to delete many local memories",
                ),
                option("--undo-run", metavar="RUN", help="restore the memories deleted by this sync run"),
                option("--project", metavar="NAME", help="project (default: the git repository of this directory)"),
                option(
                    "--scope",
                    choices=("user", "project"),
                    default="user",
                    help="hooks of the user or of the project (default: %(default)s)",
                ),
                option("--write", action="store_true", help="write the hooks instead of showing the change"),
                option(
                    "--secrets", choices=_POLICIES, default="block", help="policy for secrets (default: %(default)s)"
                ),
                option(
                    "--pii", choices=_POLICIES, default="allow", help="policy for personal data (default: %(default)s)"
                ),
                FORMAT,
                *STORE,
            )
        },
        "Exit status: 0 success; 1 refused; 2 usage error.",
        action_options={
            "--namespace": "capture recall list edit export",
            "--tag": "capture recall list edit export",
            "--remove-tag": "edit",
            "--replace-tags": "edit",
            "--filter": "recall list delete export",
            "--domain": "capture",
            "--source": "capture",
            "--author": "capture",
            "--thread": "capture",
            "--ttl": "capture edit",
            "--limit": "recall list conflicts",
            "--permanent": "delete",
            "--export-format": "export import",
            "--all": "export",
            "--force": "export",
            "--skip-invalid": "import",
            "--direction": "sync",
            "--remote": "sync",
            "--allow-bulk-delete": "delete sync",
            "--undo-run": "sync",
            "--scope": "hooks",
            "--write": "hooks",
            "--secrets": "capture edit import sync",
            "--pii": "capture edit import sync",
        },
        examples=(
            "memory capture 'The API listens on port 8080' -t api",
            "memory recall which port",
            "memory list -n decisions --limit 20",
            "memory show 3fb8b4e9",
            "memory edit 3fb8b4e9 'The API listens on port 9090'",
            "memory delete 3fb8b4e9",
            "memory restore 3fb8b4e9",
            "memory sync --direction push",
            "memory export --export-format markdown",
            "memory import memories.jsonl",
            "memory stats",
            "memory download-model",
            "memory hook session-start",
        ),
    ),
    "items": CommandSpec(
        "portico items ACTION [WORD …] [options]",
        "Manage work items. An ID may be any unique beginning or end of an item's ID.\n\n"
        "  add TEXT          create an item\n"
        "  list [WORD …]     list open items, or items that contain all words\n"
        "  show ID           show an item\n"
        "  next              lease the next item that is ready\n"
        "  start ID          lease an item\n"
        "  done ID [RESULT]  complete an item\n"
        "  fail ID [REASON]  fail an item\n"
        "  reopen ID         set an item back to pending\n"
        "  edit ID [TEXT]    edit an item\n"
        "  block ID BY …     add blockers to an item\n"
        "  unblock ID BY …   remove blockers from an item\n"
        "  tree [ID]         show items with their children\n"
        "  history ID        show the changes of an item\n"
        "  note ID TEXT      add a note to an item\n"
        "  delete ID …       delete items",
        (
            argument("action", choices=ITEM_ACTIONS, metavar="ACTION"),
            argument("words", nargs="*", default=[], metavar="WORD", help="words of the action, as listed above"),
        ),
        {
            "": (
                option(
                    "-p",
                    "--priority",
                    type=int,
                    choices=range(1, 6),
                    metavar="N",
                    help="priority: 1 (most urgent) to 5 (default: 3)",
                ),
                option("--parent", metavar="ID", help="parent item"),
                _repeatable("--blocked-by", metavar="ID", help="item that blocks this one"),
                option("--context", metavar="TEXT", help="context for the worker"),
                option("--worker", metavar="NAME", help="worker (default: your user name)"),
                option("--lease-seconds", type=int, metavar="N", help="lease duration for next and start"),
                option("--wait", action="store_true", help="wait until an item is available"),
                option(
                    "-s",
                    "--status",
                    choices=("pending", "in_progress", "completed", "failed"),
                    metavar="STATUS",
                    help="only items with this status: pending, in_progress, completed or failed",
                ),
                option("--all", action="store_true", help="include completed and failed items"),
                option("--ready", action="store_true", help="only items that can be started, the next one first"),
                option("--blocked", action="store_true", help="only blocked items"),
                option("--overdue", action="store_true", help="only overdue items"),
                option("--due", metavar="DATE", help="due date; '' removes it; with list: due before"),
                option("-l", "--label", action="append", dest="add_labels", metavar="LABEL", help="label; repeatable"),
                option(
                    "--remove-label",
                    action="append",
                    dest="remove_labels",
                    metavar="LABEL",
                    help="label to remove; repeatable",
                ),
                option("--project", metavar="NAME", help="project; '*' for all (default: that of this directory)"),
                limit_option(50),
                option(
                    "--children", choices=("delete", "keep"), help="child items of a deleted item (default: refuse)"
                ),
                option("--dry-run", action="store_true", help="show the items that would be deleted"),
                FORMAT,
                *STORE,
            )
        },
        "Exit status: 0 success; 1 refused, or no item is available; 2 usage error.",
        action_options={
            "--priority": "add edit",
            "--parent": "add list next edit",
            "--blocked-by": "add",
            "--context": "add edit",
            "--worker": "list next start done fail note",
            "--lease-seconds": "next start",
            "--wait": "next",
            "--status": "list",
            "--all": "list tree",
            "--ready": "list",
            "--blocked": "list",
            "--overdue": "list",
            "--due": "add list edit",
            "--label": "add list next edit",
            "--remove-label": "edit",
            "--limit": "list history",
            "--children": "delete",
            "--dry-run": "delete",
        },
        examples=(
            "items add 'Write the release notes' -p 2",
            "items list --ready",
            "items show 3fb8",
            "items next --wait",
            "items start 3fb8 --lease-seconds 600",
            "items done 3fb8 'Published'",
            "items fail 3fb8 'Out of date'",
            "items reopen 3fb8",
            "items edit 3fb8 --due 2026-12-01",
            "items block 3fb8 91c2",
            "items unblock 3fb8 91c2",
            "items tree",
            "items history 3fb8",
            "items note 3fb8 'Waiting for review'",
            "items delete 3fb8 --dry-run",
        ),
    ),
    "profiles": CommandSpec(
        "portico profiles list | show NAME",
        "List or show the profiles of `portico serve --profile NAME`: settings files that\n"
        "make it compatible with another server.",
        (
            argument("action", choices=("list", "show")),
            argument("name", "profile", nargs="?", metavar="NAME", help="profile, or the path of your own file"),
        ),
        {"": (report_format(),)},
        action_options={"--format": "list"},
        examples=("profiles list", "profiles show subcog"),
    ),
}
