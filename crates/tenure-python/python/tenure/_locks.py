"""What can be asked of a store."""

from __future__ import annotations

import datetime
import inspect
import json
import os
import sys
import time
import weakref
from types import FrameType, TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    AsyncIterator,
    Awaitable,
    Callable,
    Dict,
    Generic,
    Iterable,
    Iterator,
    List,
    Literal,
    Optional,
    Tuple,
    Type,
    TypeVar,
    Union,
    cast,
)

from . import _native
from ._options import Options, Time
from ._calls import ask, block, refuse_in_loop
from ._calls import wait as _wait
from ._journal import start_journal
from ._leases import Held, Leadership, Lease, Leases
from .errors import Busy, Forked, Lost, NotCounted
from .views import Finding, Holder, LastRun, Leader, LockView

__all__ = ["Election", "Lock", "Locks", "Once", "Outcome", "Ran", "ReadWriteLock", "Skipped"]

if TYPE_CHECKING:
    from typing_extensions import Unpack

_H = TypeVar("_H", bound=Held)
_T = TypeVar("_T")
_V = TypeVar("_V")

#: For the end of the interpreter.
_stores: "weakref.WeakSet[_native.Store]" = weakref.WeakSet()


class Locks:
    """A connected store of locks. Get one from :func:`tenure.connect`.

    It may be used by all threads and event loops of a process, and by no child of it: a handle from before a fork raises
    :class:`Forked` in the child, which calls :func:`tenure.connect` itself.

    All times are in seconds, or a :class:`datetime.timedelta`. The options of a lock:

    ``ttl``
        How long a renewal lasts, by default that of the store: 10 s on most. A dead holder keeps the lock for that long.
    ``wait``
        The longest wait, by default without a limit. ``0`` asks once.
    ``priority``
        ``"low"``, ``"normal"``, ``"high"`` or ``"urgent"``: a higher one is granted the lock first.
    ``max_hold``, ``min_hold``, ``linger``
        The longest time that it is held; the least time that it stays taken; how long it stays taken after work that was cut
        off, by an exception or by the end of the interpreter.
    ``patience``
        How long a store may fail before a wait ends with :class:`StoreError`, by default as long as the wait, or 30 s.
    ``latest``, ``replace``
        A newer waiter takes the place of this one; and asks the holder to stop.
    ``free_at_death``
        Whether the lock is free immediately when this process dies, on stores that see it.
    ``fifo``, ``keep_idle``, ``owner``
        As in the Rust library.
    """

    def __init__(self, url: str) -> None:
        self._store = _native.Store(url, _command())
        _stores.add(self._store)
        start_journal()

    def mutex(self, name: str, **options: Unpack[Options]) -> Lock[Lease]:
        """A lock that one process holds at a time."""
        return Lock(self._store.mutex(name, _chosen(options)), Lease, self._store, options)

    def rwlock(self, name: str, **options: Unpack[Options]) -> ReadWriteLock:
        """A lock that many readers hold, or one writer."""
        return ReadWriteLock(self._store, name, _chosen(options))

    def semaphore(self, name: str, slots: int, *, take: int = 1, **options: Unpack[Options]) -> Lock[Lease]:
        """A lock of ``slots`` permits, of which each holder has ``take``."""
        chosen = _chosen(options)
        if take != 1:
            chosen["take"] = take
        return Lock(self._store.semaphore(name, slots, chosen), Lease, self._store, options)

    def all(self, names: Iterable[str], **options: Unpack[Options]) -> Lock[Leases]:
        """Several mutexes, to be held at the same time. They are acquired in one order, so no two callers wait for each other."""
        return Lock(self._store.all(_names(names), _chosen(options)), Leases, self._store, options)

    def any(self, names: Iterable[str], **options: Unpack[Options]) -> Lock[Lease]:
        """Several mutexes, of which the first that is free is taken."""
        return Lock(self._store.any(_names(names), _chosen(options)), Lease, self._store, options)

    def once(
        self,
        name: str,
        *,
        interval: Time,
        jitter: Optional[Time] = None,
        even_if_failed: bool = False,
        **options: Unpack[Options],
    ) -> Once:
        """A job that runs once per ``interval`` among all processes.

        With ``even_if_failed`` a run counts from its start, so a run that raises is not repeated before the next interval.
        """
        return Once(self._store.once(name, interval, jitter, even_if_failed, _chosen(options)), even_if_failed, self._store)

    def election(self, name: str, **options: Unpack[Options]) -> Election:
        """An election: one process leads, the others follow."""
        return Election(self._store.election(name, _chosen(options)), self._store, options)

    def inspect(self, name: str) -> LockView:
        """Who holds and who waits, when the store answered. Do not decide by it: it may be old by then."""
        return _lock_view(ask(self._store.inspect(name), "await locks.inspect_async(name)"))

    async def inspect_async(self, name: str) -> LockView:
        """As :meth:`inspect`."""
        return _lock_view(await _wait(self._store.inspect(name)))

    def list(self, prefix: str = "") -> List[LockView]:
        """The locks that have a holder or a waiter, and whose names begin with ``prefix``."""
        return [LockView._of(view) for view in json.loads(ask(self._store.list(prefix), "await locks.list_async(prefix)"))]

    async def list_async(self, prefix: str = "") -> List[LockView]:
        """As :meth:`list`."""
        return [LockView._of(view) for view in json.loads(await _wait(self._store.list(prefix)))]

    def watch(self, name: Optional[str] = None, *, prefix: str = "") -> Watch:
        """The lock of this name as it changes, or all whose names begin with ``prefix``: an iterator without an end, for ``for``
        and ``async for``."""
        watch = self._store.watch(name) if name is not None else self._store.watch_all(prefix)
        return Watch(watch, _lock_view, "async for view in watch:")

    def force_release(self, name: str, owner: Optional[str] = None) -> List[Holder]:
        """Ends the leases of a lock, or the one of ``owner``. **This overrides exclusion**: the holder may still work.

        Returns the holders that it has ended.
        """
        call = self._store.force_release(name, owner)
        return [Holder._of(view) for view in json.loads(ask(call, "await locks.force_release_async(name)"))]

    async def force_release_async(self, name: str, owner: Optional[str] = None) -> List[Holder]:
        """As :meth:`force_release`."""
        return [Holder._of(view) for view in json.loads(await _wait(self._store.force_release(name, owner)))]

    def diagnose(self) -> List[Finding]:
        """What weakens the promises of this store, as ``tenure doctor`` says it."""
        findings = json.loads(ask(self._store.diagnose(), "await locks.diagnose_async()"))
        return [Finding(**finding) for finding in findings]

    async def diagnose_async(self) -> List[Finding]:
        """As :meth:`diagnose`."""
        return [Finding(**finding) for finding in json.loads(await _wait(self._store.diagnose()))]

    def new_owner(self) -> str:
        """An owner for the option ``owner`` of one lease."""
        return self._store.new_owner()

    def flush(self) -> bool:
        """Waits until the locks that were dropped are released, for at most a second. The end of the interpreter does so too."""
        is_done: bool = block(self._store.flush())
        return is_done

    def __reduce__(self) -> Any:
        raise TypeError("a connected store belongs to its process; call tenure.connect() in the other one")

    def __repr__(self) -> str:
        try:
            backend, reach = self._store.about()
        except Forked:
            return "<tenure.Locks of the parent of a fork>"
        return f"<tenure.Locks on {backend}, for {reach}>"


