"""Heuristics for whether the text after the word `password` is a password.

People choose passwords, so neither length nor entropy is conclusive. More conclusive is what else the text could be:
code that fetches a password, a type, a rule, a label, the next word of a sentence. The style of the value determines
which of these are possible.
"""

from __future__ import annotations

import re
from typing import Literal

from portico.screening.entropy import common_bigram_share, is_numeric, is_placeholder, is_random
from portico.screening.lazy_patterns import lazy_pattern

ValueStyle = Literal["quoted", "line", "bare", "prose"]
"In quotes; after `NAME=` as in a settings file; after `:` or `=` elsewhere; after `is` and similar words."

# Types, rules, states, labels, and words of a sentence.
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
_NON_PASSWORD_WORDS = frozenset(_WORDS.split())
# `value1`, `mysecretpassword`, `test-pass`, `Password123!`: typical examples, which protect nothing elsewhere.
_NUMBERED = lazy_pattern(
    r"(?:pass(?:word|wd)?|pwd|pw|secret|token|value|field|arg|param|var|str|string|data|key|text|input|user|name|v)"
    r"[0-9]{0,2}"
)
_TUTORIAL = lazy_pattern(
    r"(?>test|my|some|your|the|new|old|super|user|admin|db|root|wrong|correct|strong|secure|hashed|plain|secret|a"
    r"|[_\- ]){0,4}(?:pass(?:word|wd)?|pwd|secret)[_\-]?[0-9]{0,4}[!.]?"
)
_RULE = lazy_pattern(
    r"(?:required|nullable|string|min|max|sometimes|confirmed)[|:]"
    r"|[0-9]{1,3}[+\-]?(?:char|len|digit|bit|day|hour|min|sec|year|week|month)"
)
_FILE = lazy_pattern(
    r"(?:~|\.{0,2}|[a-z]:)[/\\][\w.\-/\\ ]{1,200}"
    r"|[\w\-]{1,60}\.(?:txt|json|ya?ml|env|toml|ini|cfg|conf|pem|key|py|js|ts|md|html|php|go|rb)"
)
_HYPHENED = lazy_pattern(r"[0-9]{0,2}[A-Za-z]{1,12}+(?:[-/'’][A-Za-z]{2,20}+){1,4}")
_LETTERS = lazy_pattern(r"[A-Za-z_$]{1,256}")
_PASSWORD_SYMBOLS = frozenset("!@#$%^&*+=~|?")


def is_password(value: str, style: ValueStyle) -> bool:
    if not 4 <= len(value) <= 256 or not _looks_like_password(value, style):
        return False
    # Last, because it tries the most patterns.
    return not _is_word_about_passwords(value) and not is_placeholder(value)


def _looks_like_password(value: str, writing: ValueStyle) -> bool:
    digit, letter = any(map(str.isdigit, value)), any(map(str.isalpha, value))
    strong = not _PASSWORD_SYMBOLS.isdisjoint(value)
    if writing == "quoted":
        return _is_quoted_password(value, digit or strong, letter)
    if writing == "line":
        return len(value) >= 6 and (digit or strong or _LETTERS.fullmatch(value) is not None)
    if len(value) < 6 or is_code(value) or _HYPHENED.fullmatch(value):
        return False
    return (digit and letter and not is_numeric(value)) or (letter and strong) or is_random(value, 12)


def _is_word_about_passwords(value: str) -> bool:
    low = value.lower()
    if low in _NON_PASSWORD_WORDS or "://" in low or low.startswith(("http", "$home", "arn:", "vault:", "sha256:")):
        return True
    if _NUMBERED.fullmatch(low) or _TUTORIAL.fullmatch(low) or _RULE.match(low) or _FILE.fullmatch(low):
        return True
    # `********` and `xxxxxx` are masked or made up.
    return len(set(value)) < 3


def _is_quoted_password(value: str, mixed: bool, letter: bool) -> bool:
    """Return whether a quoted value is a password: labels and messages are quoted, too, but have spaces or are words."""
    if " " in value:
        return False
    if mixed or not letter:
        return not (_PATH.fullmatch(value) and _OWNERS.match(value))
    # Letters only: a chosen word. In code, a label or a constant is more likely.
    return (len(value) >= 8 and value.islower() and value.isalpha()) or is_random(value, 12)


# Code

_TAG = lazy_pattern(r"!{1,2}[A-Za-z][\w./:\-]{0,80}")
_FIELD = lazy_pattern(r"[A-Za-z][A-Za-z_\-]{3,40}=")
_SNAKE = lazy_pattern(r"\w{1,256}")
_PATH = lazy_pattern(r"[&*!]?[A-Za-z_$][\w$]{0,60}+(?:(?:\.|->|::|\?\.)[A-Za-z_][\w$]{0,60}+|\[[^\]]{0,60}+\]){1,8}+")
_OWNERS = lazy_pattern(
    r"(?:self|this|config|conf|cfg|os|process|env|settings|args|opts|options|params|req|request|user|data|body|form|ctx"
    r"|context|var|local|module|secrets?|props|state|values|event|input|credentials?|creds|auth|account|app|obj|row|item"
    r"|result|res|response|session|db|client|server|kwargs|payload|model|entity|dto|github|inputs|steps|vault|faker)\b",
    re.IGNORECASE,
)


def is_code(value: str) -> bool:
    """Return whether an unquoted value is an expression."""
    if value[0] in "{[(<&*|@" or value.endswith("{") or "(" in value or "[" in value or _TAG.fullmatch(value):
        return True
    if (field := _FIELD.match(value)) is not None and common_bigram_share(field[0]) > 0.6:
        return True
    if _PATH.fullmatch(value):
        return not any(map(str.isdigit, value)) or _OWNERS.match(value) is not None
    if value.count("_") > 1 and _SNAKE.fullmatch(value) and common_bigram_share(value) > 0.6:
        return True
    # getPassword, user_password, PasswordField; but `correcthorse` may be a password.
    name = _LETTERS.fullmatch(value) is not None and not (value.isalpha() and value.islower())
    return name and common_bigram_share(value) > 0.5


def is_path(value: str) -> bool:
    """Return whether a value is a dotted path, `module.submodule.Name256`: no key begins with a word and a dot, but a
    password may.
    """
    return _PATH.fullmatch(value) is not None and common_bigram_share(value.partition(".")[0]) > 0.6


_NAME = lazy_pattern(r"[A-Za-z_][\w\-]{0,256}")
_HUMP = lazy_pattern(r"[a-z][A-Z][a-z]")


def is_identifier(value: str) -> bool:
    """Return whether a string is an identifier, as in a list of names."""
    if _NAME.fullmatch(value) is None:
        return False
    return value.isalpha() or (("_" in value or _HUMP.search(value) is not None) and common_bigram_share(value) > 0.5)


# Passphrases

_IN_SENTENCES = """
    a an the is are was be must should can cannot may will your you my our please enter type choose use at least of to
    in for with and or not no if do does did has have this that it field required invalid password passphrase
"""
_SENTENCE = frozenset(_IN_SENTENCES.split())


def is_passphrase(value: str) -> bool:
    """Return whether a value is several plain words, as recommended for passphrases, rather than a sentence."""
    words = value.lower().split()
    return 3 <= len(words) <= 12 and all(word.isalpha() for word in words) and _SENTENCE.isdisjoint(words)
