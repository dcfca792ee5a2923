"""What the tests share."""

import asyncio
import os
import subprocess
import sys
import time
import unittest
import uuid

import tenure

URL = os.environ["TENURE_URL"]
KIND = URL.split(":")[0]
#: How many times slower than usual this machine may be.
SLOWNESS = float(os.environ.get("TENURE_TEST_SLOWNESS", "1"))
#: Long, because no test waits for it unless something does not come.
PATIENCE = 30 * SLOWNESS
IS_QUORUM = KIND == "redlock"
#: Stores that end the lease with its process, and stores whose server orders the queue.
IS_SESSION = KIND == "zookeeper"
IS_ORDERED = KIND in ("zookeeper", "etcd")
IS_FILE = KIND == "sqlite"
IS_MEMORY = KIND == "memory"


def name(of="lock"):
    """A name that no other test has."""
    return f"{of}-{uuid.uuid4().hex}"


def eventually(what, is_true):
    """Waits until it is true."""
    began = time.monotonic()
    while time.monotonic() < began + PATIENCE:
        found = is_true()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"not within {PATIENCE} s: {what}")


async def eventually_async(what, is_true):
    began = time.monotonic()
    while time.monotonic() < began + PATIENCE:
        found = await is_true()
        if found:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within {PATIENCE} s: {what}")


class Case(unittest.TestCase):
    """A test with a store, which no other process of Python has."""

    def setUp(self):
        self.locks = tenure.connect(URL)
        #: Another client. In memory there is none: a second connection would be another store.
        self.other = self.locks if IS_MEMORY else tenure.connect(URL)


def python(code, *arguments, **options):
    """Starts another interpreter."""
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", code, *arguments],
        text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )


def ended(process):
    """How it ended, with all that it wrote."""
    out, err = process.communicate(timeout=PATIENCE * 3)
    return process.returncode, out, err
