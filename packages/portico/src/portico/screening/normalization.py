"""Character normalization with unchanged positions.

Word processors, web pages and East Asian input methods write spaces and punctuation differently. Every character keeps
its position, so that findings apply to the original text.
"""

from __future__ import annotations

import re
from array import array

from portico.screening.lazy_patterns import lazy_pattern

_UNICODE_SPACES = (
    "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u200b\u202f\u205f\u2060\u3000\ufeff"
)
# The full-width forms have the same order as ASCII.
_FULLWIDTH = {0xFF01 + at: 0x21 + at for at in range(94)}
_OTHERS = {"﹕": ":", "∶": ":", "꞉": ":", "ː": ":", "﹦": "=", "₌": "=", "᠄": ":"}
_LETTERS: dict[int, str | int] = {
    **dict.fromkeys(map(ord, _UNICODE_SPACES), " "),
    **_FULLWIDTH,
    **{ord(char): replacement for char, replacement in _OTHERS.items()},
}
# In `密码是…` the word for `is` is not followed by a space.
_IS = lazy_pattern(
    "(?<=密码|密碼|口令)[是为為]|(?:(?<=パスワード)|(?<=暗証番号))[はが]|(?:(?<=비밀번호|패스워드)|(?<=암호))[는은]"
)
_ANNOUNCING = ("密码", "密碼", "口令", "パスワード", "暗証番号", "비밀번호", "패스워드", "암호")
_TO_TRANSLATE = lazy_pattern(f"[{''.join(map(re.escape, map(chr, sorted(_LETTERS))))}]")
# Characters without a glyph, which text can contain anywhere: Unicode's default ignorable code points, and controls
# that are not white space.
_INVISIBLE = lazy_pattern(
    "[\x00-\x08\x0e-\x1a\x7f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# Copied web pages contain entities and tags between a keyword and its value.
_MARKUP = lazy_pattern(
    r"(?P<tag></?(?:b|i|u|em|strong|code)>)|&(?:(?P<space>nbsp|ensp|emsp|thinsp|#160|#xa0|#32|#x20|#12288|#x3000)|(?P<colon>colon|#58|#x3a|#65306|#xff1a)"
    r"|(?P<equals>equals|#61|#x3d)|(?P<quote>quot|apos|#34|#39|#x22|#x27));",
    re.IGNORECASE,
)
_SIGNS = {"tag": " ", "space": " ", "colon": ":", "equals": "=", "quote": '"'}


def normalize_text(text: str) -> str:
    """Return the text with plain spaces and punctuation, of the same length."""
    if not text.isascii():
        # Both replacements scan every character, and hardly any text needs them: a search first is much faster.
        text = text.translate(_LETTERS) if _TO_TRANSLATE.search(text) else text
        text = _IS.sub(":", text) if any(word in text for word in _ANNOUNCING) else text
    return _MARKUP.sub(_sign, text) if "&" in text or "</" in text else text


def has_invisible(text: str) -> bool:
    return _INVISIBLE.search(text) is not None


def remove_invisible(text: str) -> tuple[str, array[int]]:
    """Return the text without invisible characters, and the position of each remaining character."""
    pieces, positions, at = [], array("L"), 0
    for match in _INVISIBLE.finditer(text):
        pieces.append(text[at : match.start()])
        positions.extend(range(at, match.start()))
        at = match.end()
    pieces.append(text[at:])
    positions.extend(range(at, len(text)))
    return "".join(pieces), positions


def _sign(match: re.Match[str]) -> str:
    sign = _SIGNS[match.lastgroup or "space"]
    before = match.string[match.start() - 1 : match.start()]
    # A closing quote directly follows the text; everything else directly precedes it.
    if sign == '"' and before not in ("", " ", ":", "=", ";", "\t", "\n", "("):
        return sign.ljust(match.end() - match.start())
    # Padded, because findings refer to positions in the original text.
    return sign.rjust(match.end() - match.start())
