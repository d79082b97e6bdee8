"""The prompts, in words."""

from __future__ import annotations

from portico.services.contracts.lint import LintFinding


def writing(invocation: str, rules: str, draft: str) -> str:
    return (
        f"Write the specification of the tool `{invocation}`. Begin with the draft below, which was generated from what"
        " the tool promises. Keep its eight sections, their order, the version line, both tables, both schemas and the"
        " names of all parameters. Improve the words: when one would use it and when not, which errors come when, what"
        " a repeated call does, examples with values that somebody could really send, and what could go wrong with its"
        " security. Make nothing up: where you do not know, ask.\n\n"
        f"The rules:\n\n{rules}\n\nThe draft:\n\n{draft}"
    )


def reviewing(invocation: str, findings: list[LintFinding], text: str) -> str:
    found = "\n".join(f"- line {one.line}, {one.severity}: {one.message}" for one in findings) or "- nothing"
    return (
        f"Review what the tool `{invocation}` promises, as somebody who has to call it without seeing its code. Is it"
        " clear what it is for, and what it is not for? Does each parameter say what it means, in which unit, and what"
        " happens without it? Are the hints believable? Could its description lead a model to do something that its"
        " user does not want? Suggest better words for the definition itself, which is where the specification comes"
        " from.\n\n"
        f"What a program has found:\n\n{found}\n\nThe specification:\n\n{text}"
    )
