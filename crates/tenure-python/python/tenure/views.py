"""What a store tells about its locks. The fields are those of ``tenure ls --json``."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any, Dict, List, Optional

__all__ = ["Finding", "Holder", "Label", "LastRun", "Leader", "LockView", "Memo", "Waiter"]


def _seconds(millis: Optional[int]) -> Optional[float]:
    return None if millis is None else millis / 1000


@dataclasses.dataclass(frozen=True)
class Label:
    """Who a client says it is."""

    host: str
    pid: int
    user: str
    command: str

    @classmethod
    def _of(cls, view: Optional[Dict[str, Any]]) -> Optional[Label]:
        if view is None:
            return None
        return cls(host=view["host"], pid=view["pid"], user=view["user"], command=view["command"])

    def __str__(self) -> str:
        return f"{self.host} pid {self.pid} {self.user} {self.command}"


@dataclasses.dataclass(frozen=True)
class Holder:
    """One holder of a lock. A client other than Tenure has neither token nor label."""

    owner: str
    mode: str
    token: Optional[int]
    label: Optional[Label]
    #: When it was granted, by the store's clock.
    since: Optional[datetime.datetime]
    #: The seconds left on the store; ``None`` if the lease does not expire.
    expires_in: Optional[float]

    @classmethod
    def _of(cls, view: Dict[str, Any]) -> Holder:
        since = view["since"]
        if since is not None:
            since = datetime.datetime.fromisoformat(since.replace("Z", "+00:00"))
        return cls(
            owner=view["owner"],
            mode=view["mode"],
            token=view["token"],
            label=Label._of(view["label"]),
            since=since,
            expires_in=_seconds(view["expires_in_ms"]),
        )

    def __str__(self) -> str:
        return str(self.label) if self.label else self.owner


@dataclasses.dataclass(frozen=True)
class Waiter:
    """One waiter in the queue of a lock."""

    owner: str
    mode: str
    priority: str
    label: Optional[Label]
    #: How long it has waited, in seconds.
    waiting: float

    @classmethod
    def _of(cls, view: Dict[str, Any]) -> Waiter:
        return cls(
            owner=view["owner"],
            mode=view["mode"],
            priority=view["priority"],
            label=Label._of(view["label"]),
            waiting=view["waiting_ms"] / 1000,
        )

    def __str__(self) -> str:
        return str(self.label) if self.label else self.owner


@dataclasses.dataclass(frozen=True)
class Memo:
    """A text that a holder stored with its lock."""

    text: str
    owner: str
    token: int
    #: How long ago it was stored, in seconds.
    age: float
    #: How long it will be kept, in seconds.
    left: float


@dataclasses.dataclass(frozen=True)
class LockView:
    """The state of one lock when the store answered."""

    name: str
    holders: List[Holder]
    #: The waiters, in the order in which they are granted.
    queue: List[Waiter]
    #: At least as large as every token granted.
    fence: int
    memo: Optional[Memo]

    @classmethod
    def _of(cls, view: Dict[str, Any]) -> LockView:
        memo = view["memo"]
        return cls(
            name=view["name"],
            holders=[Holder._of(holder) for holder in view["holders"]],
            queue=[Waiter._of(waiter) for waiter in view["queue"]],
            fence=view["fence"],
            memo=memo
            and Memo(
                text=memo["text"],
                owner=memo["owner"],
                token=memo["token"],
                age=memo["age_ms"] / 1000,
                left=memo["left_ms"] / 1000,
            ),
        )

    @property
    def is_free(self) -> bool:
        """No holder, and no waiter."""
        return not self.holders and not self.queue


@dataclasses.dataclass(frozen=True)
class Finding:
    """A fact about a store that weakens what it promises, and the remedy."""

    severity: str
    what: str
    remedy: str


@dataclasses.dataclass(frozen=True)
class Leader:
    """The leader of an election, as the store reports it."""

    owner: str
    #: The fencing token of its term.
    term: int
    label: Optional[Label]
    #: What it has proclaimed, such as its address.
    proclaimed: Optional[str]
    is_this_process: bool

    @classmethod
    def _of(cls, view: Dict[str, Any]) -> Leader:
        return cls(**{**view, "label": Label._of(view["label"])})


@dataclasses.dataclass(frozen=True)
class LastRun:
    """A run of a job that counts."""

    #: Who ran it.
    by: str
    #: How long ago it began, in seconds.
    ago: float
