"""Detection of personal numbers: telephone, card, account and national identification numbers.

One pass finds runs with at least seven digits close together; telephone, card and most national numbers are searched
only there. The form alone is rarely sufficient: check digits must be valid, a keyword must precede the number, or both
if the form is just digits.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator
from typing import NamedTuple

from portico.screening import check_digits
from portico.screening.findings import Finding
from portico.screening.lazy_patterns import lazy_pattern

# Keywords before a number

# Maximum distance between a keyword and its number.
CONTEXT_CHARS = 48
_TO_SPACE = str.maketrans(dict.fromkeys(string.punctuation, " "))
# Numbers after these words are not personal.
_NON_PERSONAL_WORDS = """
    order orders ticket invoice inv part sku ref reference case serial version build isbn issn tracking batch lot model
    item product article asset job run commit pr issue bug rfc page line port pid sample event transaction txn request
    rev revision upc ean asin po customer account process thread seq sequence offset error code status size bytes
    timestamp
"""
_NON_PERSONAL_WORD_SET = frozenset(_NON_PERSONAL_WORDS.split())
_NUMBER = frozenset(("no", "nr", "number", "num", "id", "code"))


def _words_before(lower: str, start: int) -> str:
    """Return the text before a position, with punctuation replaced by spaces and a leading space; a blank line ends it."""
    before = lower[max(0, start - CONTEXT_CHARS) : start]
    return " " + before[before.rfind("\n\n") + 1 :].translate(_TO_SPACE)


def _is_non_personal(before: str) -> bool:
    words = before.rsplit(None, 2)[-2:]
    if not words:
        return False
    return words[-1] in _NON_PERSONAL_WORD_SET or (words[-1] in _NUMBER and words[0] in _NON_PERSONAL_WORD_SET)


def _word_prefixes(words: str) -> tuple[str, ...]:
    """Return keywords in the form in which `_words_before` contains them."""
    return tuple(f" {word}" for word in words.split("|"))


_DIGIT_RUN = lazy_pattern(r"[0-9+(](?:[ .\-/()]{0,2}+[0-9]){6,}+")


def find_personal_numbers(text: str, lower: str) -> Iterator[Finding]:
    """Yield telephone, card and all-digit identification numbers."""
    for stretch in _DIGIT_RUN.finditer(text):
        start, end = stretch.span()
        # Slightly more text, to see whether the number continues.
        end = min(len(text), end + 2)
        before = _words_before(lower, start)
        of_thing = _is_non_personal(before) or text[max(0, start - 1) : start] == "#"
        yield from _cards(text, before, of_thing, start, end)
        yield from _phones(text, before, of_thing, start, end)
        yield from _identities_in_digits(text, before, start, end)


# Cards

CARD = lazy_pattern(
    r"(?<![0-9A-Za-z_.])(?<![0-9][\- ])[2-6][0-9]{3}"
    r"(?:([ \-]?)[0-9]{4}\1[0-9]{4}\1[0-9]{1,7}|([ \-]?)[0-9]{6}\2[0-9]{4,5})(?![0-9A-Za-z_]|[.\- ][0-9])"
)
BRANDS = lazy_pattern(
    r"""(?x)
      4 (?: [0-9]{12} | [0-9]{15} | [0-9]{18} )  # Visa
    | 5[1-5][0-9]{14} | 2 (?: 22[1-9] | 2[3-9][0-9] | [3-6][0-9]{2} | 7[01][0-9] | 720 ) [0-9]{12}  # Mastercard
    | 3[47][0-9]{13} | 3 (?: 0[0-5] | [68][0-9] ) [0-9]{11}  # Amex, Diners
    | 6 (?: 011 | 4[4-9][0-9] | 5[0-9]{2} ) [0-9]{12,15} | 35 (?: 2[89] | [3-8][0-9] ) [0-9]{12,15}  # Discover, JCB
    | 62[0-9]{14,17} | (?: 50[0-9]{2} | 5[6-8][0-9]{2} | 6304 | 67[0-9]{2} ) [0-9]{8,15}  # UnionPay, Maestro
    """
)
_CARD_WORDS = _word_prefixes("card|visa|mastercard|amex|pan |credit|debit|cc |karte|carte|tarjeta")


def _cards(text: str, before: str, of_thing: bool, start: int, end: int) -> Iterator[Finding]:
    for card in CARD.finditer(text, start, end):
        bare = card[0].replace(" ", "").replace("-", "")
        # Test numbers repeat one or two digits.
        if not BRANDS.fullmatch(bare) or not check_digits.is_luhn_valid(bare) or len(set(bare)) <= 3:
            continue
        announced = any(word in before for word in _CARD_WORDS)
        if announced or not of_thing:
            yield Finding("personal", "card", card.start(), card.end(), 0.97 if announced else 0.85)


# Telephones

_PLUS = lazy_pattern(r"\+[0-9](?:[ .\-]?+\(?+[0-9]\)?+){6,14}(?![0-9]|\.[0-9])")
_DECIMAL_OR_DATE = lazy_pattern(
    r"[+\-]?[0-9]{1,20}\.[0-9]{1,20}$|[0-9]{4}[\-/.][0-9]{2}[\-/.][0-9]{2}|[0-9]{2}[\-/.][0-9]{2}[\-/.][0-9]{4}"
)
_AMERICAN = lazy_pattern(
    r"(?<![0-9A-Za-z_.+\-/])(?:1[ .\-])?(?:\([2-9][0-8][0-9]\) ?|[2-9][0-8][0-9][ .\-])[2-9][0-9]{2}[ .\-][0-9]{4}"
    r"(?![0-9A-Za-z_]|[.\-/][0-9])"
)
_NATIONAL = lazy_pattern(
    r"(?<![0-9A-Za-z_.+\-/])(?:\(?0[1-9][0-9]{0,4}\)?|[1-9][0-9]{1,4})(?:[ .\-/]{0,3}+[0-9]){5,11}"
    r"(?![0-9A-Za-z_]|[.\-/][0-9])"
)
_PHONE_WORDS = _word_prefixes(
    "phone|telephone|telefon|téléphone|teléfono|tel |mobile|cell |cellphone|fax|whatsapp|whats app|sms |handy|text me"
    "|text him|text her|text us|call me|call him|call her|call us|call them|call back|call at|call on|called from|dial "
    "|reach|contact|nummer|móvil|portable|hotline|rufnummer|voicemail|landline|my number|his number|her number|signal "
)


def _phones(text: str, before: str, of_thing: bool, start: int, end: int) -> Iterator[Finding]:
    for phone in _PLUS.finditer(text, start, end):
        digits = [letter for letter in phone[0] if letter.isdigit()]
        inside = phone.start() > 0 and text[phone.start() - 1].isalnum()
        if digits[0] != "0" and len(set(digits)) > 2 and not inside and not _DECIMAL_OR_DATE.match(phone[0]):
            yield Finding("personal", "phone", phone.start(), phone.end(), 0.9)
    if of_thing:
        return
    for phone in _AMERICAN.finditer(text, start, end):
        if phone[0][-8:-5] != "555":  # reserved for fiction
            yield Finding("personal", "phone", phone.start(), phone.end(), 0.8)
    if any(word in before for word in _PHONE_WORDS):
        for phone in _NATIONAL.finditer(text, start, end):
            if 7 <= sum(map(str.isdigit, phone[0])) <= 13 and not _DECIMAL_OR_DATE.match(phone[0]):
                yield Finding("personal", "phone", phone.start(), phone.end(), 0.85)
                return


# National identification numbers


class NationalIdPattern(NamedTuple):
    """National number. `base_confidence` applies without a keyword; below 0.5 it is then not reported."""

    name: str
    pattern: re.Pattern[str]
    keywords: tuple[str, ...]
    check: Callable[[str], bool]
    base_confidence: float


def _identity(name: str, form: str, words: str, check: Callable[[str], bool], alone: float) -> NationalIdPattern:
    # Never inside a longer number or word.
    pattern = lazy_pattern(rf"(?<![0-9A-Za-z_])(?<![0-9][.\-/]){form}(?![0-9A-Za-z_]|[.\-][0-9A-Za-z])")
    return NationalIdPattern(name, pattern, _word_prefixes(words), check, alone)


def _always(number: str) -> bool:
    return True


def _ssn(number: str) -> bool:
    area, group, serial = number[:3], number[3:5], number[5:]
    real = area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"
    # Numbers printed on sample cards and in manuals.
    return real and number not in ("123456789", "078051120", "219099999", "111111111", "123121234")


def _itin(number: str) -> bool:
    return number[0] == "9" and (50 <= int(number[3:5]) <= 65 or 70 <= int(number[3:5]) <= 99)


def _sin(number: str) -> bool:
    return number[0] not in "08" and check_digits.is_luhn_valid(number) and len(set(number)) > 2


def _nino(number: str) -> bool:
    return number[:2] not in ("BG", "GB", "NK", "KN", "TN", "NT", "ZZ")


def _aadhaar(number: str) -> bool:
    return number[0] not in "01" and check_digits.is_verhoeff_valid(number) and len(set(number)) > 2


def _starts_with_date(number: str) -> bool:
    """Return whether a number starts with a date, YYMMDD."""
    return "01" <= number[2:4] <= "12" and "01" <= number[4:6] <= "31"


def _cn(number: str) -> bool:
    return number[6:8] in ("19", "20") and _starts_with_date(number[8:]) and check_digits.cn_id(number)


def _nir(number: str) -> bool:
    month = number[3:5]
    return ("01" <= month <= "12" or "20" <= month <= "42" or month >= "50") and check_digits.fr_nir(number)


def _pesel(number: str) -> bool:
    return 1 <= int(number[2:4]) % 20 <= 12 and "01" <= number[4:6] <= "31" and check_digits.pl_pesel(number)


def _personnummer(number: str) -> bool:
    return _starts_with_date(number[-10:]) and check_digits.is_luhn_valid(number[-10:])


def _za(number: str) -> bool:
    return _starts_with_date(number) and number[10] in "01" and check_digits.is_luhn_valid(number)


def _kr(number: str) -> bool:
    # Numbers issued since October 2020 have no check digit.
    return _starts_with_date(number) and number[6] in "12345678"


_NINE_DIGITS = r"[0-9]{3}([\- ]?)[0-9]{3}\1[0-9]{3}"
_NIR = r"[12] ?[0-9]{2} ?[0-9]{2} ?(?:[0-9]{2}|2[AB])(?: ?[0-9]{3}){2} ?[0-9]{2}"
_NINO = r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z]"
_FISCAL = r"[A-Z]{6}[0-9]{2}[ABCDEHLMPRST][0-9]{2}[A-Z][0-9]{3}[A-Z]"
_CURP = r"[A-Z][AEIOUX][A-Z]{2}[0-9]{6}[HMX][A-Z]{2}[B-DF-HJ-NP-TV-Z]{3}[0-9A-Z][0-9]"

# Name, form, keywords, check, and confidence without a keyword.
_NUMERIC_IDS = (
    _identity("us_ssn", r"[0-9]{3}-[0-9]{2}-[0-9]{4}", "ssn|social|soc sec", _ssn, 0.8),
    _identity("us_ssn", r"[0-9]{3} ?[0-9]{2} ?[0-9]{4}", "ssn|social|soc sec", _ssn, 0.0),
    _identity("us_itin", r"9[0-9]{2}([\- ]?)[5-9][0-9]\1[0-9]{4}", "itin|taxpayer|tax", _itin, 0.0),
    _identity("ca_sin", _NINE_DIGITS, "sin |social ins|assurance sociale|nas ", _sin, 0.0),
    _identity("au_tfn", _NINE_DIGITS, "tfn|tax file", check_digits.au_tfn, 0.0),
    _identity("nl_bsn", r"[0-9]{4}[ .]?[0-9]{2}[ .]?[0-9]{3}", "bsn|burgerservice|sofi", check_digits.nl_bsn, 0.0),
    _identity("uk_nhs", r"[0-9]{3}([\- ]?)[0-9]{3}\1[0-9]{4}", "nhs", check_digits.uk_nhs, 0.0),
    _identity("in_aadhaar", r"[2-9][0-9]{3}([\- ])[0-9]{4}\1[0-9]{4}", "aadhaar|aadhar|adhaar|uidai|uid ", _aadhaar, 0.7),
    _identity("in_aadhaar", r"[2-9][0-9]{11}", "aadhaar|aadhar|adhaar|uidai|uid ", _aadhaar, 0.0),
    _identity("de_tax_id", r"[0-9]{2}(?: ?[0-9]{3}){3}", "steuer|tax|idnr|tin ", check_digits.de_tax, 0.0),
    _identity("pl_pesel", r"[0-9]{11}", "pesel", _pesel, 0.0),
    _identity("br_cpf", r"[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}", "cpf", check_digits.br_cpf, 0.9),
    _identity("br_cpf", r"[0-9]{11}", "cpf", check_digits.br_cpf, 0.0),
    _identity("cn_id", r"[1-8][0-9]{16}[0-9Xx]", "身份证|id |identity|resident", _cn, 0.9),
    _identity("fr_nir", _NIR, "nir |sécu|secu|insee|social", _nir, 0.9),
    _identity("se_personnummer", r"(?:19|20)?[0-9]{6}[\-+][0-9]{4}", "person|pnr", _personnummer, 0.6),
    _identity("za_id", r"[0-9]{13}", "id |identity|south afric", _za, 0.0),
    _identity("kr_rrn", r"[0-9]{6}-[1-8][0-9]{6}", "rrn|resident|주민", _kr, 0.8),
)  # fmt: skip
_ALPHANUMERIC_IDS = (
    _identity("uk_nino", rf"{_NINO}(?: [0-9]{{2}}){{3}} [A-D]", "ni |nino|national ins", _nino, 0.9),
    _identity("uk_nino", rf"{_NINO}[0-9]{{6}}[A-D]", "ni |nino|national ins|insurance|payroll|hmrc", _nino, 0.0),
    _identity("in_pan", r"[A-Z]{3}[ABCFGHJLPT][A-Z][0-9]{4}[A-Z]", "pan |permanent account|income tax", _always, 0.65),
    _identity("es_dni", r"(?:[0-9]{8}|[XYZ][0-9]{7})-?[A-HJ-NP-TV-Z]", "dni|nie |nif|documento", check_digits.es_dni, 0.75),
    _identity("it_fiscal_code", _FISCAL, "codice|fiscale|cf ", check_digits.it_fiscal, 0.95),
    _identity("sg_nric", r"[STFG][0-9]{7}[A-Z]", "nric|fin |singapore", check_digits.sg_nric, 0.75),
    _identity("mx_curp", _CURP, "curp", _always, 0.9),
)  # fmt: skip
_ANNOUNCED_CONFIDENCE = 0.95

NATIONAL_ID_NAMES = frozenset(row.name for row in (*_NUMERIC_IDS, *_ALPHANUMERIC_IDS))
_SEPARATORS = str.maketrans("", "", " -.+")
_WITHOUT_WORD = tuple(row for row in _NUMERIC_IDS if row.base_confidence)
_IDENTITY_WORDS = tuple({word for row in _NUMERIC_IDS for word in row.keywords})
_LETTER_GATE = lazy_pattern(r"[0-9A-Z](?<![0-9A-Za-z_].)(?=[A-Z]{0,5}+[0-9 ]{1,3}[0-9A-Z]|(?<=[0-9])[0-9]{7}-?[A-Z])")


def _identities_in_digits(text: str, before: str, start: int, end: int) -> Iterator[Finding]:
    announced = any(word in before for word in _IDENTITY_WORDS)
    for row in _NUMERIC_IDS if announced else _WITHOUT_WORD:
        for number in row.pattern.finditer(text, start, end):
            yield from _find_national_id(row, text, before, number)


def find_alphanumeric_ids(text: str, lower: str) -> Iterator[Finding]:
    """Yield identification numbers that contain letters. In most texts, capitals and digits are never adjacent."""
    for gate in _LETTER_GATE.finditer(text):
        for row in _ALPHANUMERIC_IDS:
            number = row.pattern.match(text, gate.start())
            if number is not None:
                yield from _find_national_id(row, text, _words_before(lower, gate.start()), number)


def _find_national_id(row: NationalIdPattern, text: str, before: str, number: re.Match[str]) -> Iterator[Finding]:
    if not row.check(number[0].translate(_SEPARATORS)):
        return
    if any(word in before for word in row.keywords):
        yield Finding("personal", row.name, number.start(), number.end(), _ANNOUNCED_CONFIDENCE)
    elif row.base_confidence and not _is_non_personal(before) and not _is_tail(text, number.start()):
        yield Finding("personal", row.name, number.start(), number.end(), row.base_confidence)


def _is_tail(text: str, start: int) -> bool:
    """Return whether the number that starts here is the end of a longer one."""
    return start > 1 and text[start - 1] in " .-/" and text[start - 2].isdigit()


# Accounts

_IBAN = lazy_pattern(r"[A-Z](?<![0-9A-Za-z_].)(?=[A-Z][0-9]{2}[ \-]?[0-9A-Z]{4})")
_GAPS = str.maketrans("", "", " -.")


def find_ibans(text: str) -> Iterator[Finding]:
    for gate in _IBAN.finditer(text):
        start = gate.start()
        length = check_digits.IBAN_LENGTHS.get(text[start : start + 2])
        end = _account_end(text, start, length) if length is not None else None
        if end is not None and check_digits.is_iban_valid(text[start:end].translate(_GAPS)):
            yield Finding("personal", "iban", start, end, 0.98)


def _account_end(text: str, start: int, length: int) -> int | None:
    """Return the end of an account of that many characters, or None if there are fewer or more."""
    end = start
    while length:
        letter = text[end : end + 1]
        if letter.isascii() and (letter.isdigit() or letter.isupper()):
            length -= 1
        elif letter not in (" ", "-"):
            return None
        end += 1
    return None if text[end : end + 1].isalnum() else end


_VAT = lazy_pattern(
    r"""(?x)
    (?: ATU[0-9]{8} | BE\ ?[01][0-9]{3}(?:\.?[0-9]{3}){2} | BG[0-9]{9,10} | CY[0-9]{8}[A-Z] | CZ[0-9]{8,10}
      | DE\ ?[1-9][0-9]{2}(?:\ ?[0-9]{3}){2} | DK(?:\ ?[0-9]{2}){4} | EE[0-9]{9} | EL[0-9]{9}
      | ES[A-Z0-9][0-9]{7}[A-Z0-9] | FI\ ?[0-9]{8}
      | FR\ ?[0-9A-Z]{2}(?:\ ?[0-9]{3}){3} | GB[0-9]{9} | HR[0-9]{11} | HU[0-9]{8}
      | IE[0-9][0-9A-Z*+][0-9]{5}[A-Z]{1,2} | IT\ ?[0-9]{11} | LT[0-9]{9}(?:[0-9]{3})? | LU[0-9]{8} | LV[0-9]{11}
      | MT[0-9]{8} | NL[0-9]{9}B[0-9]{2} | PL\ ?[0-9]{10} | PT\ ?[0-9]{9} | RO[0-9]{2,10} | SE\ ?[0-9]{12} | SI[0-9]{8}
      | SK[0-9]{10} | XI[0-9]{9} ) (?![0-9A-Za-z])
    """
)
_VAT_GATE = lazy_pattern(r"[A-Z](?<![0-9A-Za-z_].)(?=[A-Z][ 0-9A-Z]{1,3}[0-9]{2})")
_VAT_WORDS = _word_prefixes("vat|ust|tax|steuer|mwst|tva|iva|btw|nip|moms|alv|cvr|partita")


def find_vat_numbers(text: str, lower: str) -> Iterator[Finding]:
    for gate in _VAT_GATE.finditer(text):
        number = _VAT.match(text, gate.start())
        if number is None:
            continue
        bare = number[0].translate(_GAPS)
        adds_up = check_digits.is_vat_valid(bare[:2], bare[2:])
        announced = any(word in _words_before(lower, number.start()) for word in _VAT_WORDS)
        if adds_up or (adds_up is None and announced):
            yield Finding("personal", "eu_vat", number.start(), number.end(), 0.95 if adds_up and announced else 0.7)
