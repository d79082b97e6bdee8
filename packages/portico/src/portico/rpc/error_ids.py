"""Error ids: a client is told the id of a failure, and the operator finds the details under it in the log."""

from __future__ import annotations

import logging
import os


def log_failure(log: logging.Logger, where: str, failure: object) -> str:
    """Log a failure whose text is not for clients, such as one with an address. Returns its error id."""
    error_id = os.urandom(4).hex()
    log.warning("error %s: %s: %s", error_id, where, failure)
    return error_id
