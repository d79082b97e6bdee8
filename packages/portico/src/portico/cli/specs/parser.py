"""What a form is made of, and the parser that is made of it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, NoReturn

# Where no terminal says how wide it is.
USUAL_WIDTH = 80
# In the help of a command.
MAX_EXAMPLES = 4


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
        # The actions that an option belongs to, and the parser with the options of one action.
        self.owners: dict[str, str] = {}
        self.actions: dict[str, Callable[[], Parser]] = {}

    def read(self, words: list[str]) -> argparse.Namespace:
        """Parse a command line. Options may stand before the words, behind and between them."""
        typed = words[: words.index("--")] if "--" in words else words
        if {"-h", "--help"}.intersection(typed) and (action := next(filter(self.actions.__contains__, typed), None)):
            self.actions[action]().print_help()
            self.exit(0)
        arguments = self.parse_intermixed_args(words)
        self._check_options(typed, getattr(arguments, "action", ""))
        return arguments

    def _check_options(self, typed: list[str], action: str) -> None:
        """Refuse an option of another action: it would be ignored."""
        for flag in self.flags:
            owners = self.owners.get(flag.option_strings[-1], "").split()
            if not owners or action in owners:
                continue
            short = tuple(name for name in flag.option_strings if not name.startswith("--"))
            for word in typed:
                if word.partition("=")[0] in flag.option_strings or (short and word.startswith(short)):
                    name = flag.option_strings[-1]
                    self.error(f"{name} is an option of {' and '.join(owners)}, not of {action}")

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
    # What it may be, where that depends on another word.
    completions: tuple[str, ...] = ()


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
    # The actions that an option belongs to, separated by spaces. Other options belong to all actions.
    action_options: dict[str, str] = {}
    # Without the leading `portico`.
    examples: tuple[str, ...] = ()

    def parser(self, command: str, *, with_target: bool = True, action: str = "") -> Parser:
        """Return the parser of a command; with an action, one whose help has only the options of that action."""
        owners = self.action_options
        epilog = f"{self._examples(command, action)}\n{self.epilog}"
        usage = self.usage
        if action:
            words = [one.options.get("metavar", one.name.upper()) for one in self.words if one.name != "action"]
            usage = " ".join(["portico", command, action, *(f"[{name} …]" for name in words), "[options]"])
        parser = Parser(command, usage, "" if action else self.about, epilog)
        parser.owners = owners
        if not action and owners:
            choices = next(one.options["choices"] for one in self.words if one.name == "action")
            parser.actions = {one: partial(self.parser, command, action=one) for one in choices}
        for word in self.words:
            if (with_target or word.name != "target") and not (action and word.name == "action"):
                parser.add_argument(word.name, **word.options)
                parser.completes.append(word)
        for heading, flags in self.flags.items():
            group = parser.add_argument_group(heading) if heading else parser
            shown = [one for one in flags if not action or action in owners.get(one.names[-1], action).split()]
            parser.flags += [group.add_argument(*flag.names, **flag.options) for flag in shown]
        return parser

    def _examples(self, command: str, action: str = "") -> str:
        """Return the examples of a command, or of one of its actions, as they are shown in its help."""
        begin = f"{command} {action}".strip()
        lines = [line for line in self.examples if f"{line} ".startswith(f"{begin} ")][:MAX_EXAMPLES]
        return "".join(["Examples:\n" if len(lines) > 1 else "Example:\n", *(f"  portico {line}\n" for line in lines)])


def word(name: str, kind: str = "", *, completions: tuple[str, ...] = (), **options: Any) -> Word:
    return Word(name, kind, options, completions)


def flag(*names: str, **options: Any) -> Flag:
    return Flag(names, options)
