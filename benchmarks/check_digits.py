"""Compare the check digits with python-stdnum: random numbers of each format, and disagreements.

    pip install python-stdnum
    .venv/bin/python benchmarks/check_digits.py [--numbers 100000]

What follows from it is in docs/decisions/check-digits.md.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from importlib import import_module

from portico.screening import check_digits, personal_numbers as ours

DIGITS, LETTERS = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
Check = Callable[[str], object]


def drawn(form: str, rng: random.Random) -> str:
    """Draw a number of a format: `9` is any digit, `A` any letter, `D` a date as YYMMDD, and so on; other characters
    are literal.
    """
    pieces = {
        "9": lambda: rng.choice(DIGITS),
        "A": lambda: rng.choice(LETTERS),
        "D": lambda: f"{rng.randrange(100):02}{rng.randrange(1, 13):02}{rng.randrange(1, 29):02}",
        "Y": lambda: rng.choice(("19", "20")),
        "M": lambda: f"{rng.randrange(1, 13):02}",
        "B": lambda: f"{rng.randrange(1, 29):02}",
        "L": lambda: rng.choice("ABCDEHLMPRST"),
    }
    return "".join(pieces[letter]() if letter in pieces else letter for letter in form)


def account(rng: random.Random) -> str:
    """Return an IBAN with valid check digits."""
    country, length = rng.choice(list(check_digits.IBAN_LENGTHS.items()))
    body = drawn("9" * (length - 4), rng)
    check = 98 - int("".join(str(int(letter, 36)) for letter in f"{body}{country}00")) % 97
    return f"{country}{check:02}{body}"


def vat(country: str) -> Check:
    return lambda number: check_digits.is_vat_valid(country, number)


# Our check, stdnum's module, and the form.
ROWS: list[tuple[str, Check, str, str]] = [
    ("Luhn", check_digits.is_luhn_valid, "luhn", "9" * 16),
    ("Verhoeff", check_digits.is_verhoeff_valid, "verhoeff", "9" * 12),
    ("ISO 7064 11,10", check_digits.is_mod_11_10_valid, "iso7064.mod_11_10", "9" * 9),
    ("us_ssn", ours._ssn, "us.ssn", "9" * 9),
    ("us_itin", ours._itin, "us.itin", "9" * 9),
    ("ca_sin", ours._sin, "ca.sin", "9" * 9),
    ("au_tfn", check_digits.au_tfn, "au.tfn", "9" * 9),
    ("nl_bsn", check_digits.nl_bsn, "nl.bsn", "9" * 9),
    ("uk_nhs", check_digits.uk_nhs, "gb.nhs", "9" * 10),
    ("in_aadhaar", ours._aadhaar, "in_.aadhaar", "9" * 12),
    ("de_tax_id", check_digits.de_tax, "de.idnr", "9" * 11),
    ("pl_pesel", ours._pesel, "pl.pesel", "D99999"),
    ("br_cpf", check_digits.br_cpf, "br.cpf", "9" * 11),
    ("cn_id", ours._cn, "cn.ric", "199999YD9999"),
    ("fr_nir", ours._nir, "fr.nir", "199M" + "9" * 10),
    ("se_personnummer", ours._personnummer, "se.personnummer", "D9999"),
    ("za_id", ours._za, "za.idnr", "D9999999"),
    ("kr_rrn", ours._kr, "kr.rrn", "D1999999"),
    ("es_dni", check_digits.es_dni, "es.dni", "99999999A"),
    ("es_nie", check_digits.es_dni, "es.nie", "X9999999A"),
    ("it_fiscal_code", check_digits.it_fiscal, "it.codicefiscale", "AAAAAA99LBA999A"),
    ("VAT AT", vat("AT"), "at.uid", "U99999999"),
    ("VAT BE", vat("BE"), "be.vat", "0999999999"),
    ("VAT DE", vat("DE"), "de.vat", "1" + "9" * 8),
    ("VAT DK", vat("DK"), "dk.cvr", "9" * 8),
    ("VAT FI", vat("FI"), "fi.alv", "9" * 8),
    ("VAT FR", vat("FR"), "fr.tva", "9" * 11),
    ("VAT IT", vat("IT"), "it.iva", "9" * 11),
    ("VAT PL", vat("PL"), "pl.nip", "9" * 10),
    ("VAT PT", vat("PT"), "pt.nif", "9" * 9),
    ("VAT SE", vat("SE"), "se.vat", "999999999901"),
    ("IBAN", check_digits.is_iban_valid, "iban", ""),
]


def measured(check: Check, numbers: list[str]) -> tuple[list[bool], float, int]:
    """Return the verdicts, microseconds per number, and the number of exceptions."""
    verdicts, failures = [], 0
    start = time.process_time()
    for number in numbers:
        try:
            verdicts.append(bool(check(number)))
        except Exception:
            verdicts.append(False)
            failures += 1
    return verdicts, 1e6 * (time.process_time() - start) / len(numbers), failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numbers", type=int, default=100_000)
    count = parser.parse_args().numbers
    rng = random.Random(7)
    print(f"{'':16} {'both':>7} {'ours':>7} {'stdnum':>7} {'raised':>7}   µs, ours and stdnum's")
    for name, check, module, form in ROWS:
        numbers = [drawn(form, rng) if form else account(rng) for _ in range(count)]
        mine, my_time, _ = measured(check, numbers)
        other, other_time, raised = measured(import_module(f"stdnum.{module}").is_valid, numbers)
        pairs = list(zip(mine, other, strict=True))
        counts = [pairs.count(pair) for pair in ((True, True), (True, False), (False, True))]
        print(f"{name:16} {' '.join(f'{one:7}' for one in counts)} {raised:7}   {my_time:.2f} {other_time:.2f}")


if __name__ == "__main__":
    main()
