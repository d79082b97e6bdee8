"""Secrets and personal data are found before storage, without false positives.

Every value is made when the test runs, from alphabets and check digits: none is a credential, and none is written here.
"""

from __future__ import annotations

import importlib
import random

import pytest

from portico.auth.verifiers.token_file import generate_token
from portico.protocol.errors import UsageError
from portico.screening import FINDING_NAMES, Finding, ScreeningPolicy, find, redact, screen

samples = importlib.import_module("secrets_samples")

RNG = random.Random(11)
GITHUB = samples.MARKED["github classic"](RNG)
DASHES = "-" * 5
PASSWORD = "Harbor" + "7741" + "!"


def found(text: str, *kinds: str) -> list[tuple[str, str]]:
    """The names and the texts of what is found."""
    return [(item.name, text[item.start : item.end]) for item in find(text, kinds or ("secret", "personal"))]  # type: ignore[arg-type]


PROVIDERS = {
    "aws access key": "aws_access_key",
    "github classic": "github_token",
    "github fine-grained": "github_token",
    "gitlab": "gitlab_token",
    "slack bot": "slack_token",
    "stripe": "stripe_key",
    "openai": "openai_key",
    "anthropic": "anthropic_key",
    "hugging face": "huggingface_token",
    "google api": "google_api_key",
    "azure client secret": "azure_client_secret",
    "npm": "npm_token",
    "pypi": "pypi_token",
    "terraform cloud": "terraform_token",
    "vault": "hcp_token",
    "sendgrid": "sendgrid_key",
    "twilio": "twilio_api_key",
    "telegram": "telegram_bot_token",
    "discord bot": "discord_token",
    "age": "age_secret_key",
}


@pytest.mark.parametrize(("maker", "name"), PROVIDERS.items(), ids=PROVIDERS)
@pytest.mark.parametrize(
    "around",
    ["{}", "use {} for now", 'key = "{}"', "https://x.net/?a=1&k={}", "%3D{}", "line\\n{}\\n", "[32m{}", "({})."],
)
def test_vendor_key_is_found_anywhere(maker: str, name: str, around: str) -> None:
    value = samples.MARKED[maker](RNG)
    if around.startswith("[32m") and maker in ("azure client secret", "terraform cloud", "telegram"):
        pytest.skip("these have no prefix, so the letter of a colour before them belongs to them")
    assert (name, value) in found(around.replace("{}", value), "secret")


@pytest.mark.parametrize("kind", sorted(samples.PERSONAL_MAKERS))
def test_personal_data_is_found_next_to_its_keyword(kind: str) -> None:
    words = {"ip_address": "client address", "driving_licence": "driving licence", "in_pan": "PAN", "us_ssn": "SSN"}
    word = words.get(kind, kind.split("_")[-1] if kind[2:3] == "_" else kind.replace("_", " "))
    for _ in range(20):
        value = samples.PERSONAL_MAKERS[kind](RNG)
        assert (kind, value) in found(f"her {word}: {value}\n", "personal"), value


def test_both_halves_of_an_aws_key_are_found() -> None:
    key, secret = samples.MARKED["aws access key"](RNG), samples.mixed(RNG, samples.B64, 40)
    assert [name for name, _ in found(f"{key},{secret}\n")] == ["aws_access_key", "aws_secret_key"]


