"""Whether what stands after the word `password` is one.

People choose passwords, so neither length nor entropy says much. What says most is what else it could be: code that
fetches one, a type, a rule, a label, the next word of a sentence. How the value is written decides which of these
are possible.
"""

from __future__ import annotations

import re
from typing import Literal

from portico.screening.entropy import is_number, is_placeholder, is_random, wordiness
from portico.screening.lazy_patterns import pattern

Writing = Literal["quoted", "line", "bare", "prose"]
"""In quotes; after `NAME=` as in a file of settings; after `:` or `=` elsewhere; after `is` and the like."""

# Types, rules, states, labels, and the next word of a sentence.
_WORDS = """
    string str text bytes byte varchar char int integer bool boolean object array number any void unknown never null nil
    none undefined nan true false yes no on off enabled disabled required optional nullable hidden masked empty missing
    invalid valid incorrect correct wrong expired default forgotten forgot reset changed change protected encrypted
    hashed hash plain plaintext cleartext secure strong weak input field label type name value key password passwd pwd
    passphrase passcode secret secrets token tokens credential credentials login username user users admin root guest
    test testing tests postgres mysql mongo redis rabbitmq mariadb minio secretstr env environment vault prompt stdin
    file this that then there the and for from with see same above below later please contact ask also only again
    already not set unset given stored kept saved shared sent known generated rotated stale leaked exposed safe fine
    good bad private public internal external temporary permanent mandatory deprecated supported unsupported
    case-sensitive passwort kennwort
"""
_NO_PASSWORD = frozenset(_WORDS.split())
# `value1`, `mysecretpassword`, `test-pass`, `Password123!`: what stands in examples, and elsewhere protects nothing.
_NUMBERED = pattern(
    r"(?:pass(?:word|wd)?|pwd|pw|secret|token|value|field|arg|param|var|str|string|data|key|text|input|user|name|v)"
    r"[0-9]{0,2}"
)
_TUTORIAL = pattern(
    r"(?>test|my|some|your|the|new|old|super|user|admin|db|root|wrong|correct|strong|secure|hashed|plain|secret|a"
    r"|[_\- ]){0,4}(?:pass(?:word|wd)?|pwd|secret)[_\-]?[0-9]{0,4}[!.]?"
)
_RULE = pattern(
    r"(?:required|nullable|string|min|max|sometimes|confirmed)[|:]"
    r"|[0-9]{1,3}[+\-]?(?:char|len|digit|bit|day|hour|min|sec|year|week|month)"
)
_FILE = pattern(
    r"(?:~|\.{0,2}|[a-z]:)[/\\][\w.\-/\\ ]{1,200}"
    r"|[\w\-]{1,60}\.(?:txt|json|ya?ml|env|toml|ini|cfg|conf|pem|key|py|js|ts|md|html|php|go|rb)"
)
_HYPHENED = pattern(r"[0-9]{0,2}[A-Za-z]{1,12}+(?:[-/'’][A-Za-z]{2,20}+){1,4}")
_LETTERS = pattern(r"[A-Za-z_$]{1,256}")
_STRONG = frozenset("!@#$%^&*+=~|?")


def is_password(value: str, writing: Writing) -> bool:
    if not 4 <= len(value) <= 256 or not _is_like_one(value, writing):
        return False
    return not _is_word_about_passwords(value) and not is_placeholder(value)


def _is_like_one(value: str, writing: Writing) -> bool:
    digit, letter = any(map(str.isdigit, value)), any(map(str.isalpha, value))
    strong = not _STRONG.isdisjoint(value)
    if writing == "quoted":
        return _is_quoted_password(value, digit or strong, letter)
    if writing == "line":
        return len(value) >= 6 and (digit or strong or _LETTERS.fullmatch(value) is not None)
    if len(value) < 6 or is_code(value) or _HYPHENED.fullmatch(value):
        return False
    return (digit and letter and not is_number(value)) or (letter and strong) or is_random(value, 12)


