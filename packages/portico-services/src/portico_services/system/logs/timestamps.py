"""Parsing of timestamps in the head of log lines.

A timestamp is a date in one of a few orders, a time of day, and optionally a zone. Missing parts are estimated and
marked: the zone is that of this machine; the year or the whole date is the latest one that makes the line no newer than
the following lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache

from msgspec import Struct

from portico_services.system.logs.entries import TimeEstimate
from portico_services.system.logs.level_detection import LEVEL_BY_NAME

DAY_US = 86_400_000_000
YEAR_US = 366 * DAY_US

MAX_HEAD_WORDS = 6  # Words that may precede the time of a line.
MAX_HEAD_CHARS = 160

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# Abbreviations are ambiguous between countries; these are the most common meanings.
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

_TIMESTAMP_FORMATS: dict[str, tuple[str, ...]] = {
    # 2026-01-31T12:00:00.123Z   2026/01/31 12:00:00   2016/9/27:20:30:31   2005-06-03-15.42.50.363779
    "digits": (
        rf"(?P<y>\d{{4}})(?P<sep>[-/.])(?P<m>\d{{1,2}})(?P=sep)(?P<d>\d{{1,2}})(?:[Tt_:-]|,?[ \t]+){_CLOCK}{_ZONE}",
        rf"(?P<y>\d{{4}})-(?P<m>\d\d)-(?P<d>\d\d)-(?P<H>\d\d)\.(?P<M>\d\d)\.(?P<S>\d\d)(?:\.(?P<f>\d{{1,9}}))?{_ZONE}",
        # 20260131T120000Z   20260131-12:00:00:123, where 20260131-9:5:3:7 is 09:05:03.007; with two-digit year: 081109
        # 203615   081109 20:36:15
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
        # ISO week or day of the year: 2026-W05-6T12:00:00   2026W056T120000   2026-031T12:00:00
        rf"(?P<y>\d{{4}})-?W(?P<w>\d\d)-?(?P<k>[1-7])[Tt ](?:{_CLOCK}){_ZONE}",
        rf"(?P<y>\d{{4}})-?W(?P<w>\d\d)-?(?P<k>[1-7])[Tt ](?:{_COMPACT}){_ZONE}",
        rf"(?P<y>\d{{4}})-(?P<n>\d{{3}})[Tt ]{_CLOCK}{_ZONE}",
        # 01-31 12:00:00.123   10.30 16:49:06   01/31-12:00:00
        rf"(?P<a>\d{{1,2}})(?P<sep>[-/.])(?P<b>\d{{1,2}})(?:[T_-]| +){_CLOCK}{_ZONE}",
        # Seconds since 1970 or smaller units; and Go's float format: 1.7632881e+09
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
    # Only a time of day, at the very start: 12:00:00.123   3:04PM
    "clock": (
        rf"(?P<H>\d{{1,2}}):(?P<M>\d\d)(?::(?P<S>\d\d){_FRACTION})? ?(?P<half>[AaPp])[Mm]\b",
        rf"(?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d){_FRACTION}(?!\d|:\d)",
    ),
    # TAI64N of multilog, svlogd and s6: @4000000065a1b2c30a1b2c3d
    "tai": (r"@(?P<tai>4[0-9a-f]{15})(?P<nano>[0-9a-f]{8})?\b",),
}
_PATTERNS = {name: [re.compile(shape) for shape in shapes] for name, shapes in _TIMESTAMP_FORMATS.items()}
# Fast paths for the two most common formats. Anything that continues like a timestamp is left to the general patterns.
_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?"
    rf"(?![\d+]|[:.,-]\d| ?[AaPp]\.?[Mm]\b| (?:Z|UTC|GMT|{'|'.join(_ZONES)}|[+-]\d\d:?\d\d)\b)"
)
_BSD = re.compile(
    r"([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)"
    rf"(?![\d.,]|:\d| (?:[AaPp][Mm]|UTC|GMT|{'|'.join(_ZONES)}|(?:19|20)\d\d|[+-]\d\d:?\d\d)\b)"
)
# Access logs start with the client and its user, whose name may be any word.
_REQUEST = re.compile(r"(?:\S+ ){0,2}\S+ \S+ \S+ \[(?=\d{1,2}/[A-Z])")
# Words that announce a time: MySQL's `# Time: …`, Windows' `>>>  Section start …`, a request type before an ISO 8601
# time; and Jupyter's level letter before a time of day.
_ANNOUNCED = re.compile(
    r"[#<>]{0,3} *(?:Time|Date|Timestamp|Section (?:start|end)):? +(?=\w)"
    r"|\w{2,16} (?=\d{4}-\d\d-\d\dT\d\d:)|\[[DIWEFC] (?=\d\d:\d\d:\d\d)",
    re.IGNORECASE,
)
_BREAK = re.compile(r"[\s\[(<|=\"',]+")
# Word of a sentence. Text before a timestamp has numbers, addresses or dotted names instead.
_PROSE = re.compile(r"[A-Za-z]?[a-z]{2,}[,:;]?\Z")
# Table rows start with a number and a name with punctuation: `460903 node-70 action error 1145553123 …`
_ROW = re.compile(r"\d{2,19} +(?=[a-z]+[\w.-]*[\d.-])\S+ ", re.IGNORECASE)


class TimestampMatch(Struct):
    """Timestamp in microseconds, and the range of text it covers."""

    time: int
    begin: int
    end: int
    guess: TimeEstimate | None


def find_timestamp(text: str, newest: int) -> TimestampMatch | None:
    """Return the timestamp of a line, at its start or after a few words that are not a sentence.

    `newest` is an upper bound of the time.
    """
    if (timestamp := parse_timestamp_at(text, len(text) - len(text.lstrip("[( *")), newest)) is not None:
        return timestamp
    if before := _REQUEST.match(text) or _ANNOUNCED.match(text):
        return parse_timestamp_at(text, before.end(), newest)
    is_row = _ROW.match(text) is not None
    for number, (begin, word) in enumerate(_words(text)):
        if begin and (timestamp := parse_timestamp_at(text, begin, newest, clocks=False)) is not None:
            return timestamp
        is_prose = not is_row and _PROSE.match(word) and word.rstrip(",:;").lower() not in LEVEL_BY_NAME
        if number == MAX_HEAD_WORDS or is_prose:
            return None
    return None


def parse_timestamp_at(text: str, begin: int, newest: int, *, clocks: bool = True) -> TimestampMatch | None:
    """Return the timestamp that starts at an offset, or None."""
    first = text[begin : begin + 1]
    if first.isdigit():
        if match := _ISO.match(text, begin):
            return _quick_iso(match)
        kinds = ("digits", "clock") if clocks else ("digits",)
    elif first.isupper():
        if match := _BSD.match(text, begin):
            return _quick_bsd(match, newest)
        kinds = ("letters",)
    elif first == "@":
        kinds = ("tai",)
    else:
        return None
    for kind in kinds:
        for pattern in _PATTERNS[kind]:
            if (match := pattern.match(text, begin)) and (moment := _to_timestamp(match, newest)) is not None:
                return moment
    return None


def _words(text: str) -> Iterator[tuple[int, str]]:
    """Yield the words of the head of a line with their offsets."""
    head = text[:MAX_HEAD_CHARS]
    begin = 0
    for gap in _BREAK.finditer(head):
        if gap.start() > begin:
            yield begin, head[begin : gap.start()]
        begin = gap.end()
    if begin < len(head):
        yield begin, head[begin:]


# Conversion


def _quick_iso(match: re.Match[str]) -> TimestampMatch | None:
    """Convert a match of the ISO 8601 fast path."""
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        minutes = _at_minute(int(year), int(month), int(day), int(hour), int(minute), zone)
    except (ValueError, OverflowError):
        return None
    # Second 60 is a leap second, which neither datetime nor Unix time can represent.
    time = minutes + min(int(second), 59) * 1_000_000 + _parse_microseconds(fraction)
    return TimestampMatch(time, match.start(), match.end(), None if zone else "zone")


def _quick_bsd(match: re.Match[str], newest: int) -> TimestampMatch | None:
    month, day, hour, minute, second = match.groups()
    try:
        number = MONTHS.index(month.lower()) + 1
        time = _most_recent(number, int(day), int(hour), int(minute), None, newest) + min(int(second), 59) * 1_000_000
    except (ValueError, OverflowError):
        return None
    return TimestampMatch(time, match.start(), match.end(), "year")


def _to_timestamp(match: re.Match[str], newest: int) -> TimestampMatch | None:
    fields = {name: value for name, value in match.groupdict().items() if value is not None}
    try:
        time, guess = _calendar(fields, newest) if "H" in fields else (_parse_epoch(fields), None)
    except (ValueError, OverflowError):
        return None
    return TimestampMatch(time, match.start(), match.end(), guess)


def _parse_epoch(groups: dict[str, str]) -> int:
    """Return the time of an epoch number. Only 2000 to 2099: other numbers of that length are not times."""
    if "tai" in groups:
        # TAI64 counts from 2^62, and its clocks are ten seconds ahead of UTC at 1970.
        # As written by svlogd and multilog (`@4000…`).
        digits = str((int(groups["tai"], 16) - 2**62 - 10) * 1_000_000 + int(groups.get("nano", "0"), 16) // 1000)
    else:
        digits = (groups.get("epoch") or groups["float"]).replace(".", "").ljust(16, "0")[:16]
    if not 946_684_800 <= int(digits[:10]) < 4_102_444_800:
        raise ValueError
    return int(digits)


def _calendar(groups: dict[str, str], newest: int) -> tuple[int, TimeEstimate | None]:
    hour, minute, second = int(groups["H"]), int(groups["M"]), min(int(groups.get("S", 0)), 59)
    if half := groups.get("half"):
        # `13:00 PM` is no time of the 12-hour clock, so the match is something else.
        if not 1 <= hour <= 12:
            raise ValueError
        hour = hour % 12 + 12 * (half in "pP")
    zone = groups.get("z") or groups.get("z2")
    abbreviation = groups.get("abbr") or groups.get("abbr2")
    offset = zone or (None if abbreviation is None else f"{_ZONES[abbreviation]:+03}00")
    rest = second * 1_000_000 + _parse_microseconds(groups.get("f") or groups.get("f2", "").rjust(3, "0"))
    guess: TimeEstimate | None = None if zone else "zone"
    if "c" in groups:
        time, is_sure = _parse_ambiguous_date(groups, hour, minute, offset, newest)
        return time + rest, guess if is_sure else "date"
    if "a" in groups:
        month, day = int(groups["a"]), int(groups["b"])
        # Only one order is possible.
        if month > 12:
            month, day = day, month
        return _most_recent(month, day, hour, minute, offset, newest) + rest, "year"
    if "w" in groups or "n" in groups:
        return _at_minute(*_counted_day(groups), hour, minute, offset) + rest, guess
    if "mon" not in groups and "m" not in groups:
        return _most_recent_clock_time(hour, minute, rest, newest), "date"
    month = MONTHS.index(groups["mon"][:3].lower()) + 1 if "mon" in groups else int(groups["m"])
    year = groups.get("y") or groups.get("y3") or ("20" + groups["y2"] if "y2" in groups else None)
    if year is None:
        return _most_recent(month, int(groups["d"]), hour, minute, offset, newest) + rest, "year"
    return _at_minute(int(year), month, int(groups["d"]), hour, minute, offset) + rest, guess


def _counted_day(groups: dict[str, str]) -> tuple[int, int, int]:
    """Return the date of an ISO week day or of a day of the year."""
    year = int(groups["y"])
    if "w" in groups:
        day = datetime.fromisocalendar(year, int(groups["w"]), int(groups["k"]))
    else:
        day = datetime(year, 1, 1) + timedelta(days=int(groups["n"]) - 1)
        if day.year != year:
            raise ValueError
    return day.year, day.month, day.day


def _parse_ambiguous_date(
    groups: dict[str, str], hour: int, minute: int, offset: str | None, newest: int
) -> tuple[int, bool]:
    """Return the time of a date of three numbers, and whether it is unambiguous.

    Of several possible orders, prefer the one within the year before `newest`; then year first if it has two digits; a
    dot suggests day first, a slash month first.
    """
    a, b, c = int(groups["a"]), int(groups["b"]), int(groups["c"])
    short = len(groups["c"]) == 2
    ymd, mdy, dmy = (2000 + a, b, c), (c + 2000 * short, a, b), (c + 2000 * short, b, a)
    rest = [dmy, mdy] if groups["sep"] != "/" and not groups.get("half") else [mdy, dmy]
    results: list[int] = []
    for order in [ymd, *rest] if short and groups["sep"] != "." and not groups.get("half") else rest:
        try:
            results.append(_at_minute(*order, hour, minute, offset))
        except ValueError:
            continue
    recent = [time for time in results if newest - YEAR_US < time <= newest + DAY_US]
    # If several orders are possible, the log is more likely recent than from the future.
    return (recent or results or [_at_minute(0, 0, 0, 0, 0, None)])[0], len(set(results)) == 1


def _most_recent(month: int, day: int, hour: int, minute: int, offset: str | None, newest: int) -> int:
    """Return the latest such minute that is not after `newest`, with a day's tolerance for clock differences."""
    year = datetime.fromtimestamp(newest // 1_000_000, UTC).year
    for candidate in range(year + 1, year - 9, -1):
        try:
            time = _at_minute(candidate, month, day, hour, minute, offset)
        except ValueError:
            continue  # February 29 does not exist in every year.
        if time <= newest + DAY_US:
            return time
    raise ValueError


def _most_recent_clock_time(hour: int, minute: int, rest: int, newest: int) -> int:
    """Return the latest time with this time of day, with an hour's tolerance for clock differences."""
    day = datetime.fromtimestamp(newest // 1_000_000)
    for back in (0, 1):
        on = day - timedelta(days=back)
        time = _at_minute(on.year, on.month, on.day, hour, minute, None) + rest
        if time <= newest + DAY_US // 24:
            break
    return time


def _parse_microseconds(fraction: str | None) -> int:
    """Return the microseconds of fractional digits."""
    return int(fraction[:6].ljust(6, "0")) if fraction else 0


@lru_cache(4096)
def _at_minute(year: int, month: int, day: int, hour: int, minute: int, offset: str | None) -> int:
    """Return a minute in microseconds; without an offset in the time zone of this machine."""
    moment = datetime(year, month, day, hour, minute)
    if offset is not None:
        moment = moment.replace(tzinfo=_parse_offset(offset))
    return int(moment.timestamp()) * 1_000_000


def _parse_offset(offset: str) -> timezone:
    digits = offset[1:].replace(":", "")
    if not digits.isdigit():
        return UTC
    minutes = int(digits[:2]) * 60 + int(digits[2:] or 0)
    return timezone(timedelta(minutes=-minutes if offset[0] == "-" else minutes))
