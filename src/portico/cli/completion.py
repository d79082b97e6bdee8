"""`portico completion`"""

from __future__ import annotations

import sys
from pathlib import Path

from portico.cli.forms import completion_form
from portico.cli.writing import writing

SCRIPTS = Path(__file__).parent / "scripts"


def run(words: list[str]) -> None:
    shell = completion_form().parse_args(words).shell
    with writing():
        sys.stdout.write((SCRIPTS / f"portico.{shell}").read_text(encoding="utf-8"))
        sys.stdout.flush()
