"""Words to stems: `painting`, `painted` and `paints` are one word to the index, and so are `buy` and `bought`.

English suffixes are taken off in the order of Porter's algorithm (An algorithm for suffix stripping, 1980), whose
“measure” of a word is how often a run of vowels is followed by a run of consonants. Forms that no suffix explains are
in a table. A word of another language or a number stays as it is.
"""

from __future__ import annotations

from functools import lru_cache

# The first of each line stands for the others.
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


@lru_cache(65536)
def stem(word: str) -> str:
    """Of a word in small letters."""
    word = _FORMS.get(word, word)
    if len(word) < 3 or not (word.isascii() and word.isalpha()):
        return word
    word = _without_inflection(_without_plural(word))
    # `study` and `studies`, but not `deploy`, which `deployment` comes from.
    if word.endswith("y") and word[-2:-1] not in "aeiou" and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _replaced(_replaced(word, _DERIVED), _SHORTENED)
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
            return _mended(rest) if _has_vowel(rest) else word
    return word


def _mended(rest: str) -> str:
    """What is left of `hoping`, `hopping` and `created` is `hope`, `hop` and `create`."""
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if _ends_doubled(rest) and rest[-1] not in "lsz":
        return rest[:-1]
    return rest + "e" if _measure(rest) == 1 and _ends_short(rest) else rest


def _replaced(word: str, suffixes: tuple[tuple[str, str], ...]) -> str:
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
    """`c` for each consonant and `v` for each vowel; y is a vowel after a consonant."""
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
