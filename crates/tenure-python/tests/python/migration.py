"""Programs of redis-py beside ours, on the same key, as while one program after the other is changed."""

import threading
import time
import unittest
from urllib.parse import urlsplit

import redis
import tenure
from support import PATIENCE, SLOWNESS, URL, Case, eventually, name

SERVER = urlsplit(URL)


class Migration(Case):
    def setUp(self):
        super().setUp()
        self.client = redis.Redis(host=SERVER.hostname, port=SERVER.port)
        self.addCleanup(self.client.close)

    def test_each_keeps_the_other_out(self):
        lock = name()
        with self.client.lock(lock, timeout=60):
            with self.assertRaises(tenure.Busy) as busy:
                self.locks.mutex(lock, wait=0.2).acquire()
            self.assertIsNone(busy.exception.holder.label, "a client other than Tenure")
        with self.locks.mutex(lock) as lease:
            self.assertFalse(self.client.lock(lock, timeout=60).acquire(blocking=False))
            lease.check()
        self.assertTrue(self.client.lock(lock, timeout=1).acquire(blocking=False))

    def test_a_waiter_of_ours_enters_after_an_old_holder(self):
        lock, entered = name(), threading.Event()
        old = self.client.lock(lock, timeout=60)
        self.assertTrue(old.acquire())

        def wait():
            with self.locks.mutex(lock, wait=PATIENCE):
                entered.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.1)
        self.assertFalse(entered.is_set())
        old.release()
        self.assertTrue(entered.wait(PATIENCE))
        waiter.join()

    def test_many_of_both_exclude_each_other(self):
        lock, inside, overlaps, done = name(), [], [], []

        def cycles(acquire, who):
            for _ in range(10):
                with acquire():
                    overlaps.extend(inside)
                    inside.append(who)
                    time.sleep(0.001)
                    inside.pop()
                    done.append(who)
                # An old program polls; without a pause ours would rarely leave it a turn.
                time.sleep(0.03)

        acquires = [lambda: self.locks.mutex(lock), lambda: self.client.lock(lock, timeout=60 * SLOWNESS, sleep=0.005)]
        threads = [threading.Thread(target=cycles, args=[acquires[who % 2], who]) for who in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE * 2)
        self.assertEqual((overlaps, len(done)), ([], 60))

    def test_a_lost_lock_of_the_old_library_is_told_as_ours(self):
        lock = name()
        old = self.client.lock(lock, timeout=0.2)
        self.assertTrue(old.acquire())
        eventually("it expires", lambda: not self.client.exists(lock))
        with self.locks.mutex(lock) as lease:
            with self.assertRaises(redis.exceptions.LockNotOwnedError):
                old.release()
            lease.check()


if __name__ == "__main__":
    unittest.main()
