"""Numbers that states give to people: each by its form, its check digits, and the words it stands with.

A form alone is rarely enough. A row says what more it takes: check digits that add up, a word before it that tells what
it is, or both where the form is no more than some digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from portico.services.memory.screening import checksums
from portico.services.memory.screening.findings import Finding
from portico.services.memory.screening.nearby import is_of_a_thing, said_before
from portico.services.memory.screening.patterns import pattern


class Identity(NamedTuple):
    """`alone` is how sure we are without a telling word; below a half it is then not reported."""

    name: str
    form: re.Pattern[str]
    words: tuple[str, ...]
    check: Callable[[str], bool]
    alone: float
    told: float = 0.95


def _row(name: str, form: str, words: str, check: Callable[[str], bool], alone: float, told: float = 0.95) -> Identity:
    # Never inside a longer number or word.
    whole = pattern(rf"(?<![0-9A-Za-z_])(?<![0-9][.\-/]){form}(?![0-9A-Za-z_]|[.\-][0-9A-Za-z])")
    return Identity(name, whole, tuple(f" {word}" for word in words.split("|")), check, alone, told)


def _always(number: str) -> bool:
    return True


def _ssn(number: str) -> bool:
    area, group, serial = number[:3], number[3:5], number[5:]
    real = area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"
    # The ones that were printed on cards in wallets, and in every manual.
    return real and number not in ("123456789", "078051120", "219099999", "111111111", "123121234")


def _itin(number: str) -> bool:
    return number[0] == "9" and (50 <= int(number[3:5]) <= 65 or 70 <= int(number[3:5]) <= 99)


def _sin(number: str) -> bool:
    return number[0] not in "08" and checksums.luhn(number) and len(set(number)) > 2


def _nino(number: str) -> bool:
    return number[:2] not in ("BG", "GB", "NK", "KN", "TN", "NT", "ZZ")


def _aadhaar(number: str) -> bool:
    return number[0] not in "01" and checksums.verhoeff(number) and len(set(number)) > 2


def _dated(number: str) -> bool:
    """YYMMDD, as many numbers begin."""
    return "01" <= number[2:4] <= "12" and "01" <= number[4:6] <= "31"


def _cn(number: str) -> bool:
    return number[6:8] in ("19", "20") and _dated(number[8:]) and checksums.cn_id(number)


def _nir(number: str) -> bool:
    month = number[3:5]
    return ("01" <= month <= "12" or "20" <= month <= "42" or month >= "50") and checksums.fr_nir(number)


def _pesel(number: str) -> bool:
    return 1 <= int(number[2:4]) % 20 <= 12 and "01" <= number[4:6] <= "31" and checksums.pl_pesel(number)


def _personnummer(number: str) -> bool:
    short = number[-10:]
    return _dated(short) and checksums.luhn(short)


def _za(number: str) -> bool:
    return _dated(number) and number[10] in "01" and checksums.luhn(number)


def _kr(number: str) -> bool:
    return _dated(number) and number[6] in "12345678"


_SOCIAL = r"[0-9]{3}([\- ]?)[0-9]{3}\1[0-9]{3}"
_SECURITY = r"[12] ?[0-9]{2} ?[0-9]{2} ?(?:[0-9]{2}|2[AB])(?: ?[0-9]{3}){2} ?[0-9]{2}"
_INSURED = r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z]"
_FISCAL = r"[A-Z]{6}[0-9]{2}[ABCDEHLMPRST][0-9]{2}[A-Z][0-9]{3}[A-Z]"
_CURP = r"[A-Z][AEIOUX][A-Z]{2}[0-9]{6}[HMX][A-Z]{2}[B-DF-HJ-NP-TV-Z]{3}[0-9A-Z][0-9]"

# Name, form, telling words, check, and how sure we are without a word.
DIGITS = (
    _row("us_ssn", r"[0-9]{3}-[0-9]{2}-[0-9]{4}", "ssn|social|soc sec", _ssn, 0.8),
    _row("us_ssn", r"[0-9]{3} ?[0-9]{2} ?[0-9]{4}", "ssn|social|soc sec", _ssn, 0.0),
    _row("us_itin", r"9[0-9]{2}([\- ]?)[5-9][0-9]\1[0-9]{4}", "itin|taxpayer|tax", _itin, 0.0),
    _row("ca_sin", _SOCIAL, "sin |social ins|assurance sociale|nas ", _sin, 0.0),
    _row("au_tfn", _SOCIAL, "tfn|tax file", checksums.au_tfn, 0.0),
    _row("nl_bsn", r"[0-9]{4}[ .]?[0-9]{2}[ .]?[0-9]{3}", "bsn|burgerservice|sofi", checksums.nl_bsn, 0.0),
    _row("uk_nhs", r"[0-9]{3}([\- ]?)[0-9]{3}\1[0-9]{4}", "nhs", checksums.uk_nhs, 0.0),
    _row("in_aadhaar", r"[2-9][0-9]{3}([\- ])[0-9]{4}\1[0-9]{4}", "aadhaar|aadhar|adhaar|uidai|uid ", _aadhaar, 0.7),
    _row("in_aadhaar", r"[2-9][0-9]{11}", "aadhaar|aadhar|adhaar|uidai|uid ", _aadhaar, 0.0),
    _row("de_tax_id", r"[0-9]{2}(?: ?[0-9]{3}){3}", "steuer|tax|idnr|tin ", checksums.de_tax, 0.0),
    _row("pl_pesel", r"[0-9]{11}", "pesel", _pesel, 0.0),
    _row("br_cpf", r"[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}", "cpf", checksums.br_cpf, 0.9),
    _row("br_cpf", r"[0-9]{11}", "cpf", checksums.br_cpf, 0.0),
    _row("cn_id", r"[1-8][0-9]{16}[0-9Xx]", "身份证|id |identity|resident", _cn, 0.9),
    _row("fr_nir", _SECURITY, "nir |sécu|secu|insee|social", _nir, 0.9),
    _row("se_personnummer", r"(?:19|20)?[0-9]{6}[\-+][0-9]{4}", "person|pnr", _personnummer, 0.6),
    _row("za_id", r"[0-9]{13}", "id |identity|south afric", _za, 0.0),
    _row("kr_rrn", r"[0-9]{6}-[1-8][0-9]{6}", "rrn|resident|주민", _kr, 0.8),
)
LETTERS = (
    _row("uk_nino", rf"{_INSURED}(?: [0-9]{{2}}){{3}} [A-D]", "ni |nino|national ins", _nino, 0.9),
    _row("uk_nino", rf"{_INSURED}[0-9]{{6}}[A-D]", "ni |nino|national ins|insurance|payroll|hmrc", _nino, 0.0),
    _row("in_pan", r"[A-Z]{3}[ABCFGHJLPT][A-Z][0-9]{4}[A-Z]", "pan |permanent account|income tax", _always, 0.65),
    _row("es_dni", r"(?:[0-9]{8}|[XYZ][0-9]{7})-?[A-HJ-NP-TV-Z]", "dni|nie |nif|documento", checksums.es_dni, 0.75),
    _row("it_fiscal_code", _FISCAL, "codice|fiscale|cf ", checksums.it_fiscal, 0.95),
    _row("sg_nric", r"[STFG][0-9]{7}[A-Z]", "nric|fin |singapore", checksums.sg_nric, 0.75),
    _row("mx_curp", _CURP, "curp", _always, 0.9),
)

IDENTITY_NAMES = frozenset(row.name for row in (*DIGITS, *LETTERS))
_SEPARATORS = str.maketrans("", "", " -.+")
_ALONE = tuple(row for row in DIGITS if row.alone)
_DIGIT_WORDS = tuple({word for row in DIGITS for word in row.words})


def in_digits(text: str, said: str, start: int, end: int) -> Iterator[Finding]:
    """In one stretch of digits and what stands between digits. Without a telling word most rows have nothing to say."""
    told = any(word in said for word in _DIGIT_WORDS)
    for row in DIGITS if told else _ALONE:
        for found in row.form.finditer(text, start, end):
            yield from _judged(row, text, said, found)


_LETTER_GATE = pattern(r"[0-9A-Z](?<![0-9A-Za-z_].)(?=[A-Z]{0,5}+[0-9 ]{1,3}[0-9A-Z]|(?<=[0-9])[0-9]{7}-?[A-Z])")


def in_letters(text: str, lower: str) -> Iterator[Finding]:
    """Where capitals and digits stand together; most texts have no such place."""
    for gate in _LETTER_GATE.finditer(text):
        for row in LETTERS:
            found = row.form.match(text, gate.start())
            if found is not None:
                yield from _judged(row, text, said_before(lower, gate.start()), found)


def _judged(row: Identity, text: str, said: str, found: re.Match[str]) -> Iterator[Finding]:
    bare = found[0].translate(_SEPARATORS)
    if not row.check(bare):
        return
    if any(word in said for word in row.words):
        yield Finding("personal", row.name, found.start(), found.end(), row.told)
    elif row.alone and not is_of_a_thing(said) and not _is_among_digits(text, found.start()):
        yield Finding("personal", row.name, found.start(), found.end(), row.alone)


def _is_among_digits(text: str, start: int) -> bool:
    """The tail of a longer number."""
    return start > 1 and text[start - 1] in " .-/" and text[start - 2].isdigit()
