"""The commands of the services: contracts, memory and tasks."""

from __future__ import annotations

from portico.cli.specs.options import JSON, SHORT_OUTPUT, STORE, asking_form, limit
from portico.cli.specs.parser import CommandForm, flag, word

CONTRACT_ACTIONS = ("render", "lint", "diff", "codegen", "lock", "check")
MEMORY_ACTIONS = (
    "capture", "recall", "list", "show", "edit", "delete", "restore", "sync", "conflicts", "export", "import",
    "stats", "model", "hook", "hooks",
)  # fmt: skip
HOOKS = ("session-start", "user-prompt-submit", "post-tool-use", "pre-compact", "stop")
TASK_ACTIONS = (
    "add", "list", "show", "next", "start", "done", "fail", "reopen", "edit", "block", "unblock", "tree", "history",
    "note", "rm",
)  # fmt: skip
_ACTIONS = "|".join(CONTRACT_ACTIONS)
_POLICIES = ("block", "redact", "allow")

FORMS: dict[str, CommandForm] = {
    "contracts": asking_form(
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
        action_options={
            "--language": "codegen",
            "--out": "render codegen diff",
            "--lock": "diff lock check",
            "--fail-on": "diff",
            "--allow": "check",
            "--strict": "lint",
        },
        examples=(
            "contracts render my_server.py --out tools.md",
            "contracts lint my_server.py --strict",
            "contracts diff my_server.py",
            "contracts codegen my_server.py --language typescript --out client.ts",
            "contracts lock my_server.py",
            "contracts check my_server.py",
        ),
    ),
    "memory": CommandForm(
        "portico memory capture TEXT … | recall WORDS … | list | show ID | edit ID TEXT … | delete ID …\n"
        "       portico memory restore ID … | sync | conflicts | export [FILE] | import [FILE] | stats | model\n"
        "       portico memory hook NAME | hooks install|remove [options]",
        "Store and find memories. A TEXT of - is read from standard input.\n\n"
        "  capture TEXT      store a memory            edit ID TEXT   change one\n"
        "  recall WORDS      find memories             delete ID …    delete some; --hard for good\n"
        "  list              the newest                show ID        one with its history\n"
        "  restore ID …      bring back deleted ones   conflicts      those that contradict each other\n"
        "  export [FILE]     write those of this project and of the user, or --all; as JSON lines or Markdown\n"
        "  import [FILE]     read an export: all of it or nothing\n"
        "  sync              share those of this project through its git repository\n"
        "  stats             how many there are        model          get the model for search by meaning (91 MB)\n"
        f"  hook NAME         answer an assistant's hook: {', '.join(HOOKS)}\n"
        "  hooks install     add the hooks to Claude Code: show the change, --write makes it; hooks remove",
        (
            word("action", choices=MEMORY_ACTIONS, metavar="ACTION"),
            word("words", completions=HOOKS, nargs="*", default=[], metavar="WORD"),
        ),
        {
            "": (
                flag("-n", "--namespace", metavar="NAME", help="what kind of memory (capture: guessed if left out)"),
                flag("-t", "--tag", action="append", default=[], metavar="TAG", help="a tag; edit: to add; repeatable"),
                flag("--untag", action="append", default=[], metavar="TAG", help="of edit: to take off; repeatable"),
                flag("--replace-tags", action="store_true", help="of edit: the tags given replace the old ones"),
                flag("-f", "--filter", default="", metavar="FILTER", help="such as 'ns:decisions since:7d -tag:old'"),
                flag("--domain", choices=("project", "user", "org"), default="project", help="default: %(default)s"),
                flag("--source", metavar="TEXT", help="where it comes from"),
                flag("--author", metavar="NAME", help="who said it"),
                flag("--thread", metavar="NAME", help="the conversation, file or session it belongs to"),
                flag("--ttl", metavar="SPAN", help="how long it is kept: 7d, 24h"),
                limit(),
                flag("--hard", action="store_true", help="delete for good"),
                flag("--format", choices=("jsonl", "markdown"), default="jsonl", help="of export and import (jsonl)"),
                flag("--all", action="store_true", help="of export: the memories of all projects"),
                flag("--force", action="store_true", help="of export: replace a file that exists"),
                flag("--skip-invalid", action="store_true", help="of import: leave out what cannot be read or stored"),
                flag("--direction", choices=("push", "fetch", "full"), default="full", help="of sync (full)"),
                flag("--remote", metavar="NAME", help="of sync: a remote of the repository (origin)"),
                flag("--confirm", action="store_true", help="delete -f: do it; sync: also if many would be deleted"),
                flag("--undo", metavar="RUN", help="of sync: bring back what that run has deleted here"),
                flag(
                    "--project", metavar="NAME", help="instead of the repository this folder is in; its end is enough"
                ),
                flag("--scope", choices=("user", "project"), default="user", help="of hooks: for whom (%(default)s)"),
                flag("--write", action="store_true", help="of hooks: make the change instead of showing it"),
                flag("--secrets", choices=_POLICIES, default="block", help="secrets in a text (%(default)s)"),
                flag("--personal", choices=_POLICIES, default="allow", help="personal data in a text (%(default)s)"),
                SHORT_OUTPUT,
                *STORE,
            )
        },
        "Exit status: 0; 1 when it was refused; 2 for a mistake on this line.",
        action_options={
            "--namespace": "capture recall list edit export",
            "--tag": "capture recall list edit export",
            "--filter": "recall list delete export",
            "--domain": "capture",
            "--source": "capture",
            "--author": "capture",
            "--thread": "capture",
            "--ttl": "capture edit",
            "--limit": "recall list",
            "--hard": "delete",
            "--format": "export import",
            "--direction": "sync",
            "--remote": "sync",
            "--confirm": "delete sync",
            "--undo": "sync",
            "--secrets": "capture edit import sync",
            "--personal": "capture edit import sync",
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
            "memory export --format markdown",
            "memory import memories.jsonl",
            "memory stats",
            "memory model",
            "memory hook session-start",
        ),
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
                flag("--worker", metavar="NAME", help="who works on it (default: your user name); list: only theirs"),
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
                limit(50),
                flag("--children", choices=("delete", "keep"), help="of rm: the tasks below it (default: refuse)"),
                flag("--dry-run", action="store_true", help="of rm: only say what would be deleted"),
                SHORT_OUTPUT,
                JSON,
                *STORE,
            )
        },
        "Exit status: 0; 1 when it was refused, or there is nothing to do; 2 for a mistake on this line.",
        action_options={
            "--parent": "add list edit",
            "--blocked-by": "add",
            "--lease": "next start",
            "--wait": "next",
            "--status": "list",
            "--all": "list tree",
            "--ready": "list",
            "--blocked": "list",
            "--overdue": "list",
            "--due": "add list edit",
            "--label": "add list next edit",
            "--unlabel": "edit",
            "--limit": "list history",
            "--children": "rm",
            "--dry-run": "rm",
        },
        examples=(
            "tasks add 'Write the release notes' -p 2",
            "tasks list --ready",
            "tasks show 3fb8",
            "tasks next --wait",
            "tasks start 3fb8 --lease 600",
            "tasks done 3fb8 'Published'",
            "tasks fail 3fb8 'Out of date'",
            "tasks reopen 3fb8",
            "tasks edit 3fb8 --due 2026-12-01",
            "tasks block 3fb8 91c2",
            "tasks unblock 3fb8 91c2",
            "tasks tree",
            "tasks history 3fb8",
            "tasks note 3fb8 'Waiting for review'",
            "tasks rm 3fb8 --dry-run",
        ),
    ),
    "profiles": CommandForm(
        "portico profiles list | show NAME",
        "The profiles of `portico serve --profile NAME`: files of settings that make it look like another server.",
        (
            word("action", choices=("list", "show")),
            word("name", "profile", nargs="?", metavar="NAME", help="one of them, or the path of a file of your own"),
        ),
        {},
        examples=("profiles list", "profiles show subcog"),
    ),
}
