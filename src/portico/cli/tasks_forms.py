"""What can be typed behind `portico tasks`. Nothing heavy is imported here, because TAB reads it too."""

from __future__ import annotations

from portico.cli.forms import OUTPUTS, Parser

ERRANDS = (
    "add", "list", "show", "next", "start", "done", "fail", "reopen", "edit", "block", "unblock", "tree", "history",
    "rm",
)  # fmt: skip
STATUSES = ("pending", "in_progress", "completed", "failed")
USAGE = """\
portico tasks add TEXT … | list [WORD …] | show ID | next | start ID | done ID [RESULT …] | fail ID [REASON …]
       portico tasks reopen ID | edit ID [TEXT …] | block ID BY … | unblock ID BY … | tree [ID] | history ID
       portico tasks rm ID … [options]"""
ABOUT = """\
Work items: what is to be done, and in which order. An ID may be cut short to a beginning or an end that only one has.

  add TEXT          make a task               list [WORD …]   the open ones; those that contain all of these words
  next              get something to do       show ID         one with everything
  start ID          begin one                 tree [ID]       a task and its parts, or all of them
  done ID [RESULT]  it is completed           history ID      what was done to it
  fail ID [REASON]  it is given up            reopen ID       it is to be done again, or by somebody else
  block ID BY …     it waits for others       unblock ID BY … it does not
  edit ID [TEXT]    change it                 rm ID …         delete some"""
STATUS = "Exit status: 0; 1 when it was refused, or there is nothing to do; 2 for a mistake on this line."


def tasks_form() -> Parser:
    parser = Parser("tasks", USAGE, ABOUT, STATUS)
    parser.add_argument("errand", choices=ERRANDS, metavar="ERRAND")
    parser.add_argument("words", nargs="*", default=[], metavar="WORD")
    flag = parser.flag
    flag("-p", "--priority", type=int, choices=range(1, 6), metavar="N", help="1 is the most urgent, 5 the least (3)")
    flag("--parent", metavar="ID", help="what it is a part of; list: only its children")
    flag("--blocked-by", action="append", default=[], metavar="ID", help="of add: what it waits for; may be repeated")
    flag("--context", metavar="TEXT", help="what a worker has to know")
    flag("--worker", metavar="NAME", help="who works on it (default: your user name)")
    flag("--lease", type=int, metavar="SECONDS", help="of next and start: how long it is yours (default: for ever)")
    flag("-s", "--status", choices=STATUSES, help="of list: only these")
    flag("--all", action="store_true", help="of list and tree: also what is over")
    flag("--ready", action="store_true", help="of list: what can be begun, the next one first")
    flag("--blocked", action="store_true", help="of list: what waits for a blocker")
    flag("--limit", type=int, default=50, metavar="N", help="at most so many (default: %(default)s)")
    flag("--children", choices=["delete", "keep"], help="of rm: what becomes of the tasks below (default: refuse)")
    flag("--dry-run", action="store_true", help="of rm: only say what would be deleted")
    flag("-o", "--output", choices=OUTPUTS, help="default: a table on a terminal, JSON otherwise")
    flag("--json", action="store_const", const="json", dest="output", help="the same as --output json")
    flag("--store", metavar="URL", help="a path, sqlite:///path or postgresql://… (default: PORTICO_STORE)")
    flag("--data", metavar="DIR", help="the data directory (default: PORTICO_DATA)")
    return parser
