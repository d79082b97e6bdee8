"""Usage of a server: calls, errors, latency and estimated tokens, aggregated from its audit log.

The audit log has one record for each call, so usage costs nothing while calls are served.
"""

from __future__ import annotations

import csv
import io
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, get_args

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from portico.definitions.invisible_chars import visible
from portico.rpc.metrics import DURATION_BUCKETS_SECONDS, quantile
from portico.store.transaction import Transaction
from portico.tokens import tokens_from_bytes
from portico_gateway.audit.queries import iter_bodies
from portico_gateway.policy.budget_report import ANONYMOUS_PRINCIPAL, LOCAL_PRINCIPAL, RemainingBudget

UsageDimension = Literal["tool", "upstream", "client", "principal"]
USAGE_DIMENSIONS: tuple[UsageDimension, ...] = get_args(UsageDimension)
# Clients choose their names, so the number of groups is bounded; the rest is added up in one.
MAX_GROUPS = 10_000
OTHER_GROUP, REJECTED_GROUP = "(other)", "(rejected)"
# Requests that are calls. The other records are of lists, completions and tasks.
CALL_METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})
ERROR_OUTCOMES = frozenset({"error", "denied", "unknown", "invalid", "failed", "limited", "refused"})
# The client is asked first, or a task has been created: the call ends later, with another record.
_UNFINISHED_OUTCOMES = frozenset({"asked", "task"})
_REJECTED_OUTCOMES = frozenset({"limited", "refused"})
_VERSION = re.compile(r"v?\d\S*")


class UsageRecord(Struct, gc=False):
    """The members of an audit record that usage needs. Arguments are never read."""

    kind: str = "call"
    method: str = ""
    owner: str = ""
    name: str = ""
    principal: str = ""
    issuer: str = ""
    client: str = ""
    client_id: str = ""
    address: str = ""
    outcome: str = ""
    micros: int = 0
    received: int = 0
    sent: int = 0
    upstream: str = ""
    inner: bool = False
    job: str = ""


class UsageGroup(Struct):
    """Usage of one tool, upstream, client or principal."""

    name: str
    calls: int = 0
    errors: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    # Histogram of the durations, by `DURATION_BUCKETS_SECONDS`.
    counts: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BUCKETS_SECONDS) + 1))

    def add(self, record: UsageRecord) -> None:
        """Count a record."""
        if not record.inner and not record.job:
            # The result of a nested call does not reach the client, and a task belongs to the call that created it.
            self.tokens_in += tokens_from_bytes(record.received)
            self.tokens_out += tokens_from_bytes(record.sent)
        # A call that asks the client is counted with its last round; one that creates a task immediately.
        self.calls += not record.job and record.outcome != "asked"
        self.errors += record.outcome in ERROR_OUTCOMES
        if record.outcome not in _UNFINISHED_OUTCOMES:
            self.counts[bisect_left(DURATION_BUCKETS_SECONDS, record.micros / 1e6)] += 1


class UsageRow(Struct, frozen=True, omit_defaults=True):
    """One line of a usage report. Durations are in milliseconds, None without completed calls."""

    name: str
    calls: int
    errors: int
    p50_ms: float | None
    p95_ms: float | None
    # Estimated tokens of requests and of responses.
    tokens_in: int
    tokens_out: int
    # Of a principal: monthly budgets that it has used.
    budgets: list[RemainingBudget] = []


class UsageReport(Struct, frozen=True):
    """Usage by one dimension, the most calls first, and the total."""

    by: UsageDimension
    rows: list[UsageRow]
    total: UsageRow

    def add_budgets(self, budgets: Mapping[str, list[RemainingBudget]]) -> UsageReport:
        """Return the report of principals with their budgets."""
        rows = [replace(row, budgets=budgets[row.name]) if row.name in budgets else row for row in self.rows]
        return replace(self, rows=rows)


def read_usage(tx: Transaction, by: UsageDimension, since: int, until: int) -> UsageReport:
    """Aggregate the records of a period, given in microseconds since 1970; `until` is exclusive."""
    return aggregate_usage(_iter_records(tx, since, until), by)


