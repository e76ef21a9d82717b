#!/usr/bin/env python3
"""Computes calendar windows with Python's zoneinfo, for tests/calendar.rs.

    windows.py COUNT SEED [LAST_YEAR]

Prints COUNT lines: calendar, instant, beginning and end of its window, in seconds since 1970. A third of the instants
is within a day of a change of a zone's offset, a third within a second of the beginning of a window, and a third
anywhere up to LAST_YEAR. Shares no code and no idea with src/quota/calendar: it lists the days on which windows may
begin, and finds the first instant of each.
"""
import bisect
import calendar
import random
import sys
from datetime import date, datetime, time, timedelta, timezone
from zoneinfo import ZoneInfo, available_timezones

# Days without midnight, with two midnights, of 23 to 25 hours, skipped days, and offsets of half and quarter hours.
UNUSUAL = """
Africa/Cairo Africa/Casablanca Africa/Monrovia America/Asuncion America/Havana America/Los_Angeles
America/Port-au-Prince America/Sao_Paulo America/Scoresbysund America/St_Johns America/Santiago Asia/Amman Asia/Beirut
Asia/Gaza Asia/Kathmandu Asia/Kolkata Asia/Pyongyang Asia/Tehran Atlantic/Azores Australia/Lord_Howe Europe/Berlin
Europe/Dublin Europe/London Pacific/Apia Pacific/Chatham Pacific/Fakaofo Pacific/Kiritimati Pacific/Kwajalein
Etc/GMT+12 Etc/GMT-14 UTC
""".split()
DAY = 86_400


def first_instant(zone, day):
    """Returns the first second at which the zone's clocks show this day, or the next one if they skip it."""
    midnight = datetime.combine(day, time(), zone)  # fold=0: the first of two
    instant = midnight.astimezone(timezone.utc)
    if instant.astimezone(zone).replace(tzinfo=None) == midnight.replace(tzinfo=None):
        return int(instant.timestamp())
    # Clocks skip midnight: bisects for the change of the offset.
    before = int(midnight.replace(fold=1).timestamp())
    after = int(midnight.replace(fold=0).timestamp())
    assert before < after, (zone, day)
    offset = lambda second: datetime.fromtimestamp(second, zone).utcoffset()
    assert offset(before - 1) != offset(after), (zone, day)
    before -= 1
    while after - before > 1:
        middle = (before + after) // 2
        if offset(middle) == offset(after):
            after = middle
        else:
            before = middle
    return after


def first_days(period, month, day, around):
    """Lists the days near a date with which windows begin."""
    if period in ("day", "week"):
        days = [around + timedelta(days=n) for n in range(-16, 17)]
        return [d for d in days if period == "day" or d.isoweekday() == day]
    step = {"month": 1, "quarter": 3, "year": 12}[period]
    days = []
    for year in range(around.year - 2, around.year + 3):
        for m in range(1, 13):
            if (m - month) % step == 0:
                days.append(date(year, m, min(day, calendar.monthrange(year, m)[1])))
    return days


def window(period, month, day, zone, instant):
    around = datetime.fromtimestamp(instant, zone).date()
    near = [d for d in first_days(period, month, day, around) if abs((d - around).days) <= 800]
    near.sort()
    # Only those beside the instant: a zone's clock differs from its calendar by at most two days.
    at = bisect.bisect(near, around)
    starts = sorted({first_instant(zone, d) for d in near[max(0, at - 4) : at + 4]})
    at = bisect.bisect(starts, instant)
    return starts[at - 1], starts[at]


def check_by_definition(zone, start, day):
    """Checks the first instant of a day minute by minute."""
    for second in range(start - 25 * 3_600, start, 60):
        assert datetime.fromtimestamp(second, zone).date() < day, (zone, day, second)
    assert datetime.fromtimestamp(start, zone).date() >= day, (zone, day)


def changes(zone, random, last_year):
    """Returns a random change of the zone's offset, or None."""
    offset = lambda second: datetime.fromtimestamp(second, zone).utcoffset()
    for _ in range(20):
        low = random.randrange(DAY * 366, (last_year - 1970) * 365 * DAY)
        high = low + 120 * DAY
        if offset(low) != offset(high):
            while high - low > 1:
                middle = (low + high) // 2
                if offset(middle) == offset(low):
                    low = middle
                else:
                    high = middle
            return high
    return None


def main():
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    last_year = int(sys.argv[3]) if len(sys.argv) > 3 else 2200
    rng = random.Random(seed)
    names = sorted(name for name in available_timezones() if "/" in name and not name.startswith("Etc/"))
    for line in range(count):
        name = rng.choice(UNUSUAL if rng.random() < 0.6 else names)
        zone = ZoneInfo(name)
        period = rng.choice(["day", "day", "week", "month", "month", "month", "quarter", "year", "year"])
        month, day, anchor = 1, 1, ""
        if period == "week":
            day = rng.randint(1, 7)
            anchor = "" if day == 1 else f"+{day}"
        elif period == "month":
            day = rng.choice([1, 15, 28, 29, 30, 31, rng.randint(1, 31)])
            anchor = "" if day == 1 else f"+{day}"
        elif period in ("quarter", "year"):
            month = rng.randint(1, 3 if period == "quarter" else 12)
            longest = 31 if period == "quarter" else calendar.monthrange(2000, month)[1]
            day = rng.choice([1, longest, rng.randint(1, longest)])
            if period == "year" and rng.random() < 0.3:
                month, day = 2, 29
            anchor = "" if (month, day) == (1, 1) else f"+{month:02}-{day:02}"
        instant = rng.randrange(DAY * 366 * 3, (last_year - 1970) * 365 * DAY)
        kind = rng.randrange(3)
        change = changes(zone, rng, last_year) if kind == 0 else None
        if change is not None:
            instant = change + rng.choice([0, -1, 1, rng.randrange(-DAY, DAY)])
        elif kind == 1:
            instant = rng.choice(window(period, month, day, zone, instant)) + rng.choice([-1, 0, 1])
        start, end = window(period, month, day, zone, instant)
        assert start <= instant < end
        if line % 50 == 0:
            around = datetime.fromtimestamp(instant, zone).date()
            check_by_definition(zone, first_instant(zone, around), around)
        print(f"{period}{anchor}@{name} {instant} {start} {end}")


main()