class Lock(Generic[_H]):
    """A lock in one mode, to be acquired any number of times, by any number of threads and tasks.

    ``with lock as lease:`` acquires it and releases it at the end of the block; ``async with`` does so in a task. Where the
    end is elsewhere than the beginning, as in an :class:`contextlib.ExitStack`, write ``lock.acquire()``, whose lease is a
    context manager as well.
    """

    def __init__(
        self, lock: Union[_native.Lock, _native.Election], held: Type[_H], store: _native.Store, options: Options
    ) -> None:
        self._lock = lock
        self._held = held
        self._store = store
        self._limit = options.get("wait")
        self._lingers = options.get("linger") is not None
        # What each block has entered, by its frame; the last one at the end.
        self._entered: Dict[FrameType, List[_H]] = {}

    def acquire(self, wait: Optional[Time] = None) -> _H:
        """Waits until this process holds it, for at most ``wait`` seconds, or as its option says.

        Raises :class:`Busy` if it is not granted in time. In a thread with a running event loop it raises
        :class:`RuntimeError`: there, use :meth:`acquire_async`.
        """
        refuse_in_loop("await lock.acquire_async()` or `async with lock:")
        tries = _Tries(self._limit if wait is None else wait)
        while True:
            held = self._granted(block(self._lock.acquire(tries.left())))
            if tries.accepts(held):
                return held

    def try_acquire(self) -> Optional[_H]:
        """Asks once; ``None`` if another owner holds it, or waits for it."""
        try:
            return self.acquire(0)
        except Busy:
            return None

    async def acquire_async(self, wait: Optional[Time] = None) -> _H:
        """As :meth:`acquire`, in a task. Cancelled, the claim is withdrawn, and a grant that had come is released."""
        tries = _Tries(self._limit if wait is None else wait)
        while True:
            held = self._granted(await _wait(self._lock.acquire(tries.left()), _native.Guard.drop_unused))
            if tries.accepts(held):
                return held

    async def try_acquire_async(self) -> Optional[_H]:
        """As :meth:`try_acquire`."""
        try:
            return await self.acquire_async(0)
        except Busy:
            return None

    def attach(self, owner: str) -> _H:
        """Continues a lease that another process has left by :meth:`Lease.detach`, or a script by ``tenure lock``.

        Raises :class:`NotHeld` if that owner does not hold the lock.
        """
        refuse_in_loop("await lock.attach_async(owner)")
        return self._attached(block(self._lock.attach(owner)))

    async def attach_async(self, owner: str) -> _H:
        """As :meth:`attach`."""
        return self._attached(await _wait(self._lock.attach(owner), _native.Guard.drop_now))

    def _granted(self, guard: _native.Guard) -> _H:
        held = self._held(guard)
        held._store, held._lingers = self._store, self._lingers
        return held

    def _attached(self, guard: _native.Guard) -> _H:
        held = self._granted(guard)
        held.check()
        return held

    def __enter__(self) -> _H:
        frame = sys._getframe(1)
        held = self.acquire()
        self._entered.setdefault(frame, []).append(held)
        return held

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._leave(sys._getframe(1)).__exit__(kind, error, trace)

    # No coroutine functions: it is the call that has the frame of the block.
    def __aenter__(self) -> Awaitable[_H]:
        return self._enter_async(sys._getframe(1))

    def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> Awaitable[None]:
        return self._leave(sys._getframe(1)).__aexit__(kind, error, trace)

    async def _enter_async(self, frame: FrameType) -> _H:
        held = await (await self.acquire_async()).__aenter__()
        self._entered.setdefault(frame, []).append(held)
        return held

    def _leave(self, frame: FrameType) -> _H:
        """What this block has entered last."""
        if frame not in self._entered:
            # It ends elsewhere than it began.
            if len(self._entered) != 1 or len(next(iter(self._entered.values()))) != 1:
                raise RuntimeError(
                    "several blocks hold this lock, and this one did not begin here; write `with lock.acquire() as lease:`"
                )
            frame = next(iter(self._entered))
        entered = self._entered[frame]
        held = entered.pop()
        if not entered:
            del self._entered[frame]
        return held

    def __reduce__(self) -> Any:
        raise TypeError("a lock belongs to its process; call tenure.connect() in the other one")


