"""What a form is made of, and the parser that is made of it."""

from __future__ import annotations

import argparse
import os
import sys
from functools import cache
from typing import Any, NamedTuple, NoReturn

# Where no terminal says how wide it is.
USUAL_WIDTH = 80


@cache
def _width() -> int:
    """How wide help is: as the environment says, or the terminal."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said):
        return int(said) - 2
    try:
        return (os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ else 1).columns or USUAL_WIDTH) - 2
    except (OSError, ValueError):
        return USUAL_WIDTH - 2


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """argparse makes one for every option. Without a width it asks `shutil`, which loads three compressors."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_width())


class Parser(argparse.ArgumentParser):
    """argparse with our messages. `flags` and `completes` are for completion: the options, and what each positional
    argument is."""

    def __init__(self, command: str, usage: str, about: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"portico {command}".rstrip(),
            usage=usage,
            description=about,
            epilog=epilog,
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
        )
        self.flags: list[argparse.Action] = []
        self.completes: list[Word] = []

    def read(self, words: list[str]) -> argparse.Namespace:
        """What was typed. Options may stand before the words, behind and between them."""
        return self.parse_intermixed_args(words)

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"portico: {message}{self._suggestion(message)}\n")

    def _suggestion(self, message: str) -> str:
        """Return the options that may have been meant by those that were not recognized."""
        head, _, words = message.partition("unrecognized arguments: ")
        if head or not words:
            return ""
        # Only needed here.
        from difflib import get_close_matches

        known = list(self._option_string_actions)
        typed = [word.partition("=")[0] for word in words.split() if word.startswith("-")]
        # Two letters in the wrong order are the likeliest mistake.
        near = [
            [one for one in known if sorted(one) == sorted(word)] or get_close_matches(word, known, n=1)
            for word in typed
        ]
        meant = [f"{word}: did you mean {one[0]}?" for word, one in zip(typed, near, strict=True) if one]
        return f" ({'; '.join(meant)})" if meant else ""


class Word(NamedTuple):
    """A positional argument. `kind` says how it is completed: see `completion`."""

    name: str
    kind: str
    options: dict[str, Any]


class Flag(NamedTuple):
    names: tuple[str, ...]
    options: dict[str, Any]


class CommandForm(NamedTuple):
    usage: str
    about: str
    words: tuple[Word, ...]
    # By the heading that they stand under in the help.
    flags: dict[str, tuple[Flag, ...]]
    epilog: str = ""

    def parser(self, command: str, *, with_target: bool = True) -> Parser:
        parser = Parser(command, self.usage, self.about, self.epilog)
        for word in self.words:
            if with_target or word.name != "target":
                parser.add_argument(word.name, **word.options)
                parser.completes.append(word)
        for heading, flags in self.flags.items():
            group = parser.add_argument_group(heading) if heading else parser
            parser.flags += [group.add_argument(*flag.names, **flag.options) for flag in flags]
        return parser


def word(name: str, kind: str = "", **options: Any) -> Word:
    return Word(name, kind, options)


def flag(*names: str, **options: Any) -> Flag:
    return Flag(names, options)
