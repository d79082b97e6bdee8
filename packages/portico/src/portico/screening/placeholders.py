"""What has the shape of a secret or of personal data, even where it is plainly made up.

A user who tries whether secrets are blocked takes no real one: `AKIAIOSFODNN7EXAMPLE`, `123-45-6789`, `ann@example.com`.
Elsewhere such examples are let through, because much of what is worth knowing has some.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from portico.screening import check_digits
from portico.screening.findings import Finding, Kind
from portico.screening.lazy_patterns import pattern
from portico.screening.personal_numbers import BRANDS, CARD

_CONFIDENCE = 0.6
_GIVEN = r"[\"']?\s{0,3}+[=:]\s{0,3}+[\"'`]?"
_VALUE = r"(?P<given>[^\s\"'`,;/<>{}$]{6,128}+)(?![<>{}$/])"
# Passwords of every list.
_COMMON = frozenset(["changeme", "letmein", "password", "qwerty", "secret"])
_SECRETS = (
    ("aws_access_key", pattern(r"(?<![0-9A-Za-z])(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])")),
    ("aws_secret_key", pattern(r"(?i:secret)[\w ]{0,24}[\"']?\s{0,3}[=:]\s{0,3}[\"']?(?P<value>[0-9A-Za-z/+]{40})(?![0-9A-Za-z/+])")),
    ("github_token", pattern(r"(?<!\w)(?:gh[opsu]_|ghr_|github_pat_)\w{20,255}+")),
    ("gitlab_token", pattern(r"(?<!\w)glpat-[\w\-]{16,64}+")),
    ("slack_token", pattern(r"(?<!\w)xox[abeoprs]-[\w\-]{10,255}+")),
    ("stripe_key", pattern(r"(?<!\w)[rs]k_(?:live|test)_[0-9A-Za-z]{8,255}+")),
    ("openai_key", pattern(r"(?<![\w\-])sk-(?=[\w\-]{0,255}[0-9])[\w\-]{16,255}+")),
    ("google_api_key", pattern(r"(?<!\w)AIza[\w\-]{30,40}+")),
    ("private_key", pattern(r"-----BEGIN [0-9A-Z ]{0,32}PRIVATE KEY-----")),
    ("url_password", pattern(r"(?<=://)[^\s:/@\"'<>$]{0,64}:(?P<value>[^\s/@\"'<>$]{1,128})@")),
    ("password", pattern(rf"(?i:passwor[dt]|passwd|passphrase|pwd)(?:{_GIVEN}|\sis\s{{1,3}}+[\"'`]?){_VALUE}")),
    ("api_key", pattern(rf"(?i:(?:api|access|secret|private)[ _\-]?key|(?:client|app)[ _\-]?secret){_GIVEN}{_VALUE}")),
    ("token", pattern(rf"(?i:(?:auth|access|api|bearer)[ _\-]?token){_GIVEN}{_VALUE}")),
)  # fmt: skip
_PERSONAL = (
    ("us_ssn", pattern(r"(?<![\w.\-])[0-9]{3}-[0-9]{2}-[0-9]{4}(?![\w\-])")),
    (
        "email",
        pattern(r"(?<![\w.+\-/])(?!git@)[\w.+\-]{1,64}+@(?:[0-9A-Za-z\-]{1,63}+\.){1,8}[A-Za-z]{2,24}+(?![\w:@])"),
    ),
    (
        "phone",
        pattern(
            r"(?<![\w.+\-/])(?:\+?1[ .\-])?(?:\([0-9]{3}\) ?|[0-9]{3}[ .\-])[0-9]{3}[ .\-][0-9]{4}(?!\w|[.\-/][0-9])"
        ),
    ),
    ("uk_nino", pattern(r"(?<!\w)[A-Z]{2} ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-D](?!\w)")),
)


def examples(text: str, kinds: Collection[Kind]) -> Iterator[Finding]:
    """What looks like one, whether or not it can be one."""
    if "secret" in kinds:
        for name, shape in _SECRETS:
            for found in shape.finditer(text):
                part = next((one for one in ("value", "given") if one in found.groupdict()), 0)
                if part != "given" or _is_likely(found["given"]):
                    yield Finding("secret", name, found.start(part), found.end(part), _CONFIDENCE)
    if "personal" in kinds:
        for name, shape in _PERSONAL:
            for found in shape.finditer(text):
                yield Finding("personal", name, found.start(), found.end(), _CONFIDENCE)
        for found in CARD.finditer(text):
            number = found[0].replace(" ", "").replace("-", "")
            if BRANDS.fullmatch(number) and check_digits.luhn(number):
                yield Finding("personal", "card", found.start(), found.end(), _CONFIDENCE)


def _is_likely(value: str) -> bool:
    """Letters with a digit or a sign among them, or a password of every list."""
    value = value.rstrip(".!?:)")
    if value.lower() in _COMMON:
        return True
    return any(map(str.isalpha, value)) and any(one.isdigit() or one in "!@#%^&*" for one in value)