def _is_word_about_passwords(value: str) -> bool:
    low = value.lower()
    if low in _NO_PASSWORD or "://" in low or low.startswith(("http", "$home", "arn:", "vault:", "sha256:")):
        return True
    if _NUMBERED.fullmatch(low) or _TUTORIAL.fullmatch(low) or _RULE.match(low) or _FILE.fullmatch(low):
        return True
    return len(set(value)) < 3


def _is_quoted_password(value: str, mixed: bool, letter: bool) -> bool:
    """Labels and messages are in quotes too: they have spaces, or are words."""
    if " " in value:
        return False
    if mixed or not letter:
        return not (_PATH.fullmatch(value) and _OWNERS.match(value))
    # Only letters: a chosen word. In code a label or a name in capitals is likelier.
    return (len(value) >= 8 and value.islower() and value.isalpha()) or is_random(value, 12)


# Code

_TAG = pattern(r"!{1,2}[A-Za-z][\w./:\-]{0,80}")
_FIELD = pattern(r"[A-Za-z][A-Za-z_\-]{3,40}=")
_SNAKE = pattern(r"\w{1,256}")
_PATH = pattern(r"[&*!]?[A-Za-z_$][\w$]{0,60}+(?:(?:\.|->|::|\?\.)[A-Za-z_][\w$]{0,60}+|\[[^\]]{0,60}+\]){1,8}+")
_OWNERS = pattern(
    r"(?:self|this|config|conf|cfg|os|process|env|settings|args|opts|options|params|req|request|user|data|body|form|ctx"
    r"|context|var|local|module|secrets?|props|state|values|event|input|credentials?|creds|auth|account|app|obj|row|item"
    r"|result|res|response|session|db|client|server|kwargs|payload|model|entity|dto|github|inputs|steps|vault|faker)\b",
    re.IGNORECASE,
)


def is_code(value: str) -> bool:
    """Whether a value without quotes is an expression."""
    if value[0] in "{[(<&*|@" or value.endswith("{") or "(" in value or "[" in value or _TAG.fullmatch(value):
        return True
    if (field := _FIELD.match(value)) is not None and wordiness(field[0]) > 0.6:
        return True
    if _PATH.fullmatch(value):
        return not any(map(str.isdigit, value)) or _OWNERS.match(value) is not None
    if value.count("_") > 1 and _SNAKE.fullmatch(value) and wordiness(value) > 0.6:
        return True
    # getPassword, user_password, PasswordField; but `correcthorse` may be meant.
    name = _LETTERS.fullmatch(value) is not None and not (value.isalpha() and value.islower())
    return name and wordiness(value) > 0.5


def is_path(value: str) -> bool:
    """`module.submodule.Name256`: no key begins with a word and a dot, but a password may."""
    return _PATH.fullmatch(value) is not None and wordiness(value.partition(".")[0]) > 0.6


_NAME = pattern(r"[A-Za-z_][\w\-]{0,256}")
_HUMP = pattern(r"[a-z][A-Z][a-z]")


def is_name(value: str) -> bool:
    """Whether a string is a name of something, as in a list of names."""
    if _NAME.fullmatch(value) is None:
        return False
    return value.isalpha() or (("_" in value or _HUMP.search(value) is not None) and wordiness(value) > 0.5)


# Several words

_IN_SENTENCES = """
    a an the is are was be must should can cannot may will your you my our please enter type choose use at least of to
    in for with and or not no if do does did has have this that it field required invalid password passphrase
"""
_SENTENCE = frozenset(_IN_SENTENCES.split())


def is_passphrase(value: str) -> bool:
    """Several plain words, as people are told to use; not a sentence about them."""
    words = value.lower().split()
    return 3 <= len(words) <= 12 and all(word.isalpha() for word in words) and _SENTENCE.isdisjoint(words)