class _Tries:
    """Of one wait: a lease that has ended before its caller could run again was never seen, and the next one is waited for."""

    def __init__(self, wait: Optional[Time]) -> None:
        if isinstance(wait, datetime.timedelta):
            wait = wait.total_seconds()
        self._until = None if wait is None else _now() + wait
        self._wait: Optional[Time] = wait
        self._left = 3

    def left(self) -> Optional[Time]:
        return self._wait

    def accepts(self, held: Held) -> bool:
        """Raises the loss after some tries, or if the next one would end as this one."""
        try:
            held.check()
        except Lost as lost:
            held._drop()
            self._left -= 1
            if self._left == 0 or lost.cause == "max_hold":
                raise
            if self._until is not None:
                self._wait = max(0.0, self._until - _now())
            return False
        return True


def _command() -> str:
    """The name of this program, for those who ask who holds a lock."""
    path = sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c", "-m") else sys.executable
    name = os.path.basename(path)
    # `python -m package`
    return os.path.basename(os.path.dirname(path)) if name == "__main__.py" else name


def _names(names: Iterable[str]) -> List[str]:
    if isinstance(names, str):
        raise TypeError("several names are wanted, as a list: a string would be one name for each letter")
    return list(names)


class ReadWriteLock:
    """A lock that many readers hold, or one writer."""

    def __init__(self, store: _native.Store, name: str, options: Any) -> None:
        self._read = Lock(store.read(name, options), Lease, store, options)
        self._write = Lock(store.write(name, options), Lease, store, options)

    def read(self) -> Lock[Lease]:
        """The lock of a reader."""
        return self._read

    def write(self) -> Lock[Lease]:
        """The lock of the writer."""
        return self._write


class Ran(Generic[_T]):
    """The job ran, and this is what it returned."""

    def __init__(self, value: _T) -> None:
        self.value = value

    def __bool__(self) -> Literal[True]:
        return True

    def __repr__(self) -> str:
        return f"Ran({self.value!r})"


class Skipped:
    """The job did not run: another run counts. It is false, so ``if job.run(work):`` says whether it ran."""

    def __init__(self, last: LastRun) -> None:
        self.last = last

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        return f"Skipped({self.last!r})"


Outcome = Union["Ran[_T]", Skipped]


