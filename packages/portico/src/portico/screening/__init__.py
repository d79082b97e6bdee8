"""Secrets and personal data, found before anything is stored.

`find` says where they are, `redact` takes them out, and `screen` does what `Rules` say: block, redact or allow.
"""

from portico.screening.detector import find, scan
from portico.screening.findings import Finding, redact
from portico.screening.policy import NAMES, Action, Rules, Screened, screen

__all__ = ["NAMES", "Action", "Finding", "Rules", "Screened", "find", "redact", "scan", "screen"]
