"""The options of a lock, for type checkers."""

from __future__ import annotations

from typing import Literal, Optional, TypedDict

from ._times import Time

__all__ = ["Options"]


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
