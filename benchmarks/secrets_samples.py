"""Generate labelled texts for the screening from alphabets, lengths and check digits.

No line here is a credential or looks like one. A maker draws a value of the form that a provider documents; a template
is a piece of a file, a log or a talk with a slot for it. Templates come in two parts: patterns are tuned on one and
reported on the other. Negatives are texts without any secret that are easily taken for one.
"""

from __future__ import annotations

import base64
import json
import random
import re
import string
import zlib
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import secrets_templates as templates

Part = Literal["tune", "report"]
Maker = Callable[[random.Random], str]

DIGITS = string.digits
LOW = string.ascii_lowercase
UP = string.ascii_uppercase
LETTERS = string.ascii_letters
WORD = LETTERS + DIGITS
HEX = "0123456789abcdef"
BASE32 = UP + "234567"
B64 = WORD + "+/"
URL = WORD + "-_"
LOW_WORD = LOW + DIGITS
UP_WORD = UP + DIGITS


class Label(NamedTuple):
    kind: str
    name: str
    start: int
    end: int


class Sample(NamedTuple):
    text: str
    labels: tuple[Label, ...]
    group: str
    part: Part


def draw(rng: random.Random, alphabet: str, size: int, most: int = 0) -> str:
    return "".join(rng.choices(alphabet, k=rng.randint(size, most) if most else size))


def mixed(rng: random.Random, alphabet: str, size: int) -> str:
    """Draw characters with at least a digit, a lower-case and an upper-case letter if the alphabet has them."""
    while True:
        value = draw(rng, alphabet, size)
        if all(any(c in kind for c in value) for kind in (DIGITS, LOW, UP) if set(kind) & set(alphabet)):
            return value


def uuid(rng: random.Random) -> str:
    h = draw(rng, HEX, 32)
    return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{rng.choice('89ab')}{h[17:20]}-{h[20:]}"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def github(prefix: str) -> Maker:
    def make(rng: random.Random) -> str:
        body = draw(rng, WORD, 30)
        check, digits = zlib.crc32(body.encode()), ""
        while check:
            check, place = divmod(check, 62)
            digits = (DIGITS + UP + LOW)[place] + digits
        return prefix + body + digits.rjust(6, "0")

    return make


def marked(prefix: str, alphabet: str, size: int, most: int = 0, suffix: str = "") -> Maker:
    return lambda rng: prefix + draw(rng, alphabet, size, most) + suffix