class Once:
    """A job that runs once per interval."""

    def __init__(self, once: _native.Once, is_counted: bool, store: _native.Store) -> None:
        self._once = once
        self._store = store
        # Whether a run was counted as it began.
        self._is_counted = is_counted

    def run(self, work: Callable[[Lease], _T]) -> Outcome[_T]:
        """Calls ``work(lease)``, unless a run that counts began within the interval: :class:`Ran` or :class:`Skipped`.

        While another process runs the job it waits, as long as ``wait`` says, and then skips. With ``wait=0`` it raises
        :class:`Busy`.

        A run that raises does not count, and one whose lease was lost before its end raises :class:`Lost`. If the run is done
        and the store does not count it, :class:`NotCounted` has what it returned.
        """
        refuse_in_loop("await job.run_async(work)")
        if inspect.iscoroutinefunction(work):
            raise TypeError("a coroutine function is run by `await job.run_async(work)`")
        guard, turn, last = block(self._once.begin())
        if guard is None:
            return Skipped(LastRun(**json.loads(last)))
        with Lease(guard) as lease:
            began = _now()
            value = work(lease)
            lease.check()
            if not self._is_counted:
                try:
                    block(self._once.count(lease._lease, turn, _now() - began))
                except NotCounted as error:
                    error.value = value
                    raise
        return Ran(value)

    async def run_async(self, work: Callable[[Lease], Awaitable[_T]]) -> Outcome[_T]:
        """As :meth:`run`, for a coroutine function, which a loss cancels."""
        guard, turn, last = await _wait(self._once.begin(), _drop_begun)
        if guard is None:
            return Skipped(LastRun(**json.loads(last)))
        async with Lease(guard) as lease:
            began = _now()
            running = work(lease)
            if not inspect.isawaitable(running):
                raise TypeError("a function that is not a coroutine function is run by `job.run(work)`")
            value = await running
            lease.check()
            if not self._is_counted:
                try:
                    await _wait(self._once.count(lease._lease, turn, _now() - began))
                except NotCounted as error:
                    error.value = value
                    raise
        return Ran(value)

    def last(self) -> Optional[LastRun]:
        """The last run that counts, or ``None`` if the job is due."""
        last = ask(self._once.last(), "await job.last_async()")
        return None if last is None else LastRun(**json.loads(last))

    async def last_async(self) -> Optional[LastRun]:
        """As :meth:`last`."""
        last = await _wait(self._once.last())
        return None if last is None else LastRun(**json.loads(last))


def _drop_begun(begun: Tuple[Optional[_native.Guard], Any, Any]) -> None:
    if begun[0] is not None:
        begun[0].drop_unused()


def _chosen(options: Options) -> Dict[str, Any]:
    return dict(cast(Dict[str, Any], options))


def _now() -> float:
    """A clock that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Election(Lock[Leadership]):
    """An election: ``with election as leadership:`` waits until this process leads."""

    def __init__(self, election: _native.Election, store: _native.Store, options: Options) -> None:
        super().__init__(election, Leadership, store, options)
        self._election = election

    #: Waits until this process leads.
    campaign = Lock.acquire
    #: As :meth:`campaign`, in a task.
    campaign_async = Lock.acquire_async

    def leader(self) -> Optional[Leader]:
        """The present leader, as the store reports it."""
        return _leader(ask(self._election.leader(), "await election.leader_async()"))

    async def leader_async(self) -> Optional[Leader]:
        """As :meth:`leader`."""
        return _leader(await _wait(self._election.leader()))

    def observe(self) -> Observer:
        """The leaders as they change; ``None`` stands for a vacancy. An iterator without an end, for ``for`` and ``async for``."""
        return Observer(self._election.observe(), _leader, "async for leader in election.observe():")


def _lock_view(view: str) -> LockView:
    return LockView._of(json.loads(view))


def _leader(view: Optional[str]) -> Optional[Leader]:
    return None if view is None else Leader._of(json.loads(view))


class _Changes(Generic[_V]):
    """Changes as they come, without an end."""

    def __init__(
        self, source: Union[_native.Observer, _native.Watch], read: Callable[[Any], _V], instead: str
    ) -> None:
        self._source = source
        self._read = read
        self._instead = instead
        # What had come to a task that was cancelled.
        self._missed: List[Any] = []

    def __iter__(self) -> Iterator[_V]:
        return self

    def __next__(self) -> _V:
        return self._read(self._missed.pop(0) if self._missed else ask(self._source.next(), self._instead))

    def __aiter__(self) -> AsyncIterator[_V]:
        return self

    async def __anext__(self) -> _V:
        if self._missed:
            return self._read(self._missed.pop(0))
        return self._read(await _wait(self._source.next(), self._missed.append))


class Observer(_Changes[Optional[Leader]]):
    """The leaders of an election as they change."""


class Watch(_Changes[LockView]):
    """Locks as they change."""
