"""A text as the patterns expect it, letter for letter: word processors, web pages and East Asian keyboards write spaces
and signs in other ways. Every place stays where it is, so that a finding is one in the text itself."""

from __future__ import annotations

import re

from portico.screening.lazy_patterns import pattern

_SPACES = (
    "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u200b\u202f\u205f\u2060\u3000\ufeff"
)
# The full-width letters, digits and signs are the ones of ASCII, in the same order.
_WIDE = {0xFF01 + at: 0x21 + at for at in range(94)}
_OTHERS = {"﹕": ":", "∶": ":", "꞉": ":", "ː": ":", "﹦": "=", "₌": "=", "᠄": ":"}
_LETTERS: dict[int, str | int] = {
    **dict.fromkeys(map(ord, _SPACES), " "),
    **_WIDE,
    **{ord(one): other for one, other in _OTHERS.items()},
}
# `密码是…`: what stands for `is` there is written without a space.
_IS = pattern(
    "(?<=密码|密碼|口令)[是为為]|(?:(?<=パスワード)|(?<=暗証番号))[はが]|(?:(?<=비밀번호|패스워드)|(?<=암호))[는은]"
)
_ANNOUNCING = ("密码", "密碼", "口令", "パスワード", "暗証番号", "비밀번호", "패스워드", "암호")
_TO_TRANSLATE = pattern(f"[{''.join(map(re.escape, map(chr, sorted(_LETTERS))))}]")
_MARKUP = pattern(
    r"(?P<tag></?(?:b|i|u|em|strong|code)>)|&(?:(?P<space>nbsp|ensp|emsp|thinsp|#160|#xa0|#32|#x20|#12288|#x3000)|(?P<colon>colon|#58|#x3a|#65306|#xff1a)"
    r"|(?P<equals>equals|#61|#x3d)|(?P<quote>quot|apos|#34|#39|#x22|#x27));",
    re.IGNORECASE,
)
_SIGNS = {"tag": " ", "space": " ", "colon": ":", "equals": "=", "quote": '"'}


def plain(text: str) -> str:
    """The text with ordinary spaces and signs; as long as it was."""
    if not text.isascii():
        # Both look at every character, and hardly any text needs them: a search for what they change is much quicker.
        text = text.translate(_LETTERS) if _TO_TRANSLATE.search(text) else text
        text = _IS.sub(":", text) if any(word in text for word in _ANNOUNCING) else text
    return _MARKUP.sub(_sign, text) if "&" in text or "</" in text else text


def _sign(found: re.Match[str]) -> str:
    sign = _SIGNS[found.lastgroup or "space"]
    before = found.string[found.start() - 1 : found.start()]
    # A quote that ends something stands at once behind it; everything else at once before what follows.
    if sign == '"' and before not in ("", " ", ":", "=", ";", "\t", "\n", "("):
        return sign.ljust(found.end() - found.start())
    return sign.rjust(found.end() - found.start())