# Keys that say whose they are. Prefix, alphabet and length as the providers document or show them.
MARKED: dict[str, Maker] = {
    "aws access key": marked("AKIA", BASE32, 16),
    "aws temporary key": marked("ASIA", BASE32, 16),
    "github classic": github("ghp_"),
    "github oauth": github("gho_"),
    "github server": github("ghs_"),
    "github fine-grained": lambda rng: f"github_pat_{draw(rng, WORD, 22)}_{draw(rng, WORD, 59)}",
    "gitlab": marked("glpat-", URL, 20),
    "gitlab runner": marked("glrt-", URL, 20),
    "slack bot": lambda rng: f"xoxb-{draw(rng, DIGITS, 12)}-{draw(rng, DIGITS, 13)}-{draw(rng, WORD, 24)}",
    "slack user": lambda rng: "xoxp-" + "-".join(draw(rng, DIGITS, 12) for _ in range(3)) + "-" + draw(rng, HEX, 32),
    "slack app": lambda rng: f"xapp-1-A{draw(rng, UP_WORD, 10)}-{draw(rng, DIGITS, 13)}-{draw(rng, HEX, 64)}",
    "stripe": marked("sk_live_", WORD, 24),
    "stripe long": marked("sk_live_51", WORD, 97),
    "stripe restricted": marked("rk_live_", WORD, 24),
    "stripe webhook": marked("whsec_", WORD, 32),
    "openai": lambda rng: f"sk-proj-{draw(rng, URL, 74)}T3BlbkFJ{draw(rng, URL, 74)}",
    "openai legacy": lambda rng: f"sk-{draw(rng, WORD, 20)}T3BlbkFJ{draw(rng, WORD, 20)}",
    "anthropic": lambda rng: f"sk-ant-api03-{draw(rng, URL, 93)}AA",
    "openrouter": marked("sk-or-v1-", HEX, 64),
    "deepseek": marked("sk-", HEX, 32),
    "groq": marked("gsk_", WORD, 52),
    "hugging face": marked("hf_", LETTERS, 34),
    "perplexity": marked("pplx-", WORD, 48),
    "replicate": marked("r8_", WORD, 37),
    "xai": marked("xai-", WORD, 80),
    "google api": marked("AIza", URL, 35),
    "google oauth secret": marked("GOCSPX-", URL, 28),
    "google access token": marked("ya29.a0", URL, 160),
    "azure client secret": lambda rng: f"{draw(rng, WORD, 3)}8Q~{draw(rng, WORD + '_-.', 34)}",
    "digitalocean": marked("dop_v1_", HEX, 64),
    "heroku": marked("HRKU-AA", URL, 58),
    "netlify": marked("nfp_", WORD, 40),
    "fly": marked("fm2_", B64, 120, 160),
    "supabase": marked("sbp_", HEX, 40),
    "planetscale": marked("pscale_tkn_", URL, 43),
    "tailscale": lambda rng: f"tskey-auth-k{draw(rng, WORD, 11)}CNTRL-{draw(rng, WORD, 32)}",
    "npm": github("npm_"),
    "pypi": marked("pypi-" + b64(b"\2\1\x08" + b".".join((b"pypi", b"org"))).rstrip("="), URL, 140, 170),
    "rubygems": marked("rubygems_", HEX, 48),
    "docker hub": marked("dckr_pat_", URL, 27),
    "terraform cloud": lambda rng: f"{draw(rng, WORD, 14)}.atlasv1.{draw(rng, URL, 67)}",
    "vault": marked("hvs.", URL, 92),
    "doppler": marked("dp.pt.", WORD, 43),
    "pulumi": marked("pul-", HEX, 40),
    "databricks": marked("dapi", HEX, 32),
    "grafana": lambda rng: f"glsa_{draw(rng, WORD, 32)}_{draw(rng, HEX, 8)}",
    "new relic": marked("NRAK-", UP_WORD, 27),
    "sentry": marked("sntryu_", HEX, 64),
    "postman": lambda rng: f"PMAK-{draw(rng, HEX, 24)}-{draw(rng, HEX, 34)}",
    "linear": marked("lin_api_", WORD, 40),
    "notion": lambda rng: f"ntn_{draw(rng, DIGITS, 11)}{draw(rng, WORD, 35)}",
    "airtable": lambda rng: f"pat{draw(rng, WORD, 14)}.{draw(rng, HEX, 64)}",
    "atlassian": lambda rng: f"ATATT3xFfGF0{draw(rng, URL, 171)}={draw(rng, HEX.upper(), 8)}",
    "sendgrid": lambda rng: f"SG.{draw(rng, URL, 22)}.{draw(rng, URL, 43)}",
    "twilio": marked("SK", HEX, 32),
    "mailgun": marked("key-", HEX, 32),
    "mailchimp": lambda rng: f"{draw(rng, HEX, 32)}-us{rng.randint(1, 21)}",
    "brevo": lambda rng: f"xkeysib-{draw(rng, HEX, 64)}-{draw(rng, WORD, 16)}",
    "telegram": lambda rng: f"{rng.randint(10**8, 10**10 - 1)}:AA{draw(rng, URL, 33)}",
    "discord bot": lambda rng: (
        f"{b64(str(rng.randint(3 * 10**17, 10**18 - 1)).encode())}.{draw(rng, URL, 6)}.{draw(rng, URL, 38)}"
    ),
    "shopify": marked("shpat_", HEX, 32),
    "square": marked("sq0atp-", URL, 22),
    "plaid": lambda rng: f"access-production-{uuid(rng)}",
    "figma": marked("figd_", URL, 40),
    "hubspot": lambda rng: f"pat-na1-{uuid(rng)}",
    "dynatrace": lambda rng: f"dt0c01.{draw(rng, UP_WORD, 24)}.{draw(rng, UP_WORD, 64)}",
    "age": marked("AGE-SECRET-KEY-1", "QPZRY9X8" + "GF2TVDW0" + "S3JN54KH" + "CE6MUA7L", 58),
    "langsmith": lambda rng: f"lsv2_pt_{draw(rng, HEX, 32)}_{draw(rng, HEX, 10)}",
    "alibaba": marked("LTAI5t", WORD, 18),
    "aws bedrock": marked("ABSK", B64, 128),
    "jfrog": marked("AKCp", WORD, 69),
}

