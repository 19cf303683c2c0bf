"""Scheduled windows: at these times an endpoint keeps more ready, or may have more instances. Pure: the time is given."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Final, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import BeforeValidator, Field, field_validator, model_validator

from standby.domain.durations import Seconds, format_duration
from standby.domain.values import Value

LONGEST_S: Final = 366 * 86400.0
_FIELDS: Final = 5
# More than any clock is set forward or back at once.
_ASIDE_S: Final = 3 * 3600
# How a schedule's fields are called where one is written as text.
_WORDS: Final = {
    "cron": "cron",
    "tz": "timezone",
    "for": "duration",
    "min-ready": "min_ready",
    "max-instances": "max_instances",
}
# A cron field may hold commas: only one before a known word ends a part.
_PARTS: Final = re.compile(r",\s*(?=(?:" + "|".join(_WORDS) + r")\s*=)")
_EXAMPLE: Final = "write e.g. 'cron=0 8 * * 1-5,tz=Europe/Berlin,for=10h,min-ready=1'"


class Schedule(Value):
    """A window that opens whenever ``cron`` says so and stays open for ``duration``.

    ``cron`` has five fields (minute, hour, day of month, month, day of week) and is read on the clocks of ``timezone``: a
    time that a change to summer time leaves out opens at the change, one that comes twice opens once (Debian's cron).
    """

    cron: str = Field(description="five fields, e.g. '0 8 * * 1-5'")
    timezone: str = Field(default="UTC", description="IANA name, e.g. Europe/Berlin")
    duration: Seconds
    min_ready: int | None = Field(default=None, ge=0, le=200, description="instances that stay ready while it is open")
    max_instances: int | None = Field(default=None, ge=1, le=200, description="most instances while it is open")

    @field_validator("cron")
    @classmethod
    def _readable(cls, cron: str) -> str:
        cleaned = " ".join(cron.split())
        if len(cleaned.split()) != _FIELDS:
            msg = f"cron {cron!r} has {len(cleaned.split())} fields instead of {_FIELDS}: minute hour day month weekday"
            raise ValueError(msg)
        try:
            next(CronSim(cleaned, datetime(2000, 1, 1, tzinfo=UTC)))
        except CronSimError as error:
            msg = f"cron {cron!r} is not understood: {error}"
            raise ValueError(msg) from error
        except StopIteration as error:
            msg = f"cron {cron!r} names a time that never comes"
            raise ValueError(msg) from error
        return cleaned

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            msg = f"there is no time zone {name[:60]!r}; use an IANA name such as Europe/Berlin or UTC"
            raise ValueError(msg) from error
        return name

    @field_validator("duration")
    @classmethod
    def _bounded(cls, duration: float) -> float:
        if not 0 < duration <= LONGEST_S:
            msg = f"duration {duration} s is not above 0 and at most a year"
            raise ValueError(msg)
        return duration

    @model_validator(mode="after")
    def _says_something(self) -> Schedule:
        if self.min_ready is None and self.max_instances is None:
            msg = f"schedule {self.cron!r} changes nothing: give min_ready or max_instances"
            raise ValueError(msg)
        if self.max_instances is not None and (self.min_ready or 0) > self.max_instances:
            msg = f"schedule {self.cron!r}: min_ready {self.min_ready} is above max_instances {self.max_instances}"
            raise ValueError(msg)
        return self

    @property
    def words(self) -> str:
        """How people are told of it."""
        return f"schedule '{self.cron}' ({self.timezone}) for {format_duration(self.duration)}"

    @property
    def told(self) -> str:
        """The same with what it asks for."""
        bounds = (("min_ready", self.min_ready), ("max_instances", self.max_instances))
        asked = ", ".join(f"{name} {value}" for name, value in bounds if value is not None)
        return f"{self.words}: {asked}"


def _one_of(value: object) -> object:
    """Return a schedule that is written as text by its fields; anything else as it is. Raises ValueError."""
    if not isinstance(value, str):
        return value
    fields: dict[str, str] = {}
    for part in _PARTS.split(value.strip()):
        name, equals, said = (piece.strip() for piece in part.partition("="))
        if not equals or not said or name not in _WORDS:
            msg = f"schedule {value[:100]!r}: {part[:60]!r} is not one of {', '.join(_WORDS)} with a value; {_EXAMPLE}"
            raise ValueError(msg)
        if _WORDS[name] in fields:
            msg = f"schedule {value[:100]!r}: {name} is given twice; {_EXAMPLE}"
            raise ValueError(msg)
        fields[_WORDS[name]] = said
    missing = [name for name in ("cron", "for") if _WORDS[name] not in fields]
    if missing:
        msg = f"schedule {value[:100]!r}: {' and '.join(missing)} missing; {_EXAMPLE}"
        raise ValueError(msg)
    return fields


def _several(value: object) -> object:
    """Return schedules that are written as one text, with semicolons between them, one by one."""
    return tuple(part for part in value.split(";") if part.strip()) if isinstance(value, str) else value


Schedules: TypeAlias = Annotated[tuple[Annotated[Schedule, BeforeValidator(_one_of)], ...], BeforeValidator(_several)]


class Opening(NamedTuple):
    """What the windows that are open at some time ask for; ``until``: when that changes, seconds since the epoch.

    None: nothing is asked. ``words`` names the windows.
    """

    min_ready: int | None
    max_instances: int | None
    words: str
    until: float


def opening(schedules: Iterable[Schedule], at: float) -> Opening:
    """Return what the windows open at ``at`` (seconds since the epoch) ask for; of several the most of each."""
    until, open_now = math.inf, []
    for schedule in schedules:
        last, following = _starts(schedule.cron, schedule.timezone, math.floor(at / 60))
        # the latest start of all: an earlier one that overlaps ends no later
        ends = last + schedule.duration
        if last <= at < ends:
            open_now.append(schedule)
            # while the window is open its next start only makes it longer
            until = min(until, ends if following > ends else following)
        else:
            until = min(until, following)
    return Opening(
        max((one.min_ready for one in open_now if one.min_ready is not None), default=None),
        max((one.max_instances for one in open_now if one.max_instances is not None), default=None),
        "; ".join(one.words for one in open_now),
        until,
    )


@lru_cache(maxsize=4096)
def _starts(cron: str, timezone: str, minute: int) -> tuple[float, float]:
    """Return the last start at or before this minute since the epoch, and the first one after it; seconds since the epoch."""
    zone, at = ZoneInfo(timezone), minute * 60
    # The iterators leave out where they begin, and go by the hands of the clock: near a change of those they begin apart.
    ahead, behind = (datetime.fromtimestamp(at + aside, zone) for aside in (_ASIDE_S, -_ASIDE_S))
    if ahead.utcoffset() == behind.utcoffset():
        ahead, behind = datetime.fromtimestamp(at + 60, zone), datetime.fromtimestamp(at, zone)
    earlier = (moment.timestamp() for moment in CronSim(cron, ahead, reverse=True))
    later = (moment.timestamp() for moment in CronSim(cron, behind))
    return next((one for one in earlier if one <= at), -math.inf), next((one for one in later if one > at), math.inf)
