"""The texts of the prompts, and of what is said about a session."""

from __future__ import annotations

Turns = list[tuple[str, str]]
"""Who says what: "user" or "assistant", and the text."""

_LOOK = "Look at it with class_details, and at its methods with method_source."


def review_class(name: str, focus: str) -> str:
    about = f" Focus on {focus}." if focus else ""
    return (
        f"Please review the class {name}.{about} {_LOOK} Say what it is for, what it does well, what could go wrong, "
        "and what you would change, most important first; name the method for each point."
    )


def refactor_method(name: str, selector: str) -> Turns:
    return [
        ("user", f"I would like to refactor the method {selector} of the class {name}."),
        (
            "assistant",
            f"I will read it with method_source({name}, {selector}), see who uses it with references_to({selector}), "
            "and try what I propose with evaluate before I show it.",
        ),
        ("user", "Good. Keep its behaviour and its name. Show the new source, and say in a sentence why it is better."),
    ]


def document_class(name: str, style: str) -> str:
    return (
        f"Please document the class {name} in the style of {style}: a docstring for the class, and one for each public "
        f"method that needs it. {_LOOK} Say what a caller has to know; do not repeat the signature."
    )


def generate_tests(name: str) -> str:
    return (
        f"Please write tests with pytest for the class {name}. {_LOOK} Cover what it promises, its edges and its "
        "errors; give each test a name that is a sentence. Try them with evaluate before you show them."
    )


def system_overview() -> str:
    return (
        "Please give an overview of this Python: its version and limits (system_info), what is installed "
        "(list_packages), and what has been defined so far (list_classes with the package __main__, list_sessions)."
    )


def lost(name: str, reason: str) -> str:
    return f"The session {name!r} was ended, because {reason}. It begins anew, without its names, with the next call."


def kept(name: str, seconds: float) -> str:
    return f"It did not finish within {seconds:g} s and was stopped. The names of the session {name!r} are kept."


def summary(info: dict[str, object]) -> str:
    return f"Python {info['python']}, {info['mode']}. Sessions: {info['sessions']} of {info['mostSessions']}."