# Keys without a prefix: only the context identifies them.
UNMARKED: dict[str, Maker] = {
    "hex 32": lambda rng: draw(rng, HEX, 32),
    "hex 40": lambda rng: draw(rng, HEX, 40),
    "hex 64": lambda rng: draw(rng, HEX, 64),
    "base62 20": lambda rng: mixed(rng, WORD, 20),
    "base62 32": lambda rng: mixed(rng, WORD, 32),
    "base62 40": lambda rng: mixed(rng, WORD, 40),
    "base64 44": lambda rng: b64(rng.randbytes(32)),
    "base64url 43": lambda rng: mixed(rng, URL, 43),
    "base36 25": lambda rng: mixed(rng, LOW_WORD, 25),
    "uuid": uuid,
    "own prefix": lambda rng: (
        f"{rng.choice(['acme', 'prod', 'zt', 'svc'])}_{rng.choice(['live', 'key', 'v2'])}_{mixed(rng, WORD, 32)}"
    ),
}

_PEOPLE = "summer winter dragon monkey shadow hunter falcon harbor copper velvet orange rocket tiger sunshine coffee bailey".split()
_WORDS = "correct horse battery staple river mango candle purple anchor violin meadow pepper lantern window saddle copper".split()


def chosen_password(rng: random.Random) -> str:
    """Return a password as users choose them under a policy with digits and symbols."""
    word = rng.choice(_PEOPLE)
    year = str(rng.randint(1960, 2026))
    ways = (
        lambda: word.capitalize() + year + rng.choice("!?#$."),
        lambda: word + draw(rng, DIGITS, 2, 4),
        lambda: (
            word.replace("o", "0").replace("e", "3").replace("a", "@").capitalize()
            + draw(rng, DIGITS, 1, 2)
            + rng.choice("!#")
        ),
        lambda: f"{word.capitalize()}-{rng.choice(_WORDS)}-{rng.randint(10, 99)}",
        lambda: f"{rng.choice(_WORDS)}{rng.choice('_.+*')}{word}{rng.randint(1, 99)}",
    )
    value = rng.choice(ways)().rstrip(".")
    return value if len(value) >= 7 else value + "77"


def made_password(rng: random.Random) -> str:
    """Return a password as password managers generate them."""
    while True:
        value = draw(rng, WORD + "!@#%^*_+=-", 12, 24)
        if (
            any(c in DIGITS for c in value)
            and any(c in LETTERS for c in value)
            and value[0] in WORD
            and value[-1] in WORD + "!"
        ):
            return value


def plain_password(rng: random.Random) -> str:
    return rng.choice(_PEOPLE) + rng.choice(_WORDS)


PASSWORDS: dict[str, Maker] = {"chosen": chosen_password, "made": made_password}


def pem(label: str, size: int) -> Maker:
    def make(rng: random.Random) -> str:
        body = b64(rng.randbytes(size))
        lines = "\n".join(body[at : at + 64] for at in range(0, len(body), 64))
        return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----"

    return make


def jwt(rng: random.Random) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")

    head = {"alg": rng.choice(["HS256", "RS256", "ES256"]), "typ": "JWT"}
    body = {"sub": str(rng.randint(1, 10**9)), "iat": rng.randint(16 * 10**8, 18 * 10**8), "scope": "read"}
    return f"{part(head)}.{part(body)}.{draw(rng, URL, rng.choice([43, 86, 342]))}"


