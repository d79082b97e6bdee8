"""Command specifications and the argument parser that is built from them."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, NoReturn

# Width of help if the terminal does not report one.
DEFAULT_WIDTH_COLUMNS = 80
# Examples in the help of a command.
MAX_EXAMPLES = 4
# Shorter lines end a paragraph or belong to a list.
MIN_WRAPPED_CHARS = 50
# Operands that consist of any number of words.
_MANY_WORDS = ("…", "TEXT", "WORDS", "RESULT", "REASON")
# A line of a list of actions: `  edit ID [TEXT]    edit an item`. The purpose may be on the next line.
_LISTED_ACTION = re.compile(r"^  (([\w-]+)(?: \S+)*)(?:\n {6,}| {2,})(\S.*)$", re.MULTILINE)


@cache
def _width() -> int:
    """Return the width of help: from the environment, or from the terminal."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns) - 2
    try:
        return (
            os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ else 1).columns or DEFAULT_WIDTH_COLUMNS
        ) - 2
    except (OSError, ValueError):
        return DEFAULT_WIDTH_COLUMNS - 2


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help formatter with a fixed width. argparse creates one per option, and would import `shutil`."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_width())

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Join the lines of each paragraph, and wrap long lines, each aligned to its own second column."""
        return "\n".join(wrap_line(line, width) for line in join_paragraphs(text).split("\n"))

    def _split_lines(self, text: str, width: int) -> list[str]:
        # argparse would break `portico-services` at its hyphen.
        from textwrap import wrap

        return wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _format_usage(self, *arguments: Any) -> str:
        usage = super()._format_usage(*arguments)
        return "\n".join(wrap_line(line, self._width, len("usage: ")) for line in usage.split("\n"))


def join_paragraphs(text: str) -> str:
    """Join lines that were wrapped in the source; lists and the rows of a table remain separate lines."""
    lines: list[str] = []
    for line in text.split("\n"):
        before = lines[-1] if lines else ""
        is_prose = len(before) >= MIN_WRAPPED_CHARS and not before.startswith(" ") and "  " not in before + line
        is_second_column = line.startswith(" " * 8) and re.match(r" +\S+( \S+)*  +\S", before)
        if line and ((is_prose and not line.startswith(("Exit status:", "Settings:"))) or is_second_column):
            lines[-1] = f"{before} {line.lstrip()}"
        else:
            lines.append(line)
    return "\n".join(lines)


def wrap_line(line: str, width: int, indent: int | None = None) -> str:
    """Wrap a line of help to this width. Commands to copy stay on one line."""
    if len(line) <= width or line.startswith("  portico "):
        return line
    # Only needed here.
    from textwrap import fill

    if indent is None:
        gap = re.match(r" *\S+( \S+)*  +", line)
        indent = gap.end() if gap and gap.end() < width // 2 else len(line) - len(line.lstrip())
    return fill(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


# Options of other tools and of earlier habits, with the option here.
OTHER_OPTIONS = {"--output": "--format", "-o": "--format", "--json": "--format json", "--db": "--store"}


class CommandParser(argparse.ArgumentParser):
    """argparse with our messages. `flags` and `completes` describe options and positional arguments for completion."""

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
        self.completes: list[Argument] = []
        # The actions that an option belongs to, and a parser with the options of one action.
        self.owners: dict[str, str] = {}
        self.actions: dict[str, Callable[[], CommandParser]] = {}
        # The operands of an action, as in the help, if actions differ in them.
        self.usages: dict[str, str] = {}
        # The action on the command line, for error messages; empty until it is known.
        self._action = ""

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """Parse a command line. Options may appear before, after and between positional arguments."""
        typed = argv[: argv.index("--")] if "--" in argv else argv
        self._action = next(filter(self.actions.__contains__, typed), "")
        if self._action and {"-h", "--help"}.intersection(typed):
            self.actions[self._action]().print_help()
            self.exit(0)
        arguments = self.parse_intermixed_args(argv)
        self._check_options(typed, getattr(arguments, "action", ""))
        self._check_words(arguments)
        return arguments

    def _check_words(self, arguments: argparse.Namespace) -> None:
        """Reject words after the operands of an action, which would be ignored otherwise."""
        words: list[str] = getattr(arguments, "words", [])
        usage = self.usages.get(getattr(arguments, "action", ""))
        if not words or usage is None:
            return
        operands = usage.split()[1:]
        if any(name.strip("[]") in _MANY_WORDS for name in operands) or len(words) <= len(operands):
            return
        self.error(f"unexpected argument {words[len(operands)]!r}; the usage is {self.prog} {usage} [options]")

    def _check_options(self, typed: list[str], action: str) -> None:
        """Reject an option of another action, which would be ignored otherwise."""
        for flag in self.flags:
            owners = self.owners.get(flag.option_strings[-1], "").split()
            if not owners or action in owners:
                continue
            short = tuple(name for name in flag.option_strings if not name.startswith("--"))
            for word in typed:
                if word.partition("=")[0] in flag.option_strings or (short and word.startswith(short)):
                    name = flag.option_strings[-1]
                    self.error(f"{name} is an option of {' and '.join(owners)}, not of {action}")

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse ignores write errors; `main` reports them.
        (sys.stderr if file is None else file).write(message)

    def error(self, message: str) -> NoReturn:
        head, mark, names = message.partition("the following arguments are required: ")
        if mark and not head:
            # argparse also names positional arguments that may be empty.
            optional = {action.metavar or action.dest for action in self._actions if action.nargs == "*"}
            message = mark + ", ".join(name for name in names.split(", ") if name not in optional)
        self.print_usage(sys.stderr)
        self.exit(2, f"portico: {message}{self._suggestion(message)}\n")

    def _suggestion(self, message: str) -> str:
        """Return suggestions for unrecognized options: only options that the action accepts."""
        head, _, words = message.partition("unrecognized arguments: ")
        if head or not words:
            return ""
        # Only needed here.
        from difflib import get_close_matches

        candidates = [
            name
            for name, flag in self._option_string_actions.items()
            if not self._action or self._action in self.owners.get(flag.option_strings[-1], self._action).split()
        ]
        typed = [word.partition("=")[0] for word in words.split() if word.startswith("-")]
        if self.prog == "portico serve" and all(word.isidentifier() for word in words.split()):
            return "; several services are separated by commas: --services memory,tasks"
        if self.prog == "portico install" and typed:
            return "; options of `portico serve` follow --"
        # Transposed letters are the most likely mistake.
        suggestions = [
            [name for name in (OTHER_OPTIONS.get(word, ""),) if name.partition(" ")[0] in candidates]
            or [item for item in candidates if sorted(item) == sorted(word)]
            or get_close_matches(word, candidates, n=1)
            for word in typed
        ]
        if self.prog in ("portico call", "portico prompt") and typed and not any(suggestions):
            return "; arguments of the server follow as name=value, without dashes"
        hint = [f"{word}: did you mean {item[0]}?" for word, item in zip(typed, suggestions, strict=True) if item]
        return f" ({'; '.join(hint)})" if hint else ""


class Argument(NamedTuple):
    """A positional argument. `completion` says how it is completed: see `completion`."""

    name: str
    completion: str
    options: dict[str, Any]
    # The possible values, if they depend on another argument.
    completions: tuple[str, ...] = ()


class Option(NamedTuple):
    """An option with its argparse parameters."""

    names: tuple[str, ...]
    options: dict[str, Any]


class CommandSpec(NamedTuple):
    """The specification of a command: usage, help, arguments and options."""

    usage: str
    description: str
    arguments: tuple[Argument, ...]
    # By group heading in the help.
    options: dict[str, tuple[Option, ...]]
    epilog: str = ""
    # The actions that an option belongs to, separated by spaces. Other options belong to all actions.
    action_options: dict[str, str] = {}
    # Without the leading `portico`.
    examples: tuple[str, ...] = ()

    def create_parser(self, command: str, *, with_target: bool = True, action: str = "") -> CommandParser:
        """Return the parser of a command; with an action, one whose help shows only the options of that action."""
        owners = self.action_options
        epilog = f"{self._format_examples(command, action)}\n{self.epilog}"
        usage = self.usage
        described = self._described_actions()
        names_operands = any(" " in listed for listed, _ in described.values())
        if action:
            operands = [_format_operand(item) for item in self.arguments if item.name != "action"]
            # Where the list names no operands, all actions have those of the command.
            words, about = described.get(action, (action, ""))
            words = words if names_operands else " ".join([action, *operands])
            usage = f"portico {command} {words} [options]"
        else:
            about = self.description
        parser = CommandParser(command, usage, about, epilog)
        parser.owners = owners
        parser.usages = {name: listed for name, (listed, _) in described.items()} if names_operands else {}
        if not action and owners:
            choices = next(item.options["choices"] for item in self.arguments if item.name == "action")
            parser.actions = {item: partial(self.create_parser, command, action=item) for item in choices}
        for word in self.arguments:
            if (with_target or word.name != "target") and not (action and word.name == "action"):
                # The usage line names what the words of an action are.
                hidden = {"help": argparse.SUPPRESS} if action and word.name == "words" else {}
                parser.add_argument(word.name, **{**word.options, **hidden})
                parser.completes.append(word)
        for heading, flags in self.options.items():
            group = parser.add_argument_group(heading) if heading else parser
            visible_flags = [
                item for item in flags if not action or action in owners.get(item.names[-1], action).split()
            ]
            parser.flags += [group.add_argument(*flag.names, **flag.options) for flag in visible_flags]
        return parser

    def _described_actions(self) -> dict[str, tuple[str, str]]:
        """Return the usage and the purpose of the actions that the description lists."""
        return {
            action: (words, f"{about[0].upper()}{about[1:]}.")
            for words, action, about in _LISTED_ACTION.findall(self.description)
        }

    def _format_examples(self, command: str, action: str = "") -> str:
        """Return the examples of a command or of one of its actions, formatted for help."""
        begin = f"{command} {action}".strip()
        lines = [line for line in self.examples if f"{line} ".startswith(f"{begin} ")][:MAX_EXAMPLES]
        return "".join(["Examples:\n" if len(lines) > 1 else "Example:\n", *(f"  portico {line}\n" for line in lines)])


def _format_operand(operand: Argument) -> str:
    """Return a positional argument as it is written in a usage line."""
    name: str = operand.options.get("metavar", operand.name.upper())
    if "nargs" not in operand.options:
        return name
    return f"[{name}]" if operand.options["nargs"] == "?" else f"[{name} …]"


def argument(name: str, kind: str = "", *, completions: tuple[str, ...] = (), **options: Any) -> Argument:
    """Return a positional argument."""
    return Argument(name, kind, options, completions)


def option(*names: str, **options: Any) -> Option:
    """Return an option."""
    return Option(names, options)