def test_private_key_is_found_without_its_end() -> None:
    key = samples.pem("RSA PRIVATE KEY", 1190)(RNG)
    escaped = key.replace("\n", "\\n")
    assert found(f"before {key} after") == [("private_key", key)]
    assert found(f'{{"key": "{escaped}"}}') == [("private_key", escaped)]
    cut = key[: len(key) // 2]
    assert found(cut) == [("private_key", cut)]


@pytest.mark.parametrize(
    "text",
    [
        "API_KEY=your-api-key-here",
        "password: ${DB_PASSWORD}",
        "token = os.environ['TOKEN']",
        "const password = req.body.password;",
        "password: string",
        "password = 'password123'",
        "ghp_" + "x" * 36,
        "sk-" + "1234567890abcdef" * 2,
        "AKIA" + "IOSFODNN7" + "EXAMPLE",
        f"{DASHES}BEGIN RSA PRIVATE KEY{DASHES}\n...\n{DASHES}END RSA PRIVATE KEY{DASHES}",
        "max_tokens=4096 next_page_token=" + "CAoQ7A" * 4,
        "postgres://postgres:postgres@localhost/app",
        "mail user@example.com or git@github.com:a/b.git",
        "see 10.1.2.3, 192.0.2.4 and version 4.2.1.7",
        "card 4242 4242 4242 4242",
    ],
)
def test_text_that_resembles_a_secret_is_not_flagged(text: str) -> None:
    assert found(text) == []


def test_number_that_does_not_add_up_is_no_card_and_no_account() -> None:
    for _ in range(50):
        assert not found(f"card {samples.card(RNG, valid=False)}")
    iban = samples.iban(RNG).replace(" ", "")
    wrong = iban[:3] + str((int(iban[3]) + 1) % 10) + iban[4:]
    assert found(f"IBAN {iban}") == [("iban", iban)]
    assert found(f"IBAN {wrong}") == []


def test_card_number_inside_a_digest_is_not_flagged() -> None:
    assert found(f"tree {samples.card(RNG)}dab491349f30") == []


def test_only_requested_kinds_are_found() -> None:
    text = f"{GITHUB} of {samples.email(RNG)}"
    assert [item.kind for item in find(text)] == ["secret", "personal"]
    assert [item.kind for item in find(text, ("personal",))] == ["personal"]
    assert find(text, ()) == []


def test_less_is_found_the_surer_one_must_be() -> None:
    text = f"password {PASSWORD}"
    assert find(text) and not find(text, min_confidence=0.9)


def test_positions_are_correct_after_case_folding() -> None:
    text = f"İİİ PASSWORD={PASSWORD}\nİ {GITHUB}"
    assert [value for _, value in found(text, "secret")] == [PASSWORD, GITHUB]


# Redaction


def test_redaction_removes_findings_and_preserves_the_rest() -> None:
    text = f"TOKEN={GITHUB}\nDB_PASSWORD={PASSWORD}\nPORT=80\n"
    clean = redact(text, find(text))
    assert clean == "TOKEN=[REDACTED:github_token]\nDB_PASSWORD=[REDACTED:password]\nPORT=80\n"


def test_redacting_twice_changes_nothing() -> None:
    for sample in samples.samples(seed=3, rounds=1):
        once = redact(sample.text, find(sample.text))
        again = redact(once, find(once))
        assert once == again, sample.text


def test_placeholder_does_not_hide_adjacent_secrets() -> None:
    text = f"password={PASSWORD}[REDACTED:email]"
    assert PASSWORD not in redact(text, find(text))


def test_findings_over_each_other_are_one_under_the_surer_name() -> None:
    findings = [Finding("personal", "email", 0, 9, 0.9), Finding("secret", "token", 5, 12, 0.7)]
    assert redact("0123456789abcdef", findings) == "[REDACTED:token]cdef"


# Rules


def test_secret_blocks_and_personal_data_passes_unless_told_otherwise() -> None:
    assert screen(f"{GITHUB} {samples.email(RNG)}").blocked == {"github_token": 1}
    mail = f"write to {samples.email(RNG)}"
    assert screen(mail) == (mail, {}, {}, {})
    assert screen(mail, count_allowed=True).allowed == {"email": 1}


def test_blocked_text_is_not_returned() -> None:
    assert screen(f"password={PASSWORD}").text is None


def test_rules_by_kind_and_by_name() -> None:
    rules = ScreeningPolicy(secrets="redact", pii="redact", overrides={"phone": "allow", "jwt": "block"})
    phone, mail, token = samples.phone(RNG), samples.email(RNG), samples.jwt(RNG)
    screened = screen(f"call me at {phone}, {mail}", rules)
    assert screened == (f"call me at {phone}, [REDACTED:email]", {"email": 1}, {}, {"phone": 1})
    assert screen(f"{token}", rules).blocked == {"jwt": 1}


def test_secret_name_is_searched_without_its_kind() -> None:
    rules = ScreeningPolicy(secrets="allow", overrides={"private_key": "block"})
    assert screen(samples.pem("EC PRIVATE KEY", 121)(RNG), rules).blocked == {"private_key": 1}
    assert screen(GITHUB, rules).text == GITHUB


def test_rules_for_unknown_kinds_are_rejected() -> None:
    with pytest.raises(UsageError, match="did you mean 'github_token'"):
        ScreeningPolicy(overrides={"github_tokens": "allow"})
    with pytest.raises(UsageError, match="block, redact, allow"):
        ScreeningPolicy(secrets="ignore")  # type: ignore[arg-type]


# The labelled set: benchmarks/secrets_quality.py tells more


def test_labelled_set_is_found_without_a_false_alarm() -> None:
    labelled = hits = 0
    for sample in samples.samples(seed=2, rounds=1):
        findings = find(sample.text)
        assert {finding.name for finding in findings} <= set(FINDING_NAMES)
        for label in sample.labels:
            covered = sum(max(0, min(finding.end, label.end) - max(finding.start, label.start)) for finding in findings)
            labelled += 1
            hits += covered >= 0.9 * (label.end - label.start)
        if not sample.labels:
            assert not findings, sample.text
    assert hits >= 0.98 * labelled


SHORT, LONG = (
    "Jx7kPq2w",
    "vR8sT1uW3xY5zA7bC9dE0fG2hI4jK6lM8nO1pQ3rS5tU7vW9xY1zA3bC5dE7fG9hI1jK3lM5nO7pQ9rS1tU3wX5yZ7aB9c",
)


@pytest.mark.parametrize(
    "text",
    [
        f"root:$6${SHORT}${LONG[:86]}:19000:0:99999:7:::",
        f"root:$6$rounds=5000${SHORT}${LONG[:86]}:19000::",
        f"ann:$5${SHORT}${LONG[:43]}",
        f"ann:$1${SHORT}${LONG[:22]}",
        f"ann:$apr1${SHORT}${LONG[:22]}",
        f"ann:$2y$05${LONG[:53]}",
        f"root:$y$j9T${LONG[:22]}${LONG[22:65]}:19000::",
        f"ann:{{SHA}}{LONG[:27]}=",
        f"$argon2id$v=19$m=65536,t=3,p=4${LONG[:22]}${LONG[22:65]}",
    ],
)
def test_hashes_of_passwords_are_found(text: str) -> None:
    assert [item.name for item in find(text)] == ["password_hash"]


def test_our_own_tokens_are_found() -> None:
    assert all(find(f"use {generate_token()} for the build") for _ in range(200))


def test_okta_tokens_and_putty_keys_are_found() -> None:
    assert [item.name for item in find(f"okta: 00{LONG[:40]}")] == ["okta_token"]
    assert find(f"build 00{LONG[:40]}") == []
    assert [item.name for item in find(f"Private-Lines: 1\n{LONG[:44]}")] == ["private_key"]


@pytest.mark.parametrize(
    "text", ["costs $1 and $2 more", "awk '{print $1$2}'", "{SHA} is a scheme", "$6$salt$hash", "ptk_1"]
)
def test_text_that_resembles_a_hash_is_not_flagged(text: str) -> None:
    assert find(text) == []
