"""Check digits, with the examples published by the authorities."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from portico.screening import check_digits, find

EXAMPLES: list[tuple[Callable[[str], bool | None], str]] = [
    (check_digits.is_luhn_valid, "79927398713"),
    (check_digits.is_verhoeff_valid, "2363"),
    (check_digits.is_iban_valid, "GB29NWBK60161331926819"),
    (check_digits.is_iban_valid, "DE89370400440532013000"),
    (check_digits.is_iban_valid, "NO9386011117947"),
    (check_digits.au_tfn, "123456782"),
    (check_digits.br_cpf, "39053344705"),
    (check_digits.cn_id, "11010519491231002X"),
    (check_digits.de_tax, "36574261809"),
    (check_digits.es_dni, "54362315K"),
    (check_digits.es_dni, "X2482300W"),
    (check_digits.fr_nir, "295109912611193"),
    (check_digits.it_fiscal, "RCCMNL83S18D969H"),
    (check_digits.nl_bsn, "111222333"),
    (check_digits.pl_pesel, "44051401359"),
    (check_digits.sg_nric, "S1234567D"),
    (check_digits.uk_nhs, "9434765870"),
    (lambda number: check_digits.is_vat_valid("AT", number), "U13585627"),
    (lambda number: check_digits.is_vat_valid("BE", number), "0403019261"),
    (lambda number: check_digits.is_vat_valid("DE", number), "136695976"),
    (lambda number: check_digits.is_vat_valid("DK", number), "13585628"),
    (lambda number: check_digits.is_vat_valid("FI", number), "20774740"),
    (lambda number: check_digits.is_vat_valid("FR", number), "40303265045"),
    (lambda number: check_digits.is_vat_valid("IT", number), "00743110157"),
    (lambda number: check_digits.is_vat_valid("PL", number), "8567346215"),
    (lambda number: check_digits.is_vat_valid("PT", number), "501964843"),
    (lambda number: check_digits.is_vat_valid("SE", number), "556188840401"),
]


@pytest.mark.parametrize(("check", "number"), EXAMPLES, ids=[number for _, number in EXAMPLES])
def test_printed_example_adds_up(check: Callable[[str], bool | None], number: str) -> None:
    assert check(number)


@pytest.mark.parametrize(("check", "number"), EXAMPLES, ids=[number for _, number in EXAMPLES])
def test_one_wrong_digit_is_noticed(check: Callable[[str], bool | None], number: str) -> None:
    places = [place for place, letter in enumerate(number) if letter.isdigit()]
    wrong = 0
    for place in places:
        digit = str((int(number[place]) + 1) % 10)
        wrong += not check(number[:place] + digit + number[place + 1 :])
    # Some rules let one place slip.
    assert wrong >= len(places) - 1


def test_country_without_a_known_rule_is_neither_right_nor_wrong() -> None:
    assert check_digits.is_vat_valid("HU", "12345678") is None


@pytest.mark.parametrize("number", ["X4RTBPFW4", "C01X00T47", "533380006", "AB1234567", "09PV12345"])
def test_passport_requires_a_preceding_keyword(number: str) -> None:
    assert [item.name for item in find(f"Her passport number is {number}.")] == ["passport"]


@pytest.mark.parametrize("text", ["passport.js 0.7.0 logs in", "the passport service has OAUTH2", "passport PASSPORTS"])
def test_not_everything_after_that_word_is_one(text: str) -> None:
    assert "passport" not in [item.name for item in find(text)]


def test_passport_mrz_is_verified_by_check_digits() -> None:
    # The specimen of ICAO 9303, of the country Utopia.
    second = "L898902C3" + "6" + "UTO" + "740812" + "2" + "F" + "1204159" + "ZE184226B" + "<<<<<" + "1" + "0"
    assert [item.name for item in find(f"P<UTOERIKSSON<<ANNA<MARIA<<<<<<<<<<<<<<<<<<<\n{second}\n")] == ["passport"]
    assert find(second.replace("740812", "740813")) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("steuer-id 36 574 261 809", "de_tax_id"),
        ("CPF 390.533.447-05", "br_cpf"),
        ("390.533.447-05", "br_cpf"),
        ("codice fiscale RCCMNL83S18D969H", "it_fiscal_code"),
        ("DNI 54362315K", "es_dni"),
        ("BSN 111222333", "nl_bsn"),
        ("PESEL: 44051401359", "pl_pesel"),
        ("NRIC S1234567D", "sg_nric"),
        ("NHS number 943 476 5870", "uk_nhs"),
        ("n° sécu 2 95 10 99 126 111 93", "fr_nir"),
        ("lives in Springfield, IL 62704", "postal_code"),
        ("born on the 3rd of May 1987", "date_of_birth"),
        ("2a02:8109:9ac0:3a5c::17", "ip_address"),
    ],
)
def test_numbers_of_users_are_distinguished(text: str, name: str) -> None:
    assert [item.name for item in find(text, ("personal",))] == [name]


@pytest.mark.parametrize(
    "text",
    [
        "invoice 111222333",
        "build 44051401359",
        "part no. 543-62-3154",
        "released 2024-05-03, 12:30:45.123456",
        "v2.16.840.1 and 1.3.6.1",
        "fe80::1, ::1, 2001:db8::7",
        "room 212-555-0100",
        "IL 62704 is no sentence",
        "+1.41421356",
    ],
)
def test_product_numbers_are_not_flagged(text: str) -> None:
    assert find(text, ("personal",)) == []
