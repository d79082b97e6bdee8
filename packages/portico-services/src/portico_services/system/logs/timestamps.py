"""Times as logs write them, wherever in the head of a line they stand.

A time is a date in one of a few orders, a clock, and perhaps a zone. What it leaves out is supplied and said: the zone
is this machine's; the year, or the whole date, is the last that makes the line no newer than what is known to follow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache

from msgspec import Struct

from portico_services.system.logs.entries import Guess
from portico_services.system.logs.level_detection import NAMES

DAY = 86_400_000_000
YEAR = 366 * DAY

MOST_WORDS = 6  # that may stand before the time of a line
LONGEST_HEAD = 160

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# Abbreviations mean different zones in different countries, so these are guesses, if good ones.
_ZONES = {
    "EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7, "WET": 0, "WEST": 1,
    "CET": 1, "CEST": 2, "EET": 2, "EEST": 3, "MSK": 3, "JST": 9, "AEST": 10, "AEDT": 11,
}  # fmt: skip

_FRACTION = r"(?:[.,](?P<f>\d{1,9})|:(?P<f2>\d{3,9}))?"
_UNPADDED = r"(?P<H>\d{1,2}):(?P<M>\d{1,2}):(?P<S>\d{1,2})(?::(?P<f2>\d{1,3}))?(?![\d:])"
_CLOCK = rf"(?P<H>\d{{1,2}}):(?P<M>\d\d):(?P<S>\d\d){_FRACTION}(?: ?(?P<half>[AaPp])\.?[Mm]\b\.?)?(?!\d|:\d)"
_ZONE = rf"(?: ?(?P<z>Z\b|UTC\b|GMT\b|[+-]\d\d(?::?\d\d)?(?!\d|:|[-/.]\d))| (?P<abbr>{'|'.join(_ZONES)})\b)?"
_COMPACT = r"(?P<H>\d\d)(?P<M>\d\d)(?P<S>\d\d)(?:[.,](?P<f>\d{1,9}))?(?!\d)"
_WEEKDAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? +"
_DAY_NAME = rf"(?:{_WEEKDAY})?"
_MONTH = r"(?P<mon>(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*)\.?"

_SHAPES: dict[str, tuple[str, ...]] = {
    # 2026-01-31T12:00:00.123Z   2026/01/31 12:00:00   2016/9/27:20:30:31   2005-06-03-15.42.50.363779
    "digits": (
        rf"(?P<y>\d{{4}})(?P<sep>[-/.])(?P<m>\d{{1,2}})(?P=sep)(?P<d>\d{{1,2}})(?:[Tt_:-]|,?[ \t]+){_CLOCK}{_ZONE}",
        rf"(?P<y>\d{{4}})-(?P<m>\d\d)-(?P<d>\d\d)-(?P<H>\d\d)\.(?P<M>\d\d)\.(?P<S>\d\d)(?:\.(?P<f>\d{{1,9}}))?{_ZONE}",
        # 20260131T120000Z   20260131-12:00:00:123, where 20260131-9:5:3:7 is 09:05:03.007
        # and of two digits for the year: 081109 203615   081109 20:36:15
        rf"(?P<y>(?:19|20)\d\d)(?P<m>\d\d)(?P<d>\d\d)[Tt _-]{_CLOCK}{_ZONE}",
        rf"(?P<y>(?:19|20)\d\d)(?P<m>\d\d)(?P<d>\d\d)-{_UNPADDED}",
        rf"(?P<y>(?:19|20)\d\d)(?P<m>\d\d)(?P<d>\d\d)[Tt _-]{_COMPACT}{_ZONE}",
        rf"(?P<y2>\d\d)(?P<m>\d\d)(?P<d>\d\d) +{_CLOCK}{_ZONE}",
        r"(?P<y2>\d\d)(?P<m>\d\d)(?P<d>\d\d) (?P<H>\d\d)(?P<M>\d\d)(?P<S>\d\d)(?!\d)",
        # 31/Jan/2026:12:00:00 +0100   31 Jan 2026 12:00:00   31-Jan-2026 12:00:00.123
        rf"(?P<d>\d{{1,2}})(?P<sep>[ /-]){_MONTH}(?P=sep)(?P<y>\d{{4}})(?:::?|T|,? +){_CLOCK}{_ZONE}",
        # 17/06/09 20:10:40   01/31/2026 12:00:00 PM   31.01.2026 12:00:00
        rf"(?P<a>\d{{1,2}})(?P<sep>[-/.])(?P<b>\d{{1,2}})(?P=sep)(?P<c>\d{{4}}|\d\d)(?:[T_]|,? +){_CLOCK}{_ZONE}",
        # 31 Jan 12:00:00.123, and Chromium's 0131/120000.123:
        rf"(?P<d>\d{{1,2}}) {_MONTH} +{_CLOCK}{_ZONE}",
        r"(?:\d{1,10}:){0,2}(?P<m>\d\d)(?P<d>\d\d)/(?P<H>\d\d)(?P<M>\d\d)(?P<S>\d\d)(?:\.(?P<f>\d{1,9}))?(?=:)",
        # 2026-01-31T12:00Z   2026-01-31 12:00
        rf"(?P<y>\d{{4}})(?P<sep>[-/.])(?P<m>\d\d)(?P=sep)(?P<d>\d\d)[T ](?P<H>\d\d):(?P<M>\d\d)(?![\d:]){_ZONE}",
        # By the week or by the day of the year: 2026-W05-6T12:00:00   2026W056T120000   2026-031T12:00:00
        rf"(?P<y>\d{{4}})-?W(?P<w>\d\d)-?(?P<k>[1-7])[Tt ](?:{_CLOCK}){_ZONE}",
        rf"(?P<y>\d{{4}})-?W(?P<w>\d\d)-?(?P<k>[1-7])[Tt ](?:{_COMPACT}){_ZONE}",
        rf"(?P<y>\d{{4}})-(?P<n>\d{{3}})[Tt ]{_CLOCK}{_ZONE}",
        # 01-31 12:00:00.123   10.30 16:49:06   01/31-12:00:00
        rf"(?P<a>\d{{1,2}})(?P<sep>[-/.])(?P<b>\d{{1,2}})(?:[T_-]| +){_CLOCK}{_ZONE}",
        # Seconds since 1970, or thousandths of them, and so on; and as Go prints a float: 1.7632881e+09
        r"(?P<epoch>\d{10}(?:\.\d{1,9}|\d{3}|\d{6}|\d{9})?)(?![\w.])",
        r"(?P<float>[1-3]\.\d{4,20})e\+09(?!\w)",
    ),
    # Jan 31 12:00:00   Sun Jan 31 12:00:00.123 2026   Jan 31, 2026 12:00:00 PM   Sun, 31 Jan 2026 12:00:00 GMT
    "letters": (
        rf"{_DAY_NAME}{_MONTH} +(?P<d>\d{{1,2}})(?:,? +(?P<y>\d{{4}})(?: at|,)?)? +{_CLOCK}"
        rf"(?:{_ZONE} (?P<y3>(?:19|20)\d\d)(?![\d:.-])|{_ZONE.replace('<z>', '<z2>').replace('<abbr>', '<abbr2>')})",
        rf"{_DAY_NAME}(?P<d>\d{{1,2}}) {_MONTH} (?P<y>\d{{4}}) +{_CLOCK}{_ZONE}",
        # Sat 2026-01-31 12:00:00 CET
        rf"{_WEEKDAY}(?P<y>\d{{4}})-(?P<m>\d\d)-(?P<d>\d\d) {_CLOCK}{_ZONE}",
    ),
    # Only a clock, at the very beginning: 12:00:00.123   3:04PM
    "clock": (
        rf"(?P<H>\d{{1,2}}):(?P<M>\d\d)(?::(?P<S>\d\d){_FRACTION})? ?(?P<half>[AaPp])[Mm]\b",
        rf"(?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d){_FRACTION}(?!\d|:\d)",
    ),
    # TAI64N, as multilog, svlogd and s6 write it: @4000000065a1b2c30a1b2c3d
    "tai": (r"@(?P<tai>4[0-9a-f]{15})(?P<nano>[0-9a-f]{8})?\b",),
}
_PATTERNS = {name: [re.compile(shape) for shape in shapes] for name, shapes in _SHAPES.items()}
# The two that most logs have, taken apart without a detour. What goes on like a time is left to the others.
_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?"
    rf"(?![\d+]|[:.,-]\d| ?[AaPp]\.?[Mm]\b| (?:Z|UTC|GMT|{'|'.join(_ZONES)}|[+-]\d\d:?\d\d)\b)"
)
_BSD = re.compile(
    r"([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)"
    rf"(?![\d.,]|:\d| (?:[AaPp][Mm]|UTC|GMT|{'|'.join(_ZONES)}|(?:19|20)\d\d|[+-]\d\d:?\d\d)\b)"
)
# A log of requests has the client and its user first, whose name may be any word.
_REQUEST = re.compile(r"(?:\S+ ){0,2}\S+ \S+ \S+ \[(?=\d{1,2}/[A-Z])")
# Words that announce a time: `# Time: …` of MySQL, `>>>  Section start …` of Windows, a kind of request before a whole
# one of ISO 8601; and Jupyter's letter before a clock.
_ANNOUNCED = re.compile(
    r"[#<>]{0,3} *(?:Time|Date|Timestamp|Section (?:start|end)):? +(?=\w)"
    r"|\w{2,16} (?=\d{4}-\d\d-\d\dT\d\d:)|\[[DIWEFC] (?=\d\d:\d\d:\d\d)",
    re.IGNORECASE,
)
_BREAK = re.compile(r"[\s\[(<|=\"',]+")
# A word of a sentence; what stands before a time is otherwise: a number, an address, a name with a dot in it.
_PROSE = re.compile(r"[A-Za-z]?[a-z]{2,}[,:;]?\Z")
# A row of a table has a number first, then a name with a sign in it: `460903 node-70 action error 1145553123 …`
_ROW = re.compile(r"\d{2,19} +(?=[a-z]+[\w.-]*[\d.-])\S+ ", re.IGNORECASE)


class Moment(Struct):
    """A time, in microseconds, and which part of the text it is."""

    time: int
    begin: int
    end: int
    guess: Guess | None


def find(text: str, newest: int) -> Moment | None:
    """The time of a line. It stands at the beginning, or behind a few words that are no sentence.

    `newest` is a time that it is not newer than.
    """
    if (found := at(text, len(text) - len(text.lstrip("[( *")), newest)) is not None:
        return found
    if before := _REQUEST.match(text) or _ANNOUNCED.match(text):
        return at(text, before.end(), newest)
    is_row = _ROW.match(text) is not None
    for number, (begin, word) in enumerate(_words(text)):
        if begin and (found := at(text, begin, newest, clocks=False)) is not None:
            return found
        is_prose = not is_row and _PROSE.match(word) and word.rstrip(",:;").lower() not in NAMES
        if number == MOST_WORDS or is_prose:
            return None
    return None


def at(text: str, begin: int, newest: int, *, clocks: bool = True) -> Moment | None:
    """The time that begins right here."""
    first = text[begin : begin + 1]
    if first.isdigit():
        if found := _ISO.match(text, begin):
            return _quick_iso(found)
        kinds = ("digits", "clock") if clocks else ("digits",)
    elif first.isupper():
        if found := _BSD.match(text, begin):
            return _quick_bsd(found, newest)
        kinds = ("letters",)
    elif first == "@":
        kinds = ("tai",)
    else:
        return None
    for kind in kinds:
        for pattern in _PATTERNS[kind]:
            if (found := pattern.match(text, begin)) and (moment := _moment(found, newest)) is not None:
                return moment
    return None


def _words(text: str) -> Iterator[tuple[int, str]]:
    """The words of the head of a line, each with where it begins."""
    head = text[:LONGEST_HEAD]
    begin = 0
    for gap in _BREAK.finditer(head):
        if gap.start() > begin:
            yield begin, head[begin : gap.start()]
        begin = gap.end()
    if begin < len(head):
        yield begin, head[begin:]


# Taken apart


def _quick_iso(found: re.Match[str]) -> Moment | None:
    """The shape that most logs have."""
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    try:
        minutes = _at_minute(int(year), int(month), int(day), int(hour), int(minute), zone)
    except (ValueError, OverflowError):
        return None
    time = minutes + min(int(second), 59) * 1_000_000 + _micro(fraction)
    return Moment(time, found.start(), found.end(), None if zone else "zone")


def _quick_bsd(found: re.Match[str], newest: int) -> Moment | None:
    month, day, hour, minute, second = found.groups()
    try:
        number = MONTHS.index(month.lower()) + 1
        time = _last(number, int(day), int(hour), int(minute), None, newest) + min(int(second), 59) * 1_000_000
    except (ValueError, OverflowError):
        return None
    return Moment(time, found.start(), found.end(), "year")


def _moment(found: re.Match[str], newest: int) -> Moment | None:
    said = {name: value for name, value in found.groupdict().items() if value is not None}
    try:
        time, guess = _calendar(said, newest) if "H" in said else (_since_1970(said), None)
    except (ValueError, OverflowError):
        return None
    return Moment(time, found.start(), found.end(), guess)


def _since_1970(said: dict[str, str]) -> int:
    """Only of these decades: any other number of as many digits is something else."""
    if "tai" in said:
        # 2^62 is 1970, and the clocks that write it are ten seconds ahead of UTC.
        digits = str((int(said["tai"], 16) - 2**62 - 10) * 1_000_000 + int(said.get("nano", "0"), 16) // 1000)
    else:
        digits = (said.get("epoch") or said["float"]).replace(".", "").ljust(16, "0")[:16]
    if not 946_684_800 <= int(digits[:10]) < 4_102_444_800:
        raise ValueError
    return int(digits)


def _calendar(said: dict[str, str], newest: int) -> tuple[int, Guess | None]:
    hour, minute, second = int(said["H"]), int(said["M"]), min(int(said.get("S", 0)), 59)
    if half := said.get("half"):
        if not 1 <= hour <= 12:
            raise ValueError
        hour = hour % 12 + 12 * (half in "pP")
    zone = said.get("z") or said.get("z2")
    abbreviation = said.get("abbr") or said.get("abbr2")
    offset = zone or (None if abbreviation is None else f"{_ZONES[abbreviation]:+03}00")
    rest = second * 1_000_000 + _micro(said.get("f") or said.get("f2", "").rjust(3, "0"))
    guess: Guess | None = None if zone else "zone"
    if "c" in said:
        time, is_sure = _in_some_order(said, hour, minute, offset, newest)
        return time + rest, guess if is_sure else "date"
    if "a" in said:
        month, day = int(said["a"]), int(said["b"])
        if month > 12:
            month, day = day, month
        return _last(month, day, hour, minute, offset, newest) + rest, "year"
    if "w" in said or "n" in said:
        return _at_minute(*_counted_day(said), hour, minute, offset) + rest, guess
    if "mon" not in said and "m" not in said:
        return _last_clock(hour, minute, rest, newest), "date"
    month = MONTHS.index(said["mon"][:3].lower()) + 1 if "mon" in said else int(said["m"])
    year = said.get("y") or said.get("y3") or ("20" + said["y2"] if "y2" in said else None)
    if year is None:
        return _last(month, int(said["d"]), hour, minute, offset, newest) + rest, "year"
    return _at_minute(int(year), month, int(said["d"]), hour, minute, offset) + rest, guess


def _counted_day(said: dict[str, str]) -> tuple[int, int, int]:
    """The date of a day of a week, or of a year."""
    year = int(said["y"])
    if "w" in said:
        day = datetime.fromisocalendar(year, int(said["w"]), int(said["k"]))
    else:
        day = datetime(year, 1, 1) + timedelta(days=int(said["n"]) - 1)
        if day.year != year:
            raise ValueError
    return day.year, day.month, day.day


def _in_some_order(said: dict[str, str], hour: int, minute: int, offset: str | None, newest: int) -> tuple[int, bool]:
    """A date of three numbers. Of several orders that are possible, the one that is of the year before `newest`; else
    the year first, if it has two digits; a dot is written where the day is first, a slash where the month is."""
    a, b, c = int(said["a"]), int(said["b"]), int(said["c"])
    short = len(said["c"]) == 2
    ymd, mdy, dmy = (2000 + a, b, c), (c + 2000 * short, a, b), (c + 2000 * short, b, a)
    rest = [dmy, mdy] if said["sep"] != "/" and not said.get("half") else [mdy, dmy]
    found: list[int] = []
    for order in [ymd, *rest] if short and said["sep"] != "." and not said.get("half") else rest:
        try:
            found.append(_at_minute(*order, hour, minute, offset))
        except ValueError:
            continue
    recent = [time for time in found if newest - YEAR < time <= newest + DAY]
    return (recent or found or [_at_minute(0, 0, 0, 0, 0, None)])[0], len(set(found)) == 1


def _last(month: int, day: int, hour: int, minute: int, offset: str | None, newest: int) -> int:
    """The last such minute that is not after `newest`. A day is allowed for clocks that differ."""
    year = datetime.fromtimestamp(newest // 1_000_000, UTC).year
    for candidate in range(year + 1, year - 9, -1):
        try:
            time = _at_minute(candidate, month, day, hour, minute, offset)
        except ValueError:
            continue  # the 29th of February is not in every year
        if time <= newest + DAY:
            return time
    raise ValueError


def _last_clock(hour: int, minute: int, rest: int, newest: int) -> int:
    """The last time the clock showed this, an hour allowed for clocks that differ."""
    day = datetime.fromtimestamp(newest // 1_000_000)
    for back in (0, 1):
        on = day - timedelta(days=back)
        time = _at_minute(on.year, on.month, on.day, hour, minute, None) + rest
        if time <= newest + DAY // 24:
            break
    return time


def _micro(fraction: str | None) -> int:
    """Digits behind a point."""
    return int(fraction[:6].ljust(6, "0")) if fraction else 0


@lru_cache(4096)
def _at_minute(year: int, month: int, day: int, hour: int, minute: int, offset: str | None) -> int:
    """Microseconds; without an offset in the zone of this machine."""
    moment = datetime(year, month, day, hour, minute)
    if offset is not None:
        moment = moment.replace(tzinfo=_zone(offset))
    return int(moment.timestamp()) * 1_000_000


def _zone(offset: str) -> timezone:
    digits = offset[1:].replace(":", "")
    if not digits.isdigit():
        return UTC
    minutes = int(digits[:2]) * 60 + int(digits[2:] or 0)
    return timezone(timedelta(minutes=-minutes if offset[0] == "-" else minutes))
