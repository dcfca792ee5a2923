"""What is held."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import weakref
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Type, TypeVar

from . import _native
from ._calls import block, start, wait
from ._options import Time
from .errors import Lost, TenureError
from .ownership import Ownership
from .views import Waiter

__all__ = ["Held", "Leadership", "Lease", "Leases"]

_log = logging.getLogger("tenure")

#: What is held, for the end of the interpreter.
_live: "weakref.WeakSet[Held]" = weakref.WeakSet()

#: The threads of this module, which work under no lease.
own_threads: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()

_H = TypeVar("_H", bound="Held")


class Held:
    """A held lock, or several: a context manager that releases at its end.

    At the end of a ``with`` block it raises :class:`Lost` if the lease had ended before the block did; what the block wrote may
    then be beside the work of another process. If the block raises, that exception is the one that passes on.

    In ``async with`` a loss cancels the task that entered, as :func:`asyncio.timeout` does, and the block raises
    :class:`Lost`. If its caller cancels the task at the same moment, it ends as cancelled; before Python 3.11, which cannot
    tell the two apart, it raises :class:`Lost`.

    Dropped without an end, it is released in the background.
    """

    def __init__(self, guard: _native.Guard) -> None:
        self._guard = guard
        self._is_released = False
        self._is_detached = False
        #: Whether the lock stays taken after work that was cut off.
        self._lingers = False
        #: The store lives for as long as a lease of it.
        self._store: Optional[_native.Store] = None
        self._watch: Optional[_Watch] = None
        _live.add(self)

    def check(self) -> None:
        """Raises :class:`Lost` unless this process holds it at this moment. Asks the clock, not the store."""
        if self._is_detached:
            raise Lost("the lease was left to its ttl, and another process may have it", cause="released")
        self._guard.check()

    @property
    def is_held(self) -> bool:
        """Whether :meth:`check` would pass."""
        try:
            self.check()
        except Lost:
            return False
        return True

    def release(self) -> None:
        """Releases it and waits for the store's answer. A second call does nothing.

        Raises :class:`Lost` if it had ended before, and :class:`StoreError` if the store did not answer: the release is then
        repeated in the background, and the lock is free after its ttl at the latest.
        """
        call = self._ending()
        if call is not None:
            block(call)

    async def release_async(self) -> None:
        """As :meth:`release`. Cancelled, the release goes on in the background."""
        call = self._ending()
        if call is not None:
            await wait(call)

    def _ending(self) -> Optional[_native.Call]:
        self._is_released = True
        _live.discard(self)
        if self._watch is not None:
            self._watch.end()
        return self._guard.release()

    def _drop(self) -> None:
        """Releases it in the background."""
        self._is_released = True
        _live.discard(self)
        self._guard.drop_now()

    def _is_left(self, kind: Optional[Type[BaseException]]) -> bool:
        """Whether the end of a block has nothing to wait for."""
        if not self._guard.is_ours():
            # The child of a fork. It releases nothing, and an exception of its own passes on.
            if kind is None:
                self._guard.check()
            return True
        if kind is not None and not self._is_released and (self._lingers or kind is GeneratorExit):
            self._drop()
        return self._is_released

    def wait_lost(self) -> Lost:
        """Waits until it is lost, in this thread. After a release it returns immediately, with the cause ``"released"``."""
        lost: Lost = block(self._guard.lost())
        return lost

    async def wait_lost_async(self) -> Lost:
        """As :meth:`wait_lost`, in a task."""
        lost: Lost = await wait(self._guard.lost())
        return lost

    def on_lost(self, callback: Callable[[Lost], None]) -> None:
        """Calls ``callback`` in a thread of its own if it is lost before its release."""

        def watch(call: _native.Call) -> None:
            lost = call.block(False)
            if lost.cause != "released":
                callback(lost)

        thread = threading.Thread(target=watch, args=(self._guard.lost(),), name="tenure-lost", daemon=True)
        own_threads.add(thread)
        thread.start()

    def __enter__(self: _H) -> _H:
        self.check()
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if self._is_left(kind):
            return
        is_held = self.is_held
        call = self._ending()
        try:
            if call is not None:
                block(call)
        except TenureError as failed:
            _ended(failed, is_held, kind)

    async def __aenter__(self: _H) -> _H:
        self.check()
        self._watch = _Watch(self._guard)
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            lost = watch.end()
            if lost is not None and kind is not GeneratorExit and self._guard.is_ours():
                self._drop()
                if await watch.settle(kind) and (kind is None or kind is asyncio.CancelledError):
                    raise lost from error
                return
        if self._is_left(kind):
            return
        is_held = self.is_held
        call = self._ending()
        try:
            if call is not None:
                await wait(call)
        except TenureError as failed:
            _ended(failed, is_held, kind)


def _ended(failed: TenureError, is_held: bool, kind: Optional[Type[BaseException]]) -> None:
    """A block whose release failed: it counts if it was held until then, unless the store says that it was not."""
    if kind is None and (isinstance(failed, Lost) or not is_held):
        raise failed
    _log.warning("the release of a lock failed: %s", failed)


#: How long, in seconds, a block may last before its lease is watched. No loss is known as early as that but by a break.
_BRIEF = 0.05


class _Watch:
    """Cancels the task that entered ``async with`` when the lease is lost."""

    def __init__(self, guard: _native.Guard) -> None:
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if sys.version_info >= (3, 11) and self._task else 0
        self._lost: Optional[Lost] = None
        self._guard = guard
        # Most blocks are short: they end before a watch would be worth its cost.
        self._forget = asyncio.get_running_loop().call_later(_BRIEF, self._begin).cancel

    def _begin(self) -> None:
        self._forget = start(self._guard.lost(), self._on_lost)

    def _on_lost(self, lost: Any, error: Optional[BaseException]) -> None:
        if error is None and lost.cause != "released":
            self._lost = lost
            if self._task is not None:
                self._task.cancel()

    def end(self) -> Optional[Lost]:
        """Watches no more; the loss, if it has cancelled the task."""
        self._forget()
        return self._lost

    async def settle(self, kind: Optional[Type[BaseException]]) -> bool:
        """Takes the cancel of a loss back. False if the caller has cancelled the task as well."""
        if self._task is None:
            return True
        is_alone = True
        if sys.version_info >= (3, 11):
            is_alone = self._task.uncancel() <= self._cancelling
        if kind is not asyncio.CancelledError:
            # The block ended before the cancel reached it: it is still to come.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if not is_alone:
                    raise
            # The caller may have cancelled it in between.
            if sys.version_info >= (3, 11) and self._task.cancelling() > self._cancelling:
                raise asyncio.CancelledError
        return is_alone


class Lease(Held):
    """A held lock. It is renewed in the background, by a thread that never needs Python's, until it is released or lost."""

    def __init__(self, guard: _native.Guard) -> None:
        super().__init__(guard)
        (self._lease,) = guard.leases()

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._lease.name

    @property
    def owner(self) -> str:
        """The owner of this lease: 48 hexadecimal digits."""
        return self._lease.owner

    @property
    def token(self) -> int:
        """The fencing token: larger than every token granted before. Raises :class:`Lost` if the lease has ended.

        Pass it to what the lock protects, which refuses a smaller one than it has seen.
        """
        self.check()
        return self._lease.token

    @property
    def ttl(self) -> float:
        """How long a renewal lasts, in seconds."""
        return self._lease.ttl

    @property
    def remaining(self) -> float:
        """The seconds until the lease ends if it is not renewed; 0.0 once it is lost."""
        return self._lease.remaining

    @property
    def is_renewal_failing(self) -> bool:
        """Whether the last renewal failed; the lease is held until :attr:`remaining` is zero."""
        return self._lease.is_renewal_failing

    def set_memo(self, text: str, kept: Time) -> None:
        """Stores a text with the lock, for ``kept`` seconds; :meth:`Locks.inspect` shows it to everyone."""
        block(self._lease.set_memo(text, kept))

    async def set_memo_async(self, text: str, kept: Time) -> None:
        """As :meth:`set_memo`."""
        await wait(self._lease.set_memo(text, kept))

    def asked_to_stop(self, within: Optional[Time] = None) -> Optional[Waiter]:
        """Waits for a waiter that asked with ``replace`` for this holder to stop, for at most ``within`` seconds."""
        return _waiter(block(self._lease.asked_to_stop(within)))

    async def asked_to_stop_async(self, within: Optional[Time] = None) -> Optional[Waiter]:
        """As :meth:`asked_to_stop`."""
        return _waiter(await wait(self._lease.asked_to_stop(within)))

    def ownership(self, rest: Optional[Time] = None) -> Ownership:
        """What a transaction of this program looks for, to commit only while this lease holds the lock.

        Only on a store whose database has the data: PostgreSQL, MySQL, MariaDB; keys on Redis, etcd and ZooKeeper. ``rest``
        says for how long, in seconds, the owner stays visible.
        """
        return Ownership._of(*block(self._lease.ownership(rest)))

    async def ownership_async(self, rest: Optional[Time] = None) -> Ownership:
        """As :meth:`ownership`."""
        return Ownership._of(*await wait(self._lease.ownership(rest)))

    def detach(self) -> str:
        """Leaves the lease to its ttl, and returns its owner: another process continues it with :meth:`Lock.attach`.

        Raises :class:`StoreError` if the store did not answer where it is asked: then the lock is released.
        """
        call = self._detaching()
        return str(block(call)) if call is not None else self.owner

    async def detach_async(self) -> str:
        """As :meth:`detach`."""
        call = self._detaching()
        return str(await wait(call)) if call is not None else self.owner

    def _detaching(self) -> Optional[_native.Call]:
        self.check()
        self._is_released = self._is_detached = True
        _live.discard(self)
        if self._watch is not None:
            self._watch.end()
        return self._guard.detach()

    def __repr__(self) -> str:
        return f"<tenure.{type(self).__name__} {_state(self, lambda: repr(self.name))}>"


