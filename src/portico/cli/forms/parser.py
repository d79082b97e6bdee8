"""What a form is made of, and the parser that is made of it."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NamedTuple, NoReturn


class Parser(argparse.ArgumentParser):
    """argparse with our messages. `flags` and `completes` are for completion: the options, and what each positional
    argument is."""

    def __init__(self, command: str, usage: str, about: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"portico {command}".rstrip(),
            usage=usage,
            description=about,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.flags: list[argparse.Action] = []
        self.completes: list[Word] = []

    def read(self, words: list[str]) -> argparse.Namespace:
        """What was typed. Options may stand before the words, behind and between them."""
        return self.parse_intermixed_args(words)

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"portico: {message}\n")


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
