"""Numbers that are given to people: telephones, cards, and what states count them by.

One look finds the stretches that have at least seven digits close together; everything else looks only there.
"""

from __future__ import annotations

from collections.abc import Iterator

from portico.services.memory.screening import checksums
from portico.services.memory.screening.findings import Finding
from portico.services.memory.screening.identities import in_digits
from portico.services.memory.screening.nearby import is_of_a_thing, said_before
from portico.services.memory.screening.patterns import pattern

_STRETCH = pattern(r"[0-9+(](?:[ .\-/()]{0,2}+[0-9]){6,}+")


def numbers(text: str, lower: str) -> Iterator[Finding]:
    for stretch in _STRETCH.finditer(text):
        start, end = stretch.span()
        # A little beyond, to see whether the number goes on as something else.
        end = min(len(text), end + 2)
        said = said_before(lower, start)
        thing = is_of_a_thing(said) or text[max(0, start - 1) : start] == "#"
        yield from _cards(text, said, thing, start, end)
        yield from _phones(text, said, thing, start, end)
        yield from in_digits(text, said, start, end)


_CARD = pattern(
    r"(?<![0-9A-Za-z_.])(?<![0-9][\- ])[2-6][0-9]{3}"
    r"(?:([ \-]?)[0-9]{4}\1[0-9]{4}\1[0-9]{1,7}|([ \-]?)[0-9]{6}\2[0-9]{4,5})(?![0-9A-Za-z_]|[.\- ][0-9])"
)
_BRANDS = pattern(
    r"""(?x)
      4 (?: [0-9]{12} | [0-9]{15} | [0-9]{18} )  # Visa
    | 5[1-5][0-9]{14} | 2 (?: 22[1-9] | 2[3-9][0-9] | [3-6][0-9]{2} | 7[01][0-9] | 720 ) [0-9]{12}  # Mastercard
    | 3[47][0-9]{13} | 3 (?: 0[0-5] | [68][0-9] ) [0-9]{11}  # Amex, Diners
    | 6 (?: 011 | 4[4-9][0-9] | 5[0-9]{2} ) [0-9]{12,15} | 35 (?: 2[89] | [3-8][0-9] ) [0-9]{12,15}  # Discover, JCB
    | 62[0-9]{14,17} | (?: 50[0-9]{2} | 5[6-8][0-9]{2} | 6304 | 67[0-9]{2} ) [0-9]{8,15}  # UnionPay, Maestro
    """
)
_CARD_NAMES = "card|visa|mastercard|amex|pan |credit|debit|cc |karte|carte|tarjeta"
_CARD_WORDS = tuple(f" {word}" for word in _CARD_NAMES.split("|"))


def _cards(text: str, said: str, thing: bool, start: int, end: int) -> Iterator[Finding]:
    for found in _CARD.finditer(text, start, end):
        bare = found[0].replace(" ", "").replace("-", "")
        # Numbers made for tests repeat one or two digits.
        if not _BRANDS.fullmatch(bare) or not checksums.luhn(bare) or len(set(bare)) <= 3:
            continue
        told = any(word in said for word in _CARD_WORDS)
        if told or not thing:
            yield Finding("personal", "card", found.start(), found.end(), 0.97 if told else 0.85)


_PLUS = pattern(r"\+[0-9](?:[ .\-]?+\(?+[0-9]\)?+){6,14}(?![0-9]|\.[0-9])")
_DECIMAL_OR_DATE = pattern(
    r"[+\-]?[0-9]{1,20}\.[0-9]{1,20}$|[0-9]{4}[\-/.][0-9]{2}[\-/.][0-9]{2}|[0-9]{2}[\-/.][0-9]{2}[\-/.][0-9]{4}"
)
_AMERICAN = pattern(
    r"(?<![0-9A-Za-z_.+\-/])(?:1[ .\-])?(?:\([2-9][0-8][0-9]\) ?|[2-9][0-8][0-9][ .\-])[2-9][0-9]{2}[ .\-][0-9]{4}"
    r"(?![0-9A-Za-z_]|[.\-/][0-9])"
)
_NATIONAL = pattern(
    r"(?<![0-9A-Za-z_.+\-/])(?:\(?0[1-9][0-9]{0,4}\)?|[1-9][0-9]{1,4})(?:[ .\-/]{0,3}+[0-9]){5,11}"
    r"(?![0-9A-Za-z_]|[.\-/][0-9])"
)
_PHONE_NAMES = (
    "phone|telephone|telefon|téléphone|teléfono|tel |mobile|cell |cellphone|fax|whatsapp|whats app|sms |handy|text me"
    "|text him|text her|text us|call me|call him|call her|call us|call them|call back|call at|call on|called from|dial "
    "|reach|contact|nummer|móvil|portable|hotline|rufnummer|voicemail|landline|my number|his number|her number|signal "
)
_PHONE_WORDS = tuple(f" {word}" for word in _PHONE_NAMES.split("|"))


def _phones(text: str, said: str, thing: bool, start: int, end: int) -> Iterator[Finding]:
    for found in _PLUS.finditer(text, start, end):
        digits = [letter for letter in found[0] if letter.isdigit()]
        inside = found.start() > 0 and text[found.start() - 1].isalnum()
        if digits[0] != "0" and len(set(digits)) > 2 and not inside and not _DECIMAL_OR_DATE.match(found[0]):
            yield Finding("personal", "phone", found.start(), found.end(), 0.9)
    if thing:
        return
    for found in _AMERICAN.finditer(text, start, end):
        if found[0][-8:-5] != "555":  # only in films
            yield Finding("personal", "phone", found.start(), found.end(), 0.8)
    if any(word in said for word in _PHONE_WORDS):
        for found in _NATIONAL.finditer(text, start, end):
            if 7 <= sum(map(str.isdigit, found[0])) <= 13 and not _DECIMAL_OR_DATE.match(found[0]):
                yield Finding("personal", "phone", found.start(), found.end(), 0.85)
                return
