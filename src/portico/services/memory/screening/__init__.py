"""Secrets and personal data, found before anything is stored.

`find` says where they are, `redact` takes them out, and `screen` does what `Rules` say: block, redact or allow.
"""

from portico.services.memory.screening.detector import find, scan
from portico.services.memory.screening.findings import Finding, redact
from portico.services.memory.screening.rules import NAMES, Rules, Screened, screen

__all__ = ["NAMES", "Finding", "Rules", "Screened", "find", "redact", "scan", "screen"]
