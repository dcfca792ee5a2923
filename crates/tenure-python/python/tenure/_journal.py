"""What the library says goes to the logger ``tenure``."""

from __future__ import annotations

import logging
import os
import threading
from typing import Optional

from . import _native
from ._leases import own_threads

_log = logging.getLogger("tenure")
_reader: Optional[int] = None
_lock = threading.Lock()


def start_journal() -> None:
    """Begins in this process, unless it has begun."""
    global _reader
    with _lock:
        if _reader == os.getpid():
            return
        _reader = os.getpid()
    _native.start_journal()
    reader = threading.Thread(target=_read, name="tenure-log", daemon=True)
    own_threads.add(reader)
    reader.start()


def _read() -> None:
    while True:
        events = _native.next_events()
        if events is None:
            return
        for level, text in events:
            _log.log(level, "%s", text)


def _after_fork() -> None:
    # The lock may have been held by a thread that the child does not have.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
