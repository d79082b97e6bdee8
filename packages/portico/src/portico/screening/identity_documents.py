"""Personal data identified by a preceding keyword: birth dates, passports, licences, postal codes.

Keywords are matched in lower case, values as written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from portico.screening import check_digits
from portico.screening.findings import Finding
from portico.screening.lazy_patterns import lazy_pattern

_DATE = (
    r"(?:[0-9]{4}[\-/.][0-9]{1,2}[\-/.][0-9]{1,2}|[0-9]{1,2}[\-/.][0-9]{1,2}[\-/.](?:19|20)?[0-9]{2}"
    r"|[0-9]{1,2}(?:st|nd|rd|th|\.)?[ \-](?:of )?[A-Za-zéûäñ]{3,10}\.?,?[ \-](?:19|20)[0-9]{2}"
    r"|[A-Za-z]{3,9}\.? [0-9]{1,2}(?:st|nd|rd|th)?,? (?:19|20)[0-9]{2})(?![0-9])"
)
_CODE = r"(?=[0-9A-Z\-]{0,9}[0-9]{2})[0-9A-Z](?:[\- ]?+[0-9A-Z]){5,17}(?![0-9A-Za-z])"
# Many countries mix letters and digits: C01X00T47, X4RTBPFW4.
_PASSPORT = rf"(?:{_CODE}|(?=[A-Z]{{0,8}}[0-9][A-Z]{{0,8}}[0-9])[0-9A-Z]{{8,9}}(?![0-9A-Za-z]))"
_POSTAL = (
    r"(?:[A-Z]{1,2}[0-9][0-9A-Z]? ?[0-9][A-Z]{2}|[A-Z][0-9][A-Z] ?[0-9][A-Z][0-9]|[0-9]{5}-[0-9]{3,4}"
    r"|[0-9]{4} ?[A-Z]{2}|[0-9]{3} ?[0-9]{2,3}|[0-9]{4,6})(?![0-9A-Za-z]|[.\-][0-9])"
)
_BETWEEN = (
    r"[\"'`)*:=>#_ \t\-|]{0,8}+(?:(?>is|was|on|in|number|nummer|num|nr|no|code|of|for|am|le|ist|holder|their|the|my|his|her)\b"
    r"[\"'.:#=* \t]{0,4}+){0,3}+[\"'`(*<]{0,3}+"
)
_NUMBER = r"(?:[ _\-]?(?:no|number|num|nr|nummer|id|#)(?![a-z])\.?)?"


class LabelledPattern(NamedTuple):
    """Pattern of one kind of data. One of `signs` must be in the text; `words` precede the value."""

    name: str
    keywords: tuple[str, ...]
    label: re.Pattern[str]
    value: re.Pattern[str]
    confidence: float


def _label_pattern(name: str, signs: str, words: str, value: str, confidence: float) -> LabelledPattern:
    written = lazy_pattern(f"{_BETWEEN}(?P<value>{value})")
    return LabelledPattern(name, tuple(signs.split("|")), lazy_pattern(words), written, confidence)


_LABELLED = (
    _label_pattern(
        "date_of_birth",
        "birth|dob|d.o.b|born|gebor|geburt|naissance|nacimiento",
        r"d(?<![a-z]d)\.?o\.?b(?![a-z])\.?|date[ _]?of[ _]?birth|birth[ _\-]?da(?:y|te)|born(?![a-z])|geboren"
        r"|geburts(?:datum|tag)|date de naissance|fecha de nacimiento",
        _DATE,
        0.9,
    ),
    _label_pattern(
        "passport",
        "passport|reisepass|passeport|pasaporte",
        rf"(?:passport|reisepass|passeport|pasaporte){_NUMBER}",
        _PASSPORT,
        0.85,
    ),
    _label_pattern(
        "driving_licence",
        "licen|dl no|dl #|dl number|führerschein|permis de",
        r"(?:driv(?:er['’]?s?|ing)[ _\-]?licen[cs]e|dl(?<![a-z]dl)(?= no| #| num)|führerschein|permis de conduire)"
        + _NUMBER,
        _CODE,
        0.85,
    ),
    _label_pattern(
        "postal_code",
        "zip|postal|postcode|post code|plz|pin code|pincode|postleitzahl",
        r"zip(?<![a-z]zip)(?:[ _\-]?code)?(?![a-z])|zipcode|(?:postal|post)[ _\-]?code|plz(?<![a-z]plz)(?![a-z])"
        r"|postleitzahl|pin[ _\-]?code|code postal|c[óo]digo postal",
        _POSTAL,
        0.75,
    ),
)

_STATES = (
    "AL|AK|AZ|AR|CA|CO|CT|DE|DC|FL|GA|HI|ID|IL|IN|IA|KS|KY|LA|ME|MD|MA|MI|MN|MS|MO|MT|NE|NV|NH|NJ|NM|NY|NC|ND|OH|OK|OR"
    "|PA|RI|SC|SD|TN|TX|UT|VT|VA|WA|WV|WI|WY|PR"
)
_STATE_ZIP = lazy_pattern(rf",[ ]?(?:{_STATES})[ ]{{1,2}}(?P<value>[0-9]{{5}}(?:-[0-9]{{4}})?)(?![0-9A-Za-z\-])")
# Second line of the machine-readable zone of a passport (ICAO 9303, part 4), with its check digits.
_MRZ = lazy_pattern(
    r"(?<![0-9A-Z<])(?:P[A-Z<][A-Z]{3}[A-Z<]{39}\s{1,2})?(?P<number>[0-9A-Z<]{9})(?P<first>[0-9])[A-Z<]{3}"
    r"(?P<born>[0-9]{6})(?P<second>[0-9])[MFX<][0-9]{7}[0-9A-Z<]{14}[0-9<][0-9](?![0-9A-Z<])"
)


def find_identity_documents(text: str, lower: str) -> Iterator[Finding]:
    for kind in _LABELLED:
        if any(sign in lower for sign in kind.keywords):
            for word in kind.label.finditer(lower):
                match = kind.value.match(text, word.end())
                if match is not None:
                    yield Finding("personal", kind.name, *match.span("value"), kind.confidence)
    for match in _STATE_ZIP.finditer(text):
        yield Finding("personal", "postal_code", *match.span("value"), 0.75)
    if "<<" in text:
        for match in _MRZ.finditer(text):
            digits = check_digits.mrz_digit(match["number"]) + check_digits.mrz_digit(match["born"])
            if digits == match["first"] + match["second"]:
                yield Finding("personal", "passport", match.start(), match.end(), 0.99)
