"""Numbers of accounts: IBANs, and those under which people and firms pay value added tax."""

from __future__ import annotations

from collections.abc import Iterator

from portico.services.memory.screening import checksums
from portico.services.memory.screening.findings import Finding
from portico.services.memory.screening.nearby import said_before
from portico.services.memory.screening.patterns import pattern

_IBAN = pattern(r"[A-Z](?<![0-9A-Za-z_].)(?=[A-Z][0-9]{2}[ \-]?[0-9A-Z]{4})")
_GAPS = str.maketrans("", "", " -.")


def ibans(text: str) -> Iterator[Finding]:
    for found in _IBAN.finditer(text):
        start = found.start()
        length = checksums.IBAN_LENGTHS.get(text[start : start + 2])
        end = _end(text, start, length) if length is not None else None
        if end is not None and checksums.iban(text[start:end].translate(_GAPS)):
            yield Finding("personal", "iban", start, end, 0.98)


def _end(text: str, start: int, length: int) -> int | None:
    """Where an account of that many characters ends; None if there are not so many, or more."""
    end = start
    while length:
        letter = text[end : end + 1]
        if letter.isascii() and (letter.isdigit() or letter.isupper()):
            length -= 1
        elif letter not in (" ", "-"):
            return None
        end += 1
    return None if text[end : end + 1].isalnum() else end


_VAT = pattern(
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
_VAT_START = pattern(r"[A-Z](?<![0-9A-Za-z_].)(?=[A-Z][ 0-9A-Z]{1,3}[0-9]{2})")
_VAT_NAMES = "vat|ust|tax|steuer|mwst|tva|iva|btw|nip|moms|alv|cvr|partita"
_VAT_WORDS = tuple(f" {word}" for word in _VAT_NAMES.split("|"))


def vat_numbers(text: str, lower: str) -> Iterator[Finding]:
    for start in _VAT_START.finditer(text):
        found = _VAT.match(text, start.start())
        if found is None:
            continue
        bare = found[0].translate(_GAPS)
        adds_up = checksums.vat(bare[:2], bare[2:])
        told = any(word in said_before(lower, found.start()) for word in _VAT_WORDS)
        if adds_up or (adds_up is None and told):
            yield Finding("personal", "eu_vat", found.start(), found.end(), 0.95 if adds_up and told else 0.7)
