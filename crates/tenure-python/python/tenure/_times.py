"""Times, as callers give them."""

from __future__ import annotations

import datetime
from typing import Union

__all__ = ["Time"]

#: Seconds, or a ``timedelta``.
Time = Union[float, int, datetime.timedelta]
