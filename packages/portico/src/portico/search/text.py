"""Tokenizer and stemmer for every search in the services.

`painting`, `painted` and `paints` have the same stem, and so have `buy` and `bought`. English suffixes are removed by
Porter's algorithm (An algorithm for suffix stripping, 1980); the “measure” of a word is the number of vowel-consonant
sequences. Irregular forms are in a table. Words of other languages and numbers stay unchanged. Why this is not a
library: docs/decisions/stemming.md.

User text is data and never syntax: any text yields words.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

# A version number is one word; underscores, hyphens and apostrophes separate words.
_WORD = re.compile(r"\d+(?:\.\d+)+|[^\W_]+")
# The same for ASCII, and word boundaries in camel case; both optimized for speed.
_ASCII_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]*|[0-9]+(?:(?:\.[0-9]+)+|[A-Za-z0-9]*)")
# Text without a digit after a period contains no version number, so separators can simply become spaces.
_MAY_BE_VERSION = re.compile(r"\.[0-9]")
_SPACED = bytes(byte if chr(byte).isascii() and chr(byte).isalnum() else 32 for byte in range(256))
_CAMEL = re.compile(r"[A-Z](?:(?<=[a-z][A-Z])|[A-Z][a-z]{2})")
_CAMEL_WORD = re.compile(r"\b\w*(?:[a-z][A-Z]|[A-Z]{2}[a-z]{2})\w*")
_CAMEL_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
# Scripts without spaces between words: CJK and related ones.
_UNSPACED = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+")


def word_set(text: str) -> frozenset[str]:
    """Return the set of words in a text."""
    return frozenset(text.split())


# Words without meaning for search.
STOPWORDS = word_set(
    """
    a about am an and any are as at be been but by can could d did do does doing don for from had has have having he her
    hers him his how i if in into is it its just ll m me my not of on or our ours re s she so some t than that the their
    theirs them then there these they this to too us ve was we were what when where which while who whom whose why will
    with would you your yours
    """
)


def tokenize_words(lower: str) -> list[str]:
    """Return the words of a lowercase text, in order."""
    if lower.isascii():
        if _MAY_BE_VERSION.search(lower):
            return _ASCII_WORD.findall(lower)
        # Faster than the regular expression, which only version numbers need.
        return lower.encode().translate(_SPACED).decode().split()
    return [
        without_accent
        for word in _WORD.findall(lower)
        for without_accent in ((word,) if word.isascii() else _without_accents(word))
    ]


def split_camel_case(text: str) -> list[str]:
    """Split camel case: `getUserName` gives `get`, `user` and `name`. For `tokenize_words` it is one word."""
    if not _CAMEL.search(text):
        return []
    return [part.lower() for word in _CAMEL_WORD.findall(text) for part in _CAMEL_PART.findall(word)]


def _without_accents(word: str) -> list[str]:
    """Remove accents; in scripts without spaces, return overlapping character bigrams."""
    letters = unicodedata.normalize("NFKD", word).casefold()
    plain = unicodedata.normalize("NFC", "".join(letter for letter in letters if not unicodedata.combining(letter)))
    if not _UNSPACED.search(plain):
        return _WORD.findall(plain)
    # Bigrams are the usual replacement for word segmentation in Chinese and Japanese, without a
    # dictionary.
    pairs = [run[n : n + 2] for run in _UNSPACED.findall(plain) for n in range(max(1, len(run) - 1))]
    return pairs + _WORD.findall(_UNSPACED.sub(" ", plain))


# Stems

# The first form of each group is the base form.
_IRREGULAR = """
go goes went gone | make made | take took taken | get got gotten | give gave given | see saw seen | come came
know knew known | think thought | find found | tell told | become became | leave left | feel felt | bring brought
begin began begun | keep kept | hold held | write wrote written | stand stood | hear heard | meet met | run ran
pay paid | sit sat | speak spoke spoken | lead led | grow grew grown | lose lost | fall fell fallen | send sent
build built | understand understood | draw drew drawn | break broke broken | spend spent | drive drove driven
buy bought | wear wore worn | choose chose chosen | win won | teach taught | catch caught | fly flew flown
eat ate eaten | sing sang sung | swim swam swum | ride rode ridden | sell sold | throw threw thrown | sleep slept
fight fought | forget forgot forgotten | rise rose risen | shoot shot | steal stole stolen | wake woke woken
drink drank drunk | ring rang rung | hide hid hidden | bite bit bitten | blow blew blown | freeze froze frozen
shake shook shaken | tear tore torn | bend bent | lend lent | feed fed | deal dealt | dig dug | hang hung | light lit
seek sought | shine shone | sink sank sunk | slide slid | spin spun | stick stuck | strike struck | swear swore sworn
sweep swept | swing swung | weep wept | say said | mean meant | lay laid | child children | man men | woman women
person people | foot feet | tooth teeth | mouse mice | goose geese | life lives | wife wives | knife knives
leaf leaves | shelf shelves | half halves | wolf wolves | good better best | bad worse worst
"""
_FORMS = {
    form: group.split()[0] for line in _IRREGULAR.splitlines() for group in line.split("|") for form in group.split()
}

# Suffixes of Porter's steps 2, 3 and 4, longest first where one ends with another.
_DERIVED = (
    ("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("bli", "ble"),
    ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate"),
    ("ator", "ate"), ("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"),
    ("iviti", "ive"), ("biliti", "ble"), ("logi", "log"),
)  # fmt: skip
_SHORTENED = (
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", ""),
)  # fmt: skip
_DROPPED = (
    "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ion", "ism", "ate", "iti", "ous", "ive", "ize",
    "al", "er", "ic", "ou",
)  # fmt: skip


# The vocabulary of a catalog repeats: most words are looked up and not stemmed.
@lru_cache(65536)
def stem(word: str) -> str:
    """Return the stem of a lowercase word."""
    word = _FORMS.get(word, word)
    if len(word) < 3 or not (word.isascii() and word.isalpha()):
        return word
    word = _without_inflection(_without_plural(word))
    # `study` and `studies` get the same stem, but `deploy` keeps its y to match `deployment`.
    if word.endswith("y") and word[-2:-1] not in "aeiou" and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _replace_suffix(_replace_suffix(word, _DERIVED), _SHORTENED)
    return _without_last_letter(_without_ending(word))


def _without_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _without_inflection(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            return _restore_stem(rest) if _has_vowel(rest) else word
    return word


def _restore_stem(rest: str) -> str:
    """Restore a word after removing `ed` or `ing`: `hop` (`hoping`) to `hope`, `hopp` (`hopping`) to `hop`."""
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if _ends_doubled(rest) and rest[-1] not in "lsz":
        return rest[:-1]
    return rest + "e" if _measure(rest) == 1 and _ends_short(rest) else rest


def _replace_suffix(word: str, suffixes: tuple[tuple[str, str], ...]) -> str:
    for suffix, other in suffixes:
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            return rest + other if _measure(rest) > 0 else word
    return word


def _without_ending(word: str) -> str:
    for suffix in _DROPPED:
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            fits = suffix != "ion" or rest.endswith(("s", "t"))
            return rest if fits and _measure(rest) > 1 else word
    return word


def _without_last_letter(word: str) -> str:
    if word.endswith("e"):
        rest = word[:-1]
        measure = _measure(rest)
        if measure > 1 or (measure == 1 and not _ends_short(rest)):
            word = rest
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word


def _shape(word: str) -> str:
    """Return `c` for each consonant and `v` for each vowel; y is a vowel after a consonant."""
    shape = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and shape[-1:] == "c")
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    return _shape(word).count("vc")


def _has_vowel(word: str) -> bool:
    return "v" in _shape(word)


def _ends_doubled(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and word[-1] not in "aeiou"


def _ends_short(word: str) -> bool:
    return _shape(word).endswith("cvc") and word[-1] not in "wxy"
