"""What can be typed behind `portico memory`. Nothing heavy is imported here, because TAB reads it too."""

from __future__ import annotations

from portico.cli.forms import OUTPUTS, Parser

ERRANDS = ("capture", "recall", "list", "show", "edit", "delete", "sync", "export", "import", "stats", "model", "hook")
HOOKS = ("session-start", "user-prompt-submit", "post-tool-use", "pre-compact", "stop")
USAGE = """\
portico memory capture TEXT … | recall WORDS … | list | show ID | edit ID TEXT … | delete ID …
       portico memory sync | export | import [FILE] | stats | model | hook NAME [options]"""
ABOUT = """\
What should still be known tomorrow. A TEXT of - is read from standard input.

  capture TEXT      store a memory            edit ID TEXT   change one
  recall WORDS      find memories             delete ID …    delete some; --hard for good
  list              the newest                show ID        one with its history
  export, import    as JSON lines or Markdown
  sync              share those of this project through its git repository
  stats             how many there are        model          get what finds them by their meaning (91 MB, once)
  hook NAME         answer an assistant's hook: session-start, user-prompt-submit, post-tool-use, pre-compact, stop"""


def memory_form() -> Parser:
    parser = Parser("memory", USAGE, ABOUT, "Exit status: 0; 1 when it was refused; 2 for a mistake on this line.")
    parser.add_argument("errand", choices=ERRANDS, metavar="ERRAND")
    parser.add_argument("words", nargs="*", default=[], metavar="WORD")
    flag = parser.flag
    flag("-n", "--namespace", metavar="NAME", help="what kind of memory (capture: guessed when left out)")
    flag("-t", "--tag", action="append", default=[], metavar="TAG", help="a tag; may be repeated")
    flag("-f", "--filter", default="", metavar="FILTER", help="conditions, such as 'ns:decisions since:7d -tag:old'")
    flag("--domain", choices=["project", "user", "org"], default="project", help="whose it is (default: %(default)s)")
    flag("--source", metavar="TEXT", help="where it comes from")
    flag("--author", metavar="NAME", help="who said it")
    flag("--thread", metavar="NAME", help="what it belongs to")
    flag("--ttl", metavar="SPAN", help="how long it is kept: 7d, 24h")
    flag("--limit", type=int, metavar="N", help="at most so many")
    flag("--hard", action="store_true", help="delete for good")
    flag("--format", choices=["jsonl", "markdown"], default="jsonl", help="of export and import (default: %(default)s)")
    flag("--direction", choices=["push", "fetch", "full"], default="full", help="of sync (default: %(default)s)")
    flag("--remote", metavar="NAME", help="of sync: a remote of the repository (default: origin)")
    flag("--project", metavar="NAME", help="instead of the repository this folder is in")
    flag(
        "--secrets",
        choices=["block", "redact", "allow"],
        default="block",
        help="found in a text (default: %(default)s)",
    )
    flag(
        "--personal",
        choices=["block", "redact", "allow"],
        default="allow",
        help="data about people, the same (default: %(default)s)",
    )
    flag("-o", "--output", choices=OUTPUTS, help="default: a table on a terminal, JSON otherwise")
    flag("--store", metavar="URL", help="a path, sqlite:///path or postgresql://… (default: PORTICO_STORE)")
    flag("--data", metavar="DIR", help="the data directory (default: PORTICO_DATA)")
    return parser