def _state(held: Held, name: Callable[[], str]) -> str:
    if not held._guard.is_ours():
        return "of the parent of a fork"
    return f"{name()} {'held' if held.is_held else 'not held'}"


def _waiter(view: Optional[str]) -> Optional[Waiter]:
    return None if view is None else Waiter._of(json.loads(view))


class Leases(Held):
    """Several held locks: all of them, or the block ends."""

    def __init__(self, guard: _native.Guard) -> None:
        super().__init__(guard)
        self._leases = guard.leases()

    @property
    def tokens(self) -> Dict[str, int]:
        """The fencing token of each lock. Raises :class:`Lost` if one of them has ended."""
        self.check()
        return {lease.name: lease.token for lease in self._leases}

    @property
    def names(self) -> List[str]:
        """The names of the locks."""
        return [lease.name for lease in self._leases]

    @property
    def remaining(self) -> float:
        """The seconds until the first of them ends if it is not renewed."""
        return min(lease.remaining for lease in self._leases)

    def __repr__(self) -> str:
        return f"<tenure.Leases {_state(self, lambda: repr(self.names))}>"


class Leadership(Lease):
    """The lead of an election."""

    def proclaim(self, text: str) -> None:
        """Stores a text that the followers see, such as an address."""
        block(self._guard.proclaim(text))

    async def proclaim_async(self, text: str) -> None:
        """As :meth:`proclaim`."""
        await wait(self._guard.proclaim(text))
