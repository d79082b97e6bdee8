"""Detection of text with the form of a secret or personal data, even if it is an obvious example.

Users who test whether secrets are blocked use fake ones: `AKIAIOSFODNN7EXAMPLE`, `123-45-6789`, `ann@example.com`. By
default such examples are allowed, because much useful text contains some.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from portico.screening import check_digits
from portico.screening.findings import Finding, Kind
from portico.screening.lazy_patterns import lazy_pattern
from portico.screening.personal_numbers import BRANDS, CARD

_CONFIDENCE = 0.6
_GIVEN = r"[\"']?\s{0,3}+[=:]\s{0,3}+[\"'`]?"
_VALUE = r"(?P<given>[^\s\"'`,;/<>{}$]{6,128}+)(?![<>{}$/])"
# The most common passwords.
_COMMON_PASSWORDS = frozenset(["changeme", "letmein", "password", "qwerty", "secret"])
_SECRETS = (
    ("aws_access_key", lazy_pattern(r"(?<![0-9A-Za-z])(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])")),
    ("aws_secret_key", lazy_pattern(r"(?i:secret)[\w ]{0,24}[\"']?\s{0,3}[=:]\s{0,3}[\"']?(?P<value>[0-9A-Za-z/+]{40})(?![0-9A-Za-z/+])")),
    ("github_token", lazy_pattern(r"(?<!\w)(?:gh[opsu]_|ghr_|github_pat_)\w{20,255}+")),
    ("gitlab_token", lazy_pattern(r"(?<!\w)glpat-[\w\-]{16,64}+")),
    ("slack_token", lazy_pattern(r"(?<!\w)xox[abeoprs]-[\w\-]{10,255}+")),
    ("stripe_key", lazy_pattern(r"(?<!\w)[rs]k_(?:live|test)_[0-9A-Za-z]{8,255}+")),
    ("openai_key", lazy_pattern(r"(?<![\w\-])sk-(?=[\w\-]{0,255}[0-9])[\w\-]{16,255}+")),
    ("google_api_key", lazy_pattern(r"(?<!\w)AIza[\w\-]{30,40}+")),
    ("private_key", lazy_pattern(r"-----BEGIN [0-9A-Z ]{0,32}PRIVATE KEY-----")),
    ("url_password", lazy_pattern(r"(?<=://)[^\s:/@\"'<>$]{0,64}:(?P<value>[^\s/@\"'<>$]{1,128})@")),
    ("password", lazy_pattern(rf"(?i:passwor[dt]|passwd|passphrase|pwd)(?:{_GIVEN}|\sis\s{{1,3}}+[\"'`]?){_VALUE}")),
    ("api_key", lazy_pattern(rf"(?i:(?:api|access|secret|private)[ _\-]?key|(?:client|app)[ _\-]?secret){_GIVEN}{_VALUE}")),
    ("token", lazy_pattern(rf"(?i:(?:auth|access|api|bearer)[ _\-]?token){_GIVEN}{_VALUE}")),
)  # fmt: skip
_PERSONAL = (
    ("us_ssn", lazy_pattern(r"(?<![\w.\-])[0-9]{3}-[0-9]{2}-[0-9]{4}(?![\w\-])")),
    (
        "email",
        lazy_pattern(r"(?<![\w.+\-/])(?!git@)[\w.+\-]{1,64}+@(?:[0-9A-Za-z\-]{1,63}+\.){1,8}[A-Za-z]{2,24}+(?![\w:@])"),
    ),
    (
        "phone",
        lazy_pattern(
            r"(?<![\w.+\-/])(?:\+?1[ .\-])?(?:\([0-9]{3}\) ?|[0-9]{3}[ .\-])[0-9]{3}[ .\-][0-9]{4}(?!\w|[.\-/][0-9])"
        ),
    ),
    ("uk_nino", lazy_pattern(r"(?<!\w)[A-Z]{2} ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-D](?!\w)")),
)


def find_placeholders(text: str, kinds: Collection[Kind]) -> Iterator[Finding]:
    """Yield everything with the form of a finding, real or not."""
    if "secret" in kinds:
        for name, form in _SECRETS:
            for match in form.finditer(text):
                part = next((item for item in ("value", "given") if item in match.groupdict()), 0)
                if part != "given" or _is_likely(match["given"]):
                    yield Finding("secret", name, match.start(part), match.end(part), _CONFIDENCE)
    if "personal" in kinds:
        for name, form in _PERSONAL:
            for match in form.finditer(text):
                yield Finding("personal", name, match.start(), match.end(), _CONFIDENCE)
        for match in CARD.finditer(text):
            number = match[0].replace(" ", "").replace("-", "")
            # Any sixteen digits with a valid check digit would flag one number in ten.
            if BRANDS.fullmatch(number) and check_digits.is_luhn_valid(number):
                yield Finding("personal", "card", match.start(), match.end(), _CONFIDENCE)


def _is_likely(value: str) -> bool:
    """Return whether a value has letters with a digit or symbol, or is a common password."""
    value = value.rstrip(".!?:)")
    if value.lower() in _COMMON_PASSWORDS:
        return True
    return any(map(str.isalpha, value)) and any(item.isdigit() or item in "!@#%^&*" for item in value)
