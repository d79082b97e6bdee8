"""Error ids: the client receives the id of a failure, and the operator finds the details under it in the log."""

from __future__ import annotations

import logging
import os


def log_failure(log: logging.Logger, where: str, failure: object) -> str:
    """Log a failure whose text must not reach clients, such as one with an address. Return its error id."""
    error_id = os.urandom(4).hex()
    log.warning("error %s: %s: %s", error_id, where, failure)
    return error_id
