"""Distributed locks as leases, with fencing tokens, on what you already run.

>>> import tenure
>>> locks = tenure.connect("memory:")
>>> with locks.mutex("nightly") as lease:
...     print(lease.name, lease.token > 0)
nightly True
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Optional

from . import _native
from ._calls import block
from ._leases import Held, Leadership, Lease, Leases, _live, own_threads
from ._locks import (
    Election,
    Lock,
    Locks,
    Observer,
    Once,
    Ran,
    ReadWriteLock,
    Skipped,
    Watch,
    _stores,
)
from .errors import (
    Busy,
    ConfigError,
    Forked,
    GaveWay,
    Lost,
    NotCounted,
    NotHeld,
    StoreError,
    TenureError,
)
from .ownership import Ownership
from .views import Finding, Holder, Label, LastRun, Leader, LockView, Memo, Waiter

__version__: str = _native.__version__

__all__ = [
    "Busy",
    "ConfigError",
    "Election",
    "Finding",
    "Forked",
    "GaveWay",
    "Held",
    "Holder",
    "Label",
    "LastRun",
    "Leader",
    "Leadership",
    "Lease",
    "Leases",
    "Lock",
    "LockView",
    "Locks",
    "Lost",
    "Memo",
    "NotCounted",
    "NotHeld",
    "Observer",
    "Once",
    "Ownership",
    "Ran",
    "ReadWriteLock",
    "Skipped",
    "StoreError",
    "TenureError",
    "Waiter",
    "Watch",
    "connect",
]


def connect(url: Optional[str] = None) -> Locks:
    """Connects to the store that a URL names, or the variable ``TENURE_URL``.

    ``memory:``, ``sqlite:PATH``, ``redis://HOST``, ``redis-sentinel://…``, ``redis-cluster://…``, ``redlock:URL,URL,URL``,
    ``postgres://USER@HOST/DATABASE``, ``mysql://…``, ``mariadb://…``, ``zookeeper://HOST,HOST`` or ``etcd://HOST,HOST``. Most
    stores are sent nothing yet: the first request then finds one that is down.

    Raises :class:`ConfigError` if the URL is not valid, or if there is none.
    """
    if url is None:
        url = os.environ.get("TENURE_URL", "")
        if not url.strip():
            raise ConfigError("no store: pass a URL to tenure.connect(), or set TENURE_URL")
    return Locks(url)


def _at_exit() -> None:
    """The interpreter ends: what is held is released, unless a thread that still runs may work under it."""
    try:
        others = [one for one in threading.enumerate() if one is not threading.main_thread()]
        if all(one in own_threads for one in others):
            for held in list(_live):
                held._drop()
        for store in list(_stores):
            try:
                block(store.flush())
            except TenureError:
                pass
        _native.wait_for_leavers()
    finally:
        _native.stop_journal()
        # A thread that came back to an interpreter that has ended would be ended in the middle of a call.
        for own in list(own_threads):
            own.join(0.5)


atexit.register(_at_exit)
os.register_at_fork(
    before=_native.before_fork,
    after_in_parent=_native.after_fork_in_parent,
    after_in_child=_native.after_fork_in_child,
)
