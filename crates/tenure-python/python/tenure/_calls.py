"""How a request is waited for: by the calling thread, or by an event loop."""

from __future__ import annotations

import asyncio
import itertools
import threading
import weakref
from typing import Any, Callable, Dict, Optional, Tuple

from . import _native

__all__ = ["block", "start", "wait"]

_Done = Callable[[Any, Optional[BaseException]], None]


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def block(call: _native.Call) -> Any:
    """Waits in this thread; the other threads of Python go on. Ctrl-C ends the wait and withdraws the request."""
    return call.block(_is_main())


def ask(call: _native.Call, instead: str) -> Any:
    """As :func:`block`, in a thread without a running event loop."""
    refuse_in_loop(instead)
    return block(call)


def refuse_in_loop(instead: str) -> None:
    """A wait would stop all tasks of the loop, and so perhaps the one that holds the lock."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"this call would block the event loop of this thread; write `{instead}`")


class _Arrivals:
    """What one event loop waits for. The loop has it, by the reader of its descriptor, and it ends with the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._completions = _native.Completions()
        self._waiting: Dict[int, Tuple[_Done, _native.Started]] = {}
        self._numbers = itertools.count()
        loop.add_reader(self._completions.fileno(), self._fetch)

    def _fetch(self) -> None:
        for number, value, error in self._completions.fetch():
            done, _ = self._waiting.pop(number, (None, None))
            if done is not None:
                done(value, error)
            elif isinstance(value, _native.Guard):
                value.drop_unused()

    def start(self, call: _native.Call, done: _Done) -> Callable[[], None]:
        number = next(self._numbers)
        self._waiting[number] = (done, call.start(self._completions, number))

        def forget() -> None:
            _, started = self._waiting.pop(number, (None, None))
            if started is not None:
                started.abort()

        return forget


#: The loops, and what each has: weak, because that leads back to the loop.
_arrivals: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Arrivals]]" = weakref.WeakKeyDictionary()


def start(call: _native.Call, done: _Done) -> Callable[[], None]:
    """Begins a request of the running loop, which calls ``done``; what is returned ends the request."""
    loop = asyncio.get_running_loop()
    known = _arrivals.get(loop)
    arrivals = None if known is None else known()
    if arrivals is None:
        arrivals = _Arrivals(loop)
        _arrivals[loop] = weakref.ref(arrivals)
    return arrivals.start(call, done)


async def wait(call: _native.Call, discard: Optional[Callable[[Any], None]] = None) -> Any:
    """Waits in the running loop. If the caller is cancelled, ``discard`` gets what had come."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(value: Any, error: Optional[BaseException]) -> None:
        if future.done():
            if discard is not None and error is None:
                discard(value)
        elif error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    forget = start(call, done)
    try:
        return await future
    except BaseException:
        forget()
        if future.done() and not future.cancelled() and future.exception() is None and discard is not None:
            discard(future.result())
        raise
    finally:
        # An exception refers to this frame, and the future to the exception.
        del future, done, forget
