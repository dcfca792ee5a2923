"""What can go wrong. All are a :class:`TenureError`."""

from __future__ import annotations

import datetime
import json
from typing import Any, Optional

from .views import Holder, Waiter

__all__ = [
    "Busy",
    "ConfigError",
    "Forked",
    "GaveWay",
    "Lost",
    "NotCounted",
    "NotHeld",
    "StoreError",
    "TenureError",
]


class TenureError(Exception):
    """The base of all errors of this module."""

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.__dict__.update(fields)


class Busy(TenureError):
    """Other owners held the lock, or waited for it, during the whole wait. Nothing is held."""

    #: How long this caller waited, in seconds.
    waited: float = 0.0
    #: How many waiters were ahead at the end; ``None`` if this one had no place.
    ahead: Optional[int] = None
    #: One of the holders, as last seen; ``None`` if the store named none.
    holder: Optional[Holder] = None

    def __init__(self, message: str = "", *, holder: Any = None, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.holder = Holder._of(json.loads(holder)) if isinstance(holder, str) else holder


class GaveWay(TenureError):
    """A newer client took the place of this one, which asked with ``latest`` or ``replace``. Nothing is held."""

    #: The newer client.
    by: Optional[Waiter] = None

    def __init__(self, message: str = "", *, by: Any = None) -> None:
        super().__init__(message)
        self.by = Waiter._of(json.loads(by)) if isinstance(by, str) else by


class Lost(TenureError):
    """The lease has ended before it was released: another process may hold the lock. Stop the work.

    What was written under its token after that is refused where the resource checks tokens.
    """

    #: ``"expired"``, ``"taken"`` (broken, or the store lost its data), ``"max_hold"`` or ``"released"``.
    cause: str = "expired"
    #: The token of the lease.
    token: int = 0
    #: When it was lost, by the clock of this machine.
    at: Optional[datetime.datetime] = None


class NotHeld(TenureError):
    """The owner to attach to does not hold the lock: its lease expired, was broken or released, or never was."""


class StoreError(TenureError):
    """The store failed, for longer than the patience or in a way that does not pass."""

    #: ``"unavailable"``, ``"timed_out"``, ``"throttled"``, ``"denied"``, ``"invalid"``, ``"unsupported"`` or ``"corrupt"``.
    kind: str = "unavailable"
    #: Whether a later try may succeed without a change of anything.
    is_transient: bool = False


class NotCounted(StoreError):
    """A run of a job is done, and the store has not counted it: the job may run again within its interval."""

    #: What the run returned.
    value: Any = None


class ConfigError(TenureError, ValueError):
    """A URL, a name or the value of an option that is not valid; nothing was sent. Also a :class:`ValueError`."""


class Forked(TenureError, RuntimeError):
    """A handle from before a fork was used in the child. It belongs to the parent: call :func:`tenure.connect` in the child."""