def url_safe_password(rng: random.Random) -> str:
    return re.sub(r"[^0-9A-Za-z_\-!*.+]", "x", rng.choice(list(PASSWORDS.values()))(rng)) + draw(rng, DIGITS, 1)


# Fillers of templates: %word% is drawn for each occurrence.
FILLERS: dict[str, Maker] = {
    "pem": lambda rng: "-" * 5,
    "uuid": uuid,
    "sha1": lambda rng: draw(rng, HEX, 40),
    "sha256": lambda rng: draw(rng, HEX, 64),
    "md5": lambda rng: draw(rng, HEX, 32),
    "short": lambda rng: draw(rng, HEX, 7, 12),
    "host": lambda rng: f"{rng.choice(_WORDS)}-{rng.randint(1, 40)}.{rng.choice(['internal', 'prod.acme.net', 'eu-west-1.compute.internal'])}",
    "name": lambda rng: rng.choice(["anna", "bilal", "chen", "dora", "emeka", "farah", "goran", "hana", "ines", "jonas"]),
    "word": lambda rng: rng.choice(_WORDS),
    "n": lambda rng: str(rng.randint(2, 9999)),
    "n6": lambda rng: draw(rng, DIGITS, 6),
    "time": lambda rng: f"20{rng.randint(20, 26)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}T{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}Z",
    "date": lambda rng: f"20{rng.randint(20, 26)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
    "ver": lambda rng: f"{rng.randint(0, 30)}.{rng.randint(0, 30)}.{rng.randint(0, 90)}",
    "ver4": lambda rng: f"{rng.randint(1, 9)}.{rng.randint(0, 9)}.{rng.randint(0, 19)}.{rng.randint(0, 99)}",
    "ip": lambda rng: rng.choice(["10", "192.168", "172.16"]) .replace("10", f"10.{rng.randint(0, 255)}") + f".{rng.randint(0, 255)}.{rng.randint(1, 254)}",
    "img": lambda rng: b64(rng.randbytes(rng.randint(90, 400))),
    "b64short": lambda rng: b64(rng.randbytes(32)),
    "d16": lambda rng: draw(rng, "123456789", 1) + draw(rng, DIGITS, 15),
    "d9": lambda rng: draw(rng, "123456789", 1) + draw(rng, DIGITS, 8),
    "d10": lambda rng: draw(rng, "123456789", 1) + draw(rng, DIGITS, 9),
    "d12": lambda rng: draw(rng, "123456789", 1) + draw(rng, DIGITS, 11),
    "d13": lambda rng: "17" + draw(rng, DIGITS, 11),
    "base58": lambda rng: draw(rng, "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz", 44),
    "nanoid": lambda rng: mixed(rng, URL, 21),
    "cuid": lambda rng: "c" + draw(rng, LOW_WORD, 24),
    "ulid": lambda rng: "01" + draw(rng, "0123456789ABCDEFGHJKMNPQRSTVWXYZ", 24),
}  # fmt: skip
_SLOT = re.compile(r"%([a-z0-9]+)%")


def filled(template: str, rng: random.Random) -> str:
    return _SLOT.sub(lambda result: FILLERS[result[1]](rng) if result[1] in FILLERS else result[0], template)


def placed(template: str, value: str, rng: random.Random, label: tuple[str, str], group: str, part: Part) -> Sample:
    """Return a template with its fillers and the value in its slot."""
    before, _, after = filled(template, rng).partition("§")
    return Sample(before + value + after, (Label(*label, len(before), len(before) + len(value)),), group, part)


# Personal data


def luhn_digit(digits: str) -> str:
    total = sum(sum(divmod(int(d) * (2 - place % 2), 10)) for place, d in enumerate(reversed(digits)))
    return str(-total % 10)


