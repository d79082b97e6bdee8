"""Check digits of personal numbers.

Each function takes the bare digits or letters and returns whether they are valid. Why this is not a library:
docs/decisions/check-digits.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def is_luhn_valid(digits: str) -> bool:
    return (_luhn_sum(digits[-2::-2]) + sum(map(int, digits[-1::-2]))) % 10 == 0


def _luhn_sum(digits: str) -> int:
    """Return the digit sum of each doubled digit."""
    return sum(int("0246813579"[int(digit)]) for digit in digits)


# Verhoeff: multiplication table of the dihedral group D5, and the permutation of each position.
_TIMES = "0123456789 1234067895 2340178956 3401289567 4012395678 5987604321 6598710432 7659821043 8765932104 9876543210"
_VERHOEFF_PERMUTATION = "0123456789 1576283094 5803796142 8916043527 9453126870 4286573901 2793806415 7046913258"
_PRODUCTS, _PERMUTATIONS = _TIMES.split(), _VERHOEFF_PERMUTATION.split()


def is_verhoeff_valid(digits: str) -> bool:
    check = 0
    for position, digit in enumerate(reversed(digits)):
        check = int(_PRODUCTS[check][int(_PERMUTATIONS[position % 8][int(digit)])])
    return check == 0


def is_mod_11_10_valid(digits: str) -> bool:
    """Return whether the ISO 7064 MOD 11,10 check digit is valid (German VAT and tax numbers)."""
    check = 10
    for digit in digits[:-1]:
        check = (check + int(digit)) % 10 or 10
        check = check * 2 % 11
    return (11 - check) % 10 == int(digits[-1])


# Lengths from the ISO 13616 registry.
_IBANS = """
    15 NO | 16 BE | 18 DK FI FK FO GL NL SD | 19 MK SI | 20 AT BA EE KZ LT LU MN XK | 21 CH HR LI LV
    22 BG BH CR DE GB GE IE ME RS | 23 AE GI IL IQ OM SO TL | 24 AD CZ ES MD PK RO SA SE SK TN VG | 25 LY PT ST
    26 IS TR | 27 BI DJ FR GR IT MC MR SM | 28 AL AZ BY CY DO GT HU LB NI PL SV | 29 BR EG PS QA UA
    30 JO KW MU YE | 31 MT SC | 32 LC | 33 RU
"""
_BY_LENGTH = [group.split() for group in _IBANS.replace("\n", "|").split("|") if group.strip()]
IBAN_LENGTHS = {country: int(length) for length, *countries in _BY_LENGTH for country in countries}


def is_iban_valid(account: str) -> bool:
    # The length first: one in 97 arbitrary numbers satisfies the checksum alone.
    if IBAN_LENGTHS.get(account[:2]) != len(account):
        return False
    # ISO 7064 MOD 97-10: country and check digits move to the end, and letters count as 10 to 35.
    return int("".join(str(int(letter, 36)) for letter in account[4:] + account[:4])) % 97 == 1


def _weighted_sum(digits: str, weights: Sequence[int]) -> int:
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=False))


def _divisible(modulus: int, *weights: int) -> Callable[[str], bool]:
    """Return a check that the weighted digit sum is a multiple of the modulus."""
    return lambda digits: _weighted_sum(digits, weights) % modulus == 0


# National identification numbers

au_tfn = _divisible(11, 1, 4, 3, 7, 5, 8, 6, 9, 10)
nl_bsn = _divisible(11, 9, 8, 7, 6, 5, 4, 3, 2, -1)
pl_pesel = _divisible(10, 1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)
uk_nhs = _divisible(11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1)


def br_cpf(digits: str) -> bool:
    first = _weighted_sum(digits, range(10, 1, -1)) * 10 % 11 % 10
    second = _weighted_sum(digits, range(11, 1, -1)) * 10 % 11 % 10
    # 111.111.111-11 and the like satisfy the check digits, but are never issued.
    return len(set(digits)) > 1 and digits[9:] == f"{first}{second}"


def cn_id(number: str) -> bool:
    total = _weighted_sum(number[:17], (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2))
    return "10X98765432"[total % 11] == number[17].upper()


def de_tax(digits: str) -> bool:
    """Return whether a German tax id is valid: of the first ten digits one occurs two or three times, the others at
    most once.
    """
    counts = sorted(digits.count(digit, 0, 10) for digit in set(digits[:10]))
    return digits[0] != "0" and counts[-1] in (2, 3) and counts[-2] == 1 and is_mod_11_10_valid(digits)


def es_dni(number: str) -> bool:
    first = number[0].upper()
    digits = str("XYZ".index(first)) + number[1:-1] if first in "XYZ" else number[:-1]
    return "TRWAGMYFPDXBNJZSQVHLCKE"[int(digits) % 23] == number[-1].upper()


def fr_nir(number: str) -> bool:
    # The Corsican departments 2A and 2B count as 19 and 18.
    digits = number[:13].upper().replace("2A", "19").replace("2B", "18")
    return digits.isdigit() and 97 - int(digits) % 97 == int(number[13:])


_ODD_PLACES = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)


def it_fiscal(number: str) -> bool:
    total = 0
    for position, letter in enumerate(number[:15].upper()):
        value = int(letter) if letter.isdigit() else ord(letter) - 65
        total += value if position % 2 else _ODD_PLACES[value]
    return chr(65 + total % 26) == number[15].upper()


def sg_nric(number: str) -> bool:
    total = _weighted_sum(number[1:8], (2, 7, 6, 5, 4, 3, 2)) + 4 * (number[0] in "TG")
    return ("JZIHGFEDCBA" if number[0] in "ST" else "XWUTRQPNMLK")[total % 11] == number[8]


def mrz_digit(field: str) -> str:
    """Return the check digit of a field in the machine-readable zone of a passport (ICAO 9303)."""
    total = sum(
        (0 if letter == "<" else int(letter, 36)) * (7, 3, 1)[position % 3] for position, letter in enumerate(field)
    )
    return str(total % 10)


# VAT numbers

_VAT: dict[str, Callable[[str], bool]] = {
    "AT": lambda number: (96 - _luhn_sum(number[2:8:2]) - sum(map(int, number[1:8:2]))) % 10 == int(number[8]),
    "BE": lambda number: 97 - int(number[:8]) % 97 == int(number[8:]),
    "DE": is_mod_11_10_valid,
    "DK": _divisible(11, 2, 7, 6, 5, 4, 3, 2, 1),
    "FI": _divisible(11, 7, 9, 10, 5, 8, 4, 2, 1),
    "FR": lambda number: (
        number.isdigit() and is_luhn_valid(number[2:]) and (12 + 3 * int(number[2:])) % 97 == int(number[:2])
    ),
    "IT": is_luhn_valid,
    "PL": lambda number: _weighted_sum(number, (6, 5, 7, 2, 3, 4, 5, 6, 7)) % 11 == int(number[9]),
    "PT": lambda number: (11 - _weighted_sum(number, range(9, 1, -1)) % 11) % 11 % 10 == int(number[8]),
    "SE": lambda number: is_luhn_valid(number[:10]) and number[10:] == "01",
}


def is_vat_valid(country: str, number: str) -> bool | None:
    """Return whether a VAT number is valid, or None for a country without a known rule."""
    check = _VAT.get(country)
    return check(number) if check is not None else None
