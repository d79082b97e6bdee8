"""Detection of secrets and personal data before anything is stored.

`find` locates them, `redact` removes them, and `screen` applies a `ScreeningPolicy`: block, redact or allow.
"""

from portico.screening.detector import find, iter_findings
from portico.screening.findings import Finding, redact
from portico.screening.policy import FINDING_NAMES, Action, ScreeningPolicy, ScreeningResult, screen

__all__ = [
    "FINDING_NAMES",
    "Action",
    "Finding",
    "ScreeningPolicy",
    "ScreeningResult",
    "find",
    "iter_findings",
    "redact",
    "screen",
]
