"""`portico usage`: calls, errors, latency and estimated tokens, from the audit log."""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from portico.cli.output import Printer
from portico.cli.specs import parser_for
from portico.protocol.errors import UsageError
from portico.store.data_directory import named_store, resolve_data_directory
from portico.store.database import Database, parse_database_url
from portico.store.errors import InvalidStatement
from portico_gateway.audit.usage import UsageReport, UsageRow, format_csv, read_usage
from portico_gateway.cli.audit_store import find_audit_store, parse_moment, read_audit_store
from portico_gateway.policy.budget_report import RemainingBudget, read_remaining_budgets
from portico_gateway.policy.settings import BUDGET_FILE_NAME
from portico_gateway.policy.shared_limit_store import current_month, month_end, previous_month

_MONTH = re.compile(r"(\d{4})-(0[1-9]|1[0-2])")
_US_PER_SECOND = 1_000_000


def run(words: list[str]) -> int:
    """Run `portico usage`."""
    return asyncio.run(_run(parser_for("usage").parse(words)))


async def _run(arguments: argparse.Namespace) -> int:
    printer = Printer(arguments.format)
    since, until = _parse_period(arguments)
    report: UsageReport = await read_audit_store(arguments, lambda tx: read_usage(tx, arguments.by, since, until))
    if arguments.by == "principal" and since <= time.time_ns() // 1000 < until:
        report = report.add_budgets(await _read_budgets(arguments, [row.name for row in report.rows]))
    if printer.format == "csv":
        printer.write_raw(format_csv(report.rows))
    elif printer.is_json:
        printer.json_list(report.rows)
    elif report.rows:
        # Name the store, since a running server may use another one.
        store = find_audit_store(arguments)
        source = "the store" if "://" in store else store
        printer.print_error(f"usage from {_format_time(since)} to {_format_time(until)}, from {source}")
        headings = (arguments.by.upper(), "CALLS", "ERRORS", "P50 MS", "P95 MS", "TOKENS IN", "TOKENS OUT")
        printer.print_table(headings, [_format_row(row) for row in (*report.rows, report.total)])
        budgets = [
            (row.name, budget.name, f"{budget.left:,}", f"{budget.amount:,}", budget.unit)
            for row in report.rows
            for budget in row.budgets
        ]
        if budgets:
            printer.write_raw("\n")
            printer.print_table(("PRINCIPAL", "BUDGET", "LEFT THIS MONTH", "OF", "UNIT"), budgets)
    else:
        printer.print_error(
            f"no calls from {_format_time(since)} to {_format_time(until)}; calls over stdio are recorded with "
            "include_stdio = true in [audit]"
        )
    printer.flush()
    return 0


async def _read_budgets(arguments: argparse.Namespace, principals: list[str]) -> dict[str, list[RemainingBudget]]:
    """Return the remaining monthly budgets of principals, from the store of the budgets."""
    store = named_store(arguments.store) or str(resolve_data_directory(arguments.data) / BUDGET_FILE_NAME)
    engine, address = parse_database_url(store)
    if engine == "sqlite" and not Path(address).exists():  # noqa: ASYNC240
        return {}  # opening it would create it
    async with Database(store, max_connections=1) as database:
        try:
            return await database.read(partial(read_remaining_budgets, principals=principals))
        except InvalidStatement:
            return {}  # no limit of this store has a budget


def _format_row(row: UsageRow) -> tuple[str, ...]:
    durations = ("-" if ms is None else f"{ms:,.1f}" for ms in (row.p50_ms, row.p95_ms))
    return (row.name, f"{row.calls:,}", f"{row.errors:,}", *durations, f"{row.tokens_in:,}", f"{row.tokens_out:,}")


def _format_time(at: int) -> str:
    return datetime.fromtimestamp(at / _US_PER_SECOND, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _parse_period(arguments: argparse.Namespace) -> tuple[int, int]:
    """Return the begin and the end of the period in microseconds since 1970: by default the current month."""
    if arguments.month is not None and (arguments.since is not None or arguments.until is not None):
        raise UsageError("--month cannot be combined with --since and --until")
    now = time.time_ns() // 1000
    if arguments.since is None and arguments.until is None:
        return _month_bounds(_parse_month(arguments.month))
    until = now + 1 if arguments.until is None else parse_moment(arguments.until)
    if arguments.since is not None:
        since = parse_moment(arguments.since)
    else:
        since = _month_bounds(current_month(until / _US_PER_SECOND))[0]
    if since >= until:
        raise UsageError(f"--since must be before --until, got {_format_time(since)} and {_format_time(until)}")
    return since, until


def _parse_month(text: str | None) -> int:
    if text is None:
        return current_month(time.time())
    match = _MONTH.fullmatch(text)
    if match is None or int(match[1]) < 1970:
        raise UsageError(f"invalid month {text[:20]!r}: expected a form such as 2026-11")
    return int(match[1]) * 100 + int(match[2])


def _month_bounds(month: int) -> tuple[int, int]:
    return int(month_end(previous_month(month))) * _US_PER_SECOND, int(month_end(month)) * _US_PER_SECOND