def card(rng: random.Random, valid: bool = True) -> str:
    prefix, size = rng.choice(
        [("4", 16), ("51", 16), ("54", 16), ("2221", 16), ("37", 15), ("6011", 16), ("3530", 16), ("36", 14)]
    )
    digits = prefix + draw(rng, DIGITS, size - len(prefix) - 1)
    check = luhn_digit(digits)
    digits += check if valid else str((int(check) + rng.randint(1, 9)) % 10)
    return digits


def written_card(rng: random.Random) -> str:
    digits, gap = card(rng), rng.choice(["", " ", "-"])
    if len(digits) == 16:
        return gap.join(digits[at : at + 4] for at in range(0, 16, 4))
    return gap.join([digits[:4], digits[4:10], digits[10:]])


def iban(rng: random.Random) -> str:
    country, size, letters = rng.choice(
        [
            ("DE", 18, 0),
            ("GB", 18, 4),
            ("FR", 23, 0),
            ("NL", 14, 4),
            ("ES", 20, 0),
            ("CH", 17, 0),
            ("PL", 24, 0),
            ("SE", 20, 0),
            ("AT", 16, 0),
        ]
    )
    account = draw(rng, UP, letters) + draw(rng, DIGITS, size - letters) if letters else draw(rng, DIGITS, size)
    number = "".join(str(int(c, 36)) for c in account + country + "00")
    whole = f"{country}{98 - int(number) % 97:02}{account}"
    return whole if rng.random() < 0.5 else " ".join(whole[at : at + 4] for at in range(0, len(whole), 4))


def by_check(make: Maker, adds_up: Callable[[str], bool]) -> Maker:
    def made(rng: random.Random) -> str:
        while not adds_up(value := make(rng)):
            pass
        return value

    return made


def spaced(groups: list[int], gaps: list[str]) -> Callable[[str, random.Random], str]:
    def write(value: str, rng: random.Random) -> str:
        gap, at, parts = rng.choice(gaps), 0, []
        for size in groups:
            parts.append(value[at : at + size])
            at += size
        return gap.join(parts)

    return write


def written(make: Maker, groups: list[int], gaps: list[str]) -> Maker:
    write = spaced(groups, gaps)
    return lambda rng: write(make(rng), rng)


def tfn_adds_up(digits: str) -> bool:
    return sum(int(d) * w for d, w in zip(digits, (1, 4, 3, 7, 5, 8, 6, 9, 10), strict=True)) % 11 == 0


_D5 = "0123456789 1234067895 2340178956 3401289567 4012395678 5987604321 6598710432 7659821043 8765932104 9876543210".split()
_P8 = "0123456789 1576283094 5803796142 8916043527 9453126870 4286573901 2793806415 7046913258".split()


def verhoeff_adds_up(digits: str) -> bool:
    check = 0
    for place, digit in enumerate(reversed(digits)):
        check = int(_D5[check][int(_P8[place % 8][int(digit)])])
    return check == 0


def ssn(rng: random.Random) -> str:
    area = rng.choice([n for n in range(1, 900) if n != 666])
    return f"{area:03}-{rng.randint(1, 99):02}-{rng.randint(1, 9999):04}"


def nino(rng: random.Random) -> str:
    while True:
        two = rng.choice("ABCEGHJKLMNOPRSTWXYZ") + rng.choice("ABCEGHJKLMNPRSTWXYZ")
        if two not in ("BG", "GB", "NK", "KN", "TN", "NT", "ZZ"):
            digits, gap = draw(rng, DIGITS, 6), rng.choice(["", " "])
            return gap.join([two, digits[:2], digits[2:4], digits[4:], rng.choice("ABCD")])


def german_vat(rng: random.Random) -> str:
    digits, check = draw(rng, "123456789", 1) + draw(rng, DIGITS, 7), 10
    for digit in digits:
        check = ((check + int(digit)) % 10 or 10) * 2 % 11
    return f"DE{digits}{(11 - check) % 10}"


