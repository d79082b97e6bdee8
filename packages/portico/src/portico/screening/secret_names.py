"""Classification of names: a password in `DB_PASSWORD`, nothing secret in `max_tokens`."""

from __future__ import annotations

import re
from typing import Literal

from portico.screening.lazy_patterns import lazy_pattern

SecretKind = Literal["password", "secret", "token", "key", "credential"]

PASSWORD_WORDS = (
    r"pass(?:word|wort|ord|wd|phrase|code)?|p(?:wd|sk|w)(?<![a-z]p[ws])(?<![a-z]p[ws][dk])(?![a-z])|kennwort|contrase[ñn]a"
    r"|mot de passe|senha|wachtwoord|hasło|пароль|密[码碼]|口令|パスワード|暗証番号|비밀번호|패스워드|암호"
    r"|parol[aă](?![a-z])|[şs]ifre|lösenord|adgangskode|kodeord|salasana|heslo|jelszó|κωδικός|סיסמה"
    r"|كلمة (?:المرور|السر)|पासवर्ड|mật khẩu|kata sandi|รหัสผ่าน"
)
SECRET_WORDS = rf"{PASSWORD_WORDS}|secret|token|key|auth|cred"
# A lowercase text without any of these contains none of the keywords.
_SIGNS = """
    pass pwd secret token key auth cred pw psk kennwort contrase senha wachtwoord hasło пароль 密码 密碼 口令 パスワード
    暗証番号 비밀번호 패스워드 암호 parol şifre sifre lösenord adgangskode kodeord salasana heslo jelszó κωδικός סיסמה
    كلمة पासवर्ड khẩu sandi รหัสผ่าน
"""
SECRET_KEYWORDS = tuple(_SIGNS.split())

# Names with one of these words are never secrets.
_PUBLIC_NAMES = lazy_pattern(
    r"public|pub_?key|webtoken|[cx]srf|nonce|fingerprint|checksum|digest|\bsha[0-9]|etag|integrity|hash"
)
# Harmless names that contain a keyword: words before the keyword, and words after it.
_BENIGN_NAMES = lazy_pattern(
    r"""(?x)
      (?: next|page|prev|previous|continuation|sync|cursor|delta|resume|change|pagination|stop|eos|bos|pad|mask|sep|unk
      ) [_.\- ]? token
    | tokens \b | token [_.\- ]? (?: type|count|limit|len|size|ur[li]|endpoint|name|ids?\b|index|expir|ttl|usage|budget
      |i[sz]e|file|path|issuer|format|bucket|ring|kind|class|pos|stream|list|map|data|store|provider|request|response )
    | (?: primary|foreign|partition|sort|cache|object|row|map|lookup|unique|composite|group|dedup|duplication
      |idempotency|translation|i18n|registry|routing|range|answer|hot|arrow|natural|surrogate|index|idx|dict|json|tab
      |enter|shift|ctrl|alt|s3|redis|turn|mon|don|hoc|whis|ssh|host|gpg|pgp|deploy|sub|super|order|shard|bucket|meta
      ) [_.\- ]? key
    | key [_.\- ]? (?: ids?\b|name|type|code|word|board|frame|press|down|up\b|size|len|path|file|store|ring|pair|value
      |vault|usage|prefix|alias|spec|note|stone|sym|map|error|event|s\b|func|points?|fields?|set\b|stroke|hole )
    | secrets? [_.\- ]? (?: ids?\b|name|ref|arn|path|version|type|manager|s?engine|len|size|store|santa|s\b )
    | pass (?: word|wd )? [_.\- ]? (?: policy|min|max|len|reset|field|input|confirm|file|path|type|url|expir|strength
      |hint|label|regex|pattern|rule|env|prompt|less|store|manager|salt|changed|updated|valid|encoder|through|ing|ed\b
      |enger|ive|port|age|command|cmd|es\b|ion|over|thru|box|safe|lib|column|attr )
    | authoriz \w{0,6} [_.\- ]? (?: ur[li]|endpoint|type|server|code|scheme )
    | auth [_.\- ]? (?: or(?!iz)|ur[li]|type|method|mode|provider|endpoint|host|domain|enabled|server|level|scheme|error
      |time|user|name|required|entic|ed\b|flow|backend|handler|module|service )
    | cred [_.\- ]? (?: it|o\b|ib|ul ) | credentials? [_.\- ]? (?: ids?\b|type|file|path|source|provider|helper|store )
    """
)
_SECRET_WORD = lazy_pattern(SECRET_WORDS)
_KIND_PATTERNS: tuple[tuple[SecretKind, re.Pattern[str]], ...] = (
    # People choose the key of a wireless network.
    ("password", lazy_pattern(rf"{PASSWORD_WORDS}|(?:wi-?fi|wpa2?|wlan|network|hotspot)[_.\- ]?key")),
    ("secret", lazy_pattern("secret")),
    ("token", lazy_pattern("token|bearer")),
    ("key", lazy_pattern(r"key(?:s|str|string|material|base|hex|b64|base64|data)?(?![a-z])")),
)
_KEY_ALONE = lazy_pattern(
    r"\W{0,9}+(?:(?:the|a|my|your|this|that|new|old|same|each|every|any|and|or|of)\W{1,9}+)?key\W{0,9}+"
)
# Keys that may look like digests; anything may precede a bare `key`.
_KEY_OF = lazy_pattern(
    r"(?:api|app|application|access|secret|auth|private|encrypt(?:ion)?|sign(?:ing)?|account|master|service|role|client"
    r"|subscription|server|session|admin|integration|write|hmac|jwt|aes|consumer|licen[cs]e|ingest|insert|ocp|functions?"
    r"|instrumentation|datadog|dd|openai|stripe|algolia|mailgun|sendgrid|maps?|weather|azure|aws|gcp|cloudflare|heroku"
    r"|sentry|relic)[_.\- ]?key"
)


def classify_name(name: str) -> SecretKind | None:
    """Return the kind of secret that a name indicates, or None."""
    if _PUBLIC_NAMES.search(name):
        return None
    # In `keystore.password` the last word is decisive.
    words = [match.end() for match in _SECRET_WORD.finditer(name)]
    if _BENIGN_NAMES.search(name, words[-2] if len(words) > 1 else 0):
        return None
    kind = next((kind for kind, words in _KIND_PATTERNS if words.search(name)), None)
    if kind is None:
        return "credential" if "auth" in name or "cred" in name else None
    return None if kind == "key" and _KEY_ALONE.fullmatch(name) else kind


def is_specific_key(name: str) -> bool:
    return _KEY_OF.search(name) is not None
