"""Fixtures of pytest: locks in the memory of the test."""

from __future__ import annotations

from typing import Iterator

import pytest

import tenure


@pytest.fixture
def tenure_locks() -> Iterator[tenure.Locks]:
    """A store of this test alone, which needs no server."""
    locks = tenure.connect("memory:")
    yield locks
    locks.flush()