def vat(rng: random.Random) -> str:
    if rng.random() < 0.4:
        return german_vat(rng)
    if rng.random() < 0.5:
        digits = draw(rng, DIGITS, 10)
        return f"IT{digits}{luhn_digit(digits)}"
    return f"NL{draw(rng, DIGITS, 9)}B0{rng.randint(1, 9)}"


def phone(rng: random.Random) -> str:
    area, exchange, line = (
        rng.choice(["212", "415", "646", "303", "512"]),
        str(rng.choice([n for n in range(220, 990) if n // 10 % 10 + n % 10 != 2 and n != 555])),
        draw(rng, DIGITS, 4),
    )
    return rng.choice(
        [
            f"+1 {area} {exchange} {line}",
            f"+1-{area}-{exchange}-{line}",
            f"({area}) {exchange}-{line}",
            f"{area}-{exchange}-{line}",
            f"{area}.{exchange}.{line}",
            f"+44 20 7{draw(rng, DIGITS, 3)} {draw(rng, DIGITS, 4)}",
            f"+49 30 {draw(rng, '23456789', 1)}{draw(rng, DIGITS, 6)}",
            f"+33 6 {draw(rng, DIGITS, 2)} {draw(rng, DIGITS, 2)} {draw(rng, DIGITS, 2)} {draw(rng, DIGITS, 2)}",
            f"+91 9{draw(rng, DIGITS, 4)} {draw(rng, DIGITS, 5)}",
            f"+4917{draw(rng, DIGITS, 9)}",
        ]
    )


def public_ip(rng: random.Random) -> str:
    if rng.random() < 0.2:
        return "2a0" + draw(rng, HEX, 1) + ":" + ":".join(draw(rng, HEX[1:], 1) + draw(rng, HEX, 3) for _ in range(7))
    return f"{rng.choice([23, 45, 52, 81, 91, 104, 178, 185])}.{rng.randint(21, 250)}.{rng.randint(0, 255)}.{rng.randint(1, 254)}"


def birthday(rng: random.Random) -> str:
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(1940, 2015)
    name = "January February March April May June July August September October November December".split()[month - 1]
    return rng.choice(
        [
            f"{year}-{month:02}-{day:02}",
            f"{day:02}/{month:02}/{year}",
            f"{day}.{month}.{year}",
            f"{day} {name} {year}",
            f"{name} {day}, {year}",
        ]
    )


def email(rng: random.Random) -> str:
    first, last = FILLERS["name"](rng), rng.choice(["meyer", "okafor", "li", "rossi", "novak", "garcia", "smith"])
    local = rng.choice(
        [f"{first}.{last}", f"{first[0]}{last}", f"{first}+{last}", f"{first}_{last}{rng.randint(1, 99)}"]
    )
    return f"{local}@{rng.choice(['gmail.com', 'acme-corp.de', 'uni-leeds.ac.uk', 'outlook.com', 'mail.cz', 'startup.io'])}"


def postcode(rng: random.Random) -> str:
    return rng.choice(
        [
            draw(rng, DIGITS, 5),
            f"{draw(rng, DIGITS, 5)}-{draw(rng, DIGITS, 4)}",
            f"SW{rng.randint(1, 19)} {rng.randint(1, 9)}AB",
            f"K{rng.randint(1, 9)}A {rng.randint(0, 9)}B{rng.randint(1, 9)}",
        ]
    )


PERSONAL_MAKERS: dict[str, Maker] = {
    "email": email,
    "phone": phone,
    "card": by_check(written_card, lambda value: len(set(value)) > 5),
    "iban": iban,
    "us_ssn": ssn,
    "uk_nino": nino,
    "ca_sin": written(lambda rng: (lambda d: d + luhn_digit(d))(draw(rng, "1234567", 1) + draw(rng, DIGITS, 7)), [3, 3, 3], ["", " ", "-"]),
    "au_tfn": written(by_check(lambda rng: draw(rng, DIGITS, 9), tfn_adds_up), [3, 3, 3], ["", " "]),
    "in_aadhaar": written(by_check(lambda rng: draw(rng, "23456789", 1) + draw(rng, DIGITS, 11), verhoeff_adds_up), [4, 4, 4], ["", " "]),
    "in_pan": lambda rng: draw(rng, UP, 3) + rng.choice("PCHF") + draw(rng, UP, 1) + draw(rng, DIGITS, 4) + draw(rng, UP, 1),
    "eu_vat": vat,
    "passport": lambda rng: rng.choice(["", "X", "C0", "AB"]) + draw(rng, DIGITS, 7, 8),
    "driving_licence": lambda rng: rng.choice(["", "D", "S", "MORGA"]) + draw(rng, DIGITS, 7, 8) + rng.choice(["", "SM9IJ"]),
    "ip_address": public_ip,
    "date_of_birth": birthday,
    "postal_code": postcode,
}  # fmt: skip

FILLERS["notcard"] = lambda rng: card(rng, valid=False)
FILLERS["notcarddashed"] = lambda rng: "-".join(re.findall("....?", card(rng, valid=False)))

# All of it


def samples(seed: int = 6, rounds: int = 3) -> Iterator[Sample]:
    """Yield every maker in every template that fits it, `rounds` times, deterministic for a seed."""
    rng = random.Random(seed)
    for _ in range(rounds):
        for part in PARTS:
            yield from _secrets(rng, part)
            for name, make in PERSONAL_MAKERS.items():
                for template in templates.PERSONAL[name][part]:
                    for _ in range(3):
                        yield placed(template, make(rng), rng, ("personal", name), name, part)
            for template in templates.NEGATIVES[part]:
                for _ in range(12):
                    yield Sample(filled(template, rng), (), "negative", part)


def _secrets(rng: random.Random, part: Part) -> Iterator[Sample]:
    def put(template: str, make: Maker, name: str, group: str) -> Sample:
        return placed(template, make(rng), rng, ("secret", name), group, part)

    for name, make in MARKED.items():
        for template in rng.sample(templates.MARKED[part], 6):
            yield put(template, make, name, "marked key")
    for template in templates.UNMARKED[part]:
        for name, make in UNMARKED.items():
            yield put(template, make, name, "unmarked key")
    for template in templates.PASSWORDS[part]:
        for name, make in PASSWORDS.items():
            for _ in range(4):
                yield put(template, make, name, "password")
    for template in templates.PLAIN_PASSWORDS[part]:
        for _ in range(6):
            yield put(template, plain_password, "plain", "password")
    for kinds, makers, group in (
        (templates.PRIVATE_KEYS, {label: pem(label, size) for label, size in KEY_FILES.items()}, "private key"),
        (templates.TOKENS, {"jwt": jwt}, "web token"),
        (templates.URLS, {"url password": url_safe_password}, "url password"),
        (
            templates.BASIC,
            {"basic": lambda rng: b64(f"{FILLERS['name'](rng)}:{made_password(rng)}".encode())},
            "header",
        ),
        (
            templates.WEBHOOKS,
            {"slack webhook": lambda rng: f"T{draw(rng, UP_WORD, 9)}/B{draw(rng, UP_WORD, 10)}/{draw(rng, WORD, 24)}"},
            "webhook",
        ),
        (
            templates.SIGNED,
            {
                "signature": lambda rng: (
                    draw(rng, HEX, 64)
                    if part == "report"
                    else b64(rng.randbytes(32)).replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
                )
            },
            "signed url",
        ),
        (templates.COOKIES, {"cookie": lambda rng: mixed(rng, WORD, 32)}, "cookie"),
    ):
        for template in kinds[part]:
            for name, make in makers.items():
                for _ in range(4):
                    yield put(template, make, name, group)


KEY_FILES = {
    "RSA PRIVATE KEY": 1190,
    "PRIVATE KEY": 1216,
    "EC PRIVATE KEY": 121,
    "OPENSSH PRIVATE KEY": 400,
    "PGP PRIVATE KEY BLOCK": 1500,
}
PARTS: tuple[Part, ...] = ("tune", "report")
