"""The options of a lock, and times, for type checkers."""

from __future__ import annotations

import datetime
from typing import Literal, Optional, TypedDict, Union

__all__ = ["Options", "Time"]

#: Seconds, or a ``timedelta``.
Time = Union[float, int, datetime.timedelta]


class Options(TypedDict, total=False):
    """What :class:`Locks` explains."""

    ttl: Optional[Time]
    wait: Optional[Time]
    max_hold: Optional[Time]
    min_hold: Optional[Time]
    linger: Optional[Time]
    patience: Optional[Time]
    keep_idle: Optional[Time]
    free_at_death: Optional[bool]
    fifo: bool
    latest: bool
    replace: bool
    priority: Optional[Literal["low", "normal", "high", "urgent"]]
    owner: Optional[str]
