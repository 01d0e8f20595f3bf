"""How long a provider asks us to wait, from the headers of its answer."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

log = logging.getLogger("pilot.models")

# A wait that is longer than this is honoured, and said: an operator may want to know now, not then.
REMARKABLE_WAIT_S: Final = 3_600.0
# No limit of any provider lasts longer; a header that says more is mistaken about its unit.
WAIT_S_MAX: Final = 7 * 86_400.0


def wait_s(headers: Mapping[str, str], provider: str, now: datetime) -> float | None:
    """Seconds to wait after a throttled request; null when the answer does not say.

    `retry-after-ms` goes before `retry-after`, and that before the provider's own reset times. A time in the past is 0;
    what cannot be read is passed over.
    """
    asked = retry_after_s(headers, now)
    if asked is not None:
        return asked
    read = RESETS.get(provider)
    return None if read is None else _bounded(read(headers, now))


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """What the two general headers say: after a server error nothing else does."""
    millis = _number(headers.get("retry-after-ms"))
    if millis is not None:
        return _bounded(millis / 1000)
    text = headers.get("retry-after")
    seconds = _number(text)
    return _bounded(seconds if seconds is not None else _until(_http_date(text), now))


def duration_s(text: str) -> float | None:
    """The seconds of a duration such as `6s`, `1m30s` or `12ms`; null when it is none."""
    parts = _DURATION_PART.findall(text)
    if not parts or text != "".join(number + unit for number, unit in parts):
        return None
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)


def _bounded(seconds: float | None) -> float | None:
    if seconds is None:
        return None
    if seconds > WAIT_S_MAX:
        log.warning("the provider asks to wait %.0f s; it is asked again after %.0f s", seconds, WAIT_S_MAX)
        return WAIT_S_MAX
    if seconds > REMARKABLE_WAIT_S:
        log.warning("the provider asks to wait %.0f s", seconds)
    return max(seconds, 0.0)


def _number(text: str | None) -> float | None:
    """A plain decimal number of zero or more; anything else, `1e3` and `nan` too, is null."""
    if text is None or not re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,15})?", text.strip(), re.ASCII):
        return None
    return float(text)


def _http_date(text: str | None) -> datetime | None:
    if text is None or len(text) > 64:
        return None
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def _until(when: datetime | None, now: datetime) -> float | None:
    return None if when is None else max((when - now).total_seconds(), 0.0)


def _openai_reset(headers: Mapping[str, str], now: datetime) -> float | None:
    del now
    return _of_the_scarcest(
        (duration_s(headers.get(f"x-ratelimit-reset-{kind}", "").strip()), _left(headers, "x-ratelimit-{}-" + kind))
        for kind in ("requests", "tokens")
    )


def _anthropic_reset(headers: Mapping[str, str], now: datetime) -> float | None:
    return _of_the_scarcest(
        (
            _until(_rfc3339(headers.get(f"anthropic-ratelimit-{kind}-reset", "")), now),
            _left(headers, f"anthropic-ratelimit-{kind}-{{}}"),
        )
        for kind in ("requests", "tokens", "input-tokens", "output-tokens")
    )


def _openrouter_reset(headers: Mapping[str, str], now: datetime) -> float | None:
    millis = _number(headers.get("x-ratelimit-reset"))
    try:
        return None if millis is None else _until(datetime.fromtimestamp(millis / 1000, UTC), now)
    except (ValueError, OverflowError, OSError):
        return None


def _of_the_scarcest(resets: Iterator[tuple[float | None, float]]) -> float | None:
    """The time of the limit of which the least is left; the longest of several.

    Every answer tells when all of its limits are full again, and some take a day: only the one that ran out matters.
    """
    told = [(left, seconds) for seconds, left in resets if seconds is not None]
    scarcest = min((left for left, _ in told), default=None)
    return max((seconds for left, seconds in told if left == scarcest), default=None)


def _left(headers: Mapping[str, str], names: str) -> float:
    """Which share of a limit is left; 0 when the answer does not say."""
    limit, remaining = (_number(headers.get(names.format(name))) for name in ("limit", "remaining"))
    if remaining is None or not limit:
        return 0.0
    return min(remaining / limit, 1.0)


def _rfc3339(text: str) -> datetime | None:
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    # A time without a zone says nothing about when; a date without a time even less.
    return when if when.tzinfo is not None else None


_UNIT_S: Final = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_DURATION_PART: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(ms|us|µs|ns|d|h|m|s)", re.ASCII)

# Where a provider tells when a limit is over without a `retry-after`: its reference pages on rate limits.
RESETS: Final[Mapping[str, Callable[[Mapping[str, str], datetime], float | None]]] = {
    "openai": _openai_reset,
    "anthropic": _anthropic_reset,
    "openrouter": _openrouter_reset,
    # Its OpenAI-compatible routes may pass these headers on.
    "mantle": _openai_reset,
}
