"""Moments as people write them."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta

_AGO = re.compile(r"(?:(?P<days>\d+)d)?(?:(?P<hours>\d+)h)?(?:(?P<minutes>\d+)m)?(?:(?P<seconds>\d+(?:\.\d+)?)s?)?", re.ASCII)


def moment(text: str, now: datetime) -> float | None:
    """What ``90``, ``90s``, ``2h30m``, ``1d`` or ``1d ago``, ``14:30`` (the last one) or ``2026-11-21T14:30`` means, in
    seconds since the epoch.

    A time without a zone is one of `now`'s, which has one. None: it is none of these.
    """
    span = text.removesuffix(" ago")
    ago = _AGO.fullmatch(span)
    try:
        if ago is not None and span:
            return (now - timedelta(**{name: float(number) for name, number in ago.groupdict(default="0").items()})).timestamp()
        if re.fullmatch(r"\d\d:\d\d(:\d\d(\.\d+)?)?", text, re.ASCII):
            at = datetime.combine(now.date(), time.fromisoformat(text), now.tzinfo)
            return (at if at <= now else at - timedelta(days=1)).timestamp()
        at = datetime.fromisoformat(re.sub("Z$", "+00:00", text))
        return (at if at.tzinfo else at.replace(tzinfo=now.tzinfo)).timestamp()
    except (ValueError, OverflowError):
        return None