def _iter_records(tx: Transaction, since: int, until: int) -> Iterable[UsageRecord]:
    decode = msgspec.json.Decoder(UsageRecord).decode
    for body in iter_bodies(tx, since, until):
        try:
            yield decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            continue  # changed after it was written; `portico audit verify` reports that


def aggregate_usage(records: Iterable[UsageRecord], by: UsageDimension) -> UsageReport:
    """Aggregate audit records by a dimension."""
    groups: dict[str, UsageGroup] = {}
    total = UsageGroup("total")
    name_of = _GROUP_NAMES[by]
    for record in records:
        if record.kind != "call" or record.method not in CALL_METHODS:
            continue
        name = name_of(record)
        group = groups.get(name)
        if group is None:
            if by == "tool" and record.outcome in _REJECTED_OUTCOMES:
                # Rejected before the tool was looked up, so the client may have invented the name.
                name = REJECTED_GROUP
            elif len(groups) >= MAX_GROUPS:
                name = OTHER_GROUP
            group = groups.setdefault(name, UsageGroup(name))
        group.add(record)
        total.add(record)
    rows = sorted((_row(group) for group in groups.values()), key=lambda row: (-row.calls, row.name))
    return UsageReport(by, rows, _row(total))


def _row(group: UsageGroup) -> UsageRow:
    p50, p95 = (
        None if seconds is None else round(seconds * 1000, 3)
        for seconds in (quantile(group.counts, 0.5), quantile(group.counts, 0.95))
    )
    return UsageRow(group.name, group.calls, group.errors, p50, p95, group.tokens_in, group.tokens_out)


# Names of groups. Names in parentheses cannot be confused with names of components, which have a dot.


def _tool(record: UsageRecord) -> str:
    # Clients invent unknown names, and URIs of resources may contain data.
    if record.method != "tools/call":
        return f"({record.method})"
    return "(unknown tool)" if record.outcome == "unknown" else f"{record.owner}.{record.name}"


def _upstream(record: UsageRecord) -> str:
    return record.upstream or "(this server)"


def _client(record: UsageRecord) -> str:
    """Return the name of the client without its version."""
    name, _, version = record.client.rpartition(" ")
    return (name if name and _VERSION.fullmatch(version) else record.client) or record.client_id or "(unknown client)"


def _principal(record: UsageRecord) -> str:
    """Return the principal as rules name it: two issuers may use the same id for different users."""
    if not record.principal:
        return ANONYMOUS_PRINCIPAL if record.address else LOCAL_PRINCIPAL
    return f"{record.issuer}#{record.principal}" if record.issuer else record.principal


_GROUP_NAMES: dict[UsageDimension, Callable[[UsageRecord], str]] = {
    "tool": _tool,
    "upstream": _upstream,
    "client": _client,
    "principal": _principal,
}


# Spreadsheets

# A cell that begins with one of these is a formula in a spreadsheet (OWASP, CSV injection). A cell also begins after a
# semicolon where a decimal comma is usual.
_FORMULA_START = re.compile('(^|;)(?=[ "\u200c\u200d]*[=+@＝＋－＠-])')


def format_csv(rows: Sequence[UsageRow]) -> str:
    """Return rows as CSV with a header. Names that a spreadsheet would execute begin with an apostrophe."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    *columns, last = UsageRow.__struct_fields__
    has_budgets = any(row.budgets for row in rows)
    writer.writerow([*columns, last] if has_budgets else columns)
    for row in rows:
        name, *numbers, budgets = msgspec.structs.astuple(row)
        cells = [_escape_cell(name), *("" if number is None else number for number in numbers)]
        writer.writerow([*cells, _escape_cell("; ".join(map(str, budgets)))] if has_budgets else cells)
    return text.getvalue()


def _escape_cell(text: str) -> str:
    # Invisible characters, which a spreadsheet may skip before a formula, are written as escapes.
    line = " ".join(visible(text).split())
    return _FORMULA_START.sub(r"\1'", line)
