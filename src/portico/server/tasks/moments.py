"""Milliseconds as the protocol writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
