"""What every store promises, from threads."""

import datetime
import pickle
import threading
import time
import unittest
from contextlib import ExitStack

import support
import tenure
from support import IS_FILE, IS_MEMORY, IS_ORDERED, IS_QUORUM, IS_SESSION, PATIENCE, SLOWNESS, Case, eventually, name


class Contract(Case):
    def test_a_block_holds_the_lock_and_releases_it(self):
        lock = self.locks.mutex(name())
        with lock as lease:
            self.assertTrue(lease.is_held)
            self.assertGreater(lease.remaining, 0)
            self.assertEqual([h.owner for h in self.locks.inspect(lease.name).holders], [lease.owner])
            first = lease.token
        self.assertFalse(lease.is_held)
        self.assertRaises(tenure.Lost, lambda: lease.token)
        self.assertEqual(self.locks.inspect(lease.name).holders, [])
        with lock as lease:
            self.assertGreater(lease.token, first, "L2")

    def test_a_second_claim_is_busy_and_names_the_holder(self):
        lock = name()
        with self.locks.mutex(lock) as lease:
            self.assertIsNone(self.other.mutex(lock).try_acquire())
            began = time.monotonic()
            with self.assertRaises(tenure.Busy) as busy:
                self.other.mutex(lock, wait=0.3).acquire()
            self.assertGreaterEqual(time.monotonic() - began, 0.3)
            self.assertGreaterEqual(busy.exception.waited, 0.3)
            self.assertEqual(busy.exception.holder.owner, lease.owner)
            self.assertIn("held by", str(busy.exception))
            again = pickle.loads(pickle.dumps(busy.exception))
            self.assertEqual((str(again), again.holder), (str(busy.exception), busy.exception.holder))

    def test_a_waiter_enters_after_the_release(self):
        lock, order = name(), []
        with self.locks.mutex(lock):

            def wait():
                with self.other.mutex(lock):
                    order.append("waiter")

            waiter = threading.Thread(target=wait)
            waiter.start()
            if not IS_QUORUM:
                eventually("it waits", lambda: self.locks.inspect(lock).queue)
            order.append("holder")
        waiter.join(PATIENCE)
        self.assertEqual(order, ["holder", "waiter"])

    def test_threads_of_one_process_exclude_each_other(self):
        lock, inside, overlaps, entered = self.locks.mutex(name()), [], [], []

        def work():
            for _ in range(5):
                with lock as lease:
                    if inside:
                        overlaps.append(lease)
                    inside.append(lease)
                    entered.append(lease.token)
                    time.sleep(0.002)
                    inside.pop()

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE * 2)
        self.assertEqual((overlaps, len(entered)), ([], 40))
        self.assertEqual(entered, sorted(set(entered)), "L2")

    def test_one_lock_nests_in_another_of_the_same_thread(self):
        outer, inner = self.locks.mutex(name()), self.locks.mutex(name())
        with outer as one, inner as two:
            self.assertTrue(one.is_held and two.is_held)
        self.assertFalse(one.is_held or two.is_held)

    def test_a_block_releases_what_it_has_entered(self):
        """L1: the newest lease of the lock object was released instead, under the work of another block."""
        lock, frees = name("gpu"), name("gpu")
        pool = self.locks.any([lock, frees])

        def generator():
            with pool as lease:
                yield lease

        one, two = generator(), generator()
        first, second = next(one), next(two)
        # Ended by another thread than the one that began it, and the older one first.
        closing = threading.Thread(target=one.close)
        closing.start()
        closing.join(PATIENCE)
        self.assertEqual((first.is_held, second.is_held), (False, True))
        two.close()
        self.assertFalse(second.is_held)
        with ExitStack() as stack:
            stack.enter_context(pool.acquire())
            stack.enter_context(pool.acquire())
        stacks = [ExitStack(), ExitStack()]
        leases = [stack.enter_context(pool) for stack in stacks]
        with self.assertRaisesRegex(RuntimeError, "lock.acquire"):
            stacks[0].close()
        self.assertTrue(all(lease.is_held for lease in leases))
        for lease in leases:
            lease.release()

    def test_an_exception_passes_on_and_the_lock_is_released(self):
        of = name()
        with self.assertRaises(ZeroDivisionError):
            with self.locks.mutex(of):
                1 / 0
        with self.other.mutex(of, wait=PATIENCE):
            pass

    def test_a_broken_lease_is_lost(self):
        lock, heard = name(), threading.Event()
        with self.assertRaises(tenure.Lost) as lost:
            with self.locks.mutex(lock, ttl=2 * SLOWNESS) as lease:
                token = lease.token
                lease.on_lost(lambda _: heard.set())
                (broken,) = self.other.force_release(lock)
                self.assertEqual(broken.owner, lease.owner)
                self.assertTrue(heard.wait(PATIENCE), "a callback")
                self.assertFalse(lease.is_held)
                with self.assertRaises(tenure.Lost):
                    lease.check()
        self.assertEqual((lost.exception.cause, lost.exception.token), ("taken", token))
        self.assertIsInstance(lost.exception.at, datetime.datetime)
        self.assertEqual(lease.remaining, 0)
        again = pickle.loads(pickle.dumps(lost.exception))
        self.assertEqual((again.cause, again.token), ("taken", token))

    def test_an_exception_of_the_work_is_not_replaced_by_the_loss(self):
        lock = name()
        with self.assertRaises(ZeroDivisionError):
            with self.locks.mutex(lock) as lease:
                self.other.force_release(lock)
                lease.wait_lost()
                1 / 0

    def test_a_release_ends_the_wait_for_a_loss(self):
        lease, heard = self.locks.mutex(name()).acquire(), []
        waiter = threading.Thread(target=lambda: heard.append(lease.wait_lost().cause))
        waiter.start()
        lease.on_lost(lambda lost: heard.append(lost))
        lease.release()
        lease.release()
        waiter.join(PATIENCE)
        self.assertEqual(heard, ["released"])

    def test_a_dropped_lease_is_released(self):
        lock = name()
        self.locks.mutex(lock).acquire()
        self.other.mutex(lock, wait=PATIENCE).acquire().release()

    def test_several_locks_are_held_together(self):
        names = [name("b"), name("a"), name("c")]
        with self.locks.all(names) as leases:
            self.assertEqual(sorted(leases.names), sorted(names))
            self.assertEqual(sorted(leases.tokens), sorted(names))
            self.assertIsNone(self.other.mutex(names[1]).try_acquire())
            with self.other.any([names[0], name("free")]) as lease:
                self.assertTrue(lease.name.startswith("free"))
        for one in names:
            with self.other.mutex(one, wait=PATIENCE):
                pass

    def test_invalid_values_are_refused_before_anything_is_sent(self):
        refused = [
            (tenure.ConfigError, lambda: self.locks.mutex("").acquire()),
            (tenure.ConfigError, lambda: self.locks.mutex(name(), ttl=0.001).acquire()),
            (tenure.ConfigError, lambda: self.locks.mutex(name(), ttl=-1)),
            (tenure.ConfigError, lambda: self.locks.mutex(name(), ttl="30s")),
            (tenure.ConfigError, lambda: self.locks.mutex(name(), wait=float("nan"))),
            (ValueError, lambda: self.locks.mutex(name(), priority="first")),
            (TypeError, lambda: self.locks.mutex(name(), timeout=3)),
            (tenure.ConfigError, lambda: tenure.connect("nosuch://host")),
            (tenure.ConfigError, lambda: self.locks.all([]).acquire()),
            (TypeError, lambda: self.locks.all("names")),
            (TypeError, lambda: self.locks.mutex(name()).acquire(True)),
            (TypeError, lambda: self.locks.mutex(name(), ttl=True)),
        ]
        for number, (error, call) in enumerate(refused):
            with self.subTest(number), self.assertRaises(error):
                call()
        with self.assertRaisesRegex(ValueError, "^ttl: -1 is no time"):
            self.locks.mutex(name(), ttl=-1)
        with self.assertRaisesRegex(TypeError, "try_acquire"):
            self.locks.mutex(name(), blocking=False)
        with self.assertRaises(TypeError):
            pickle.dumps(self.locks)

    @unittest.skipUnless(IS_FILE, "of a file")
    def test_a_file_is_closed_beside_its_next_opening(self):
        """L6: a thread that closed the file made one that opened it wait for a ttl, as after a lost log."""
        for number in range(150):
            one, two = tenure.connect(support.URL), tenure.connect(support.URL)
            began = time.monotonic()
            with one.mutex(f"{number}"), two.mutex(f"{number} too"):
                pass
            self.assertLess(time.monotonic() - began, 5 * SLOWNESS, number)

    def test_times_may_be_timedeltas(self):
        lease = self.locks.mutex(name(), ttl=datetime.timedelta(seconds=20)).acquire()
        self.assertEqual(lease.ttl, 20)
        lease.release()

    def test_the_store_lists_what_is_held(self):
        prefix = name("listed")
        with self.locks.mutex(prefix + "/a"), self.locks.mutex(prefix + "/b"):
            self.assertEqual([view.name for view in self.other.list(prefix)], [prefix + "/a", prefix + "/b"])
        self.assertIsInstance(self.locks.diagnose(), list)

    def test_a_watch_shows_changes(self):
        lock = name()
        watch = self.other.watch(lock)
        self.assertEqual(next(watch).holders, [])
        with self.locks.mutex(lock) as lease:
            held = next(view for view in watch if view.holders)
            self.assertEqual(held.holders[0].owner, lease.owner)
        self.assertTrue(next(view for view in watch if not view.holders))

    @unittest.skipIf(IS_QUORUM, "a quorum has mutexes only")
    def test_readers_share_and_a_writer_does_not(self):
        lock = name()
        mine, others = self.locks.rwlock(lock), self.other.rwlock(lock)
        with mine.read(), others.read():
            self.assertIsNone(others.write().try_acquire())
        with mine.write():
            self.assertIsNone(others.read().try_acquire())

    @unittest.skipIf(IS_QUORUM, "a slot of a quorum is a mutex")
    def test_a_semaphore_counts_permits(self):
        lock = name()
        with self.locks.semaphore(lock, 3, take=2):
            self.assertIsNone(self.other.semaphore(lock, 3, take=2).try_acquire())
            with self.other.semaphore(lock, 3):
                pass

    @unittest.skipIf(IS_QUORUM, "a quorum keeps no memos")
    def test_a_job_runs_once_per_interval(self):
        job, ran = name("job"), []
        once = self.locks.once(job, interval=3600)
        with self.assertRaises(ZeroDivisionError):
            once.run(lambda lease: 1 / 0)
        outcome = once.run(lambda lease: ran.append(lease.token) or "done")
        self.assertTrue(outcome)
        self.assertEqual(outcome.value, "done")

        async def never(lease):
            ran.append(lease)

        with self.assertRaisesRegex(TypeError, "run_async"):
            self.locks.once(name("job"), interval=60).run(never)
        skipped = self.other.once(job, interval=3600).run(lambda lease: ran.append("again"))
        self.assertFalse(skipped)
        self.assertEqual(len(ran), 1)
        self.assertLess(skipped.last.ago, PATIENCE)
        self.assertEqual(self.other.once(job, interval=3600).last().by, skipped.last.by)

    @unittest.skipIf(IS_QUORUM, "a quorum keeps no memos")
    def test_one_leads_and_the_others_see_it(self):
        election, others = [locks.election(name_, wait=PATIENCE) for name_ in [name("e")] for locks in (self.locks, self.other)]
        seen = others.observe()
        self.assertIsNone(next(seen))
        with election as leadership:
            leadership.proclaim("10.0.0.7:80")
            leader = eventually("it is proclaimed", lambda: (lambda l: l and l.proclaimed and l)(others.leader()))
            self.assertEqual((leader.proclaimed, leader.term), ("10.0.0.7:80", leadership.token))
            self.assertEqual(next(one for one in seen if one and one.proclaimed).owner, leadership.owner)
        self.assertIsNone(next(one for one in seen if one is None))

    @unittest.skipIf(IS_SESSION, "a lease ends with its session")
    def test_a_lease_is_left_and_continued(self):
        lock = name()
        lease = self.locks.mutex(lock).acquire()
        token, owner = lease.token, lease.detach()
        self.assertEqual((owner, lease.is_held), (lease.owner, False))
        self.assertRaises(tenure.Lost, lambda: lease.token)
        self.assertIsNone(self.other.mutex(lock).try_acquire())
        with self.other.mutex(lock).attach(owner) as again:
            self.assertEqual(again.token, token)
        with self.assertRaises(tenure.NotHeld):
            self.other.mutex(lock).attach(owner)

    @unittest.skipIf(IS_SESSION, "a lease ends with its session")
    def test_a_lock_stays_taken_after_work_that_was_cut_off(self):
        lock = name()
        with self.locks.mutex(lock, linger=60):
            pass
        with self.assertRaises(ZeroDivisionError):
            with self.other.mutex(lock, wait=PATIENCE, linger=60):
                1 / 0
        self.assertIsNone(self.locks.mutex(lock).try_acquire())
        self.locks.force_release(lock)

    def test_a_lease_that_ends_as_it_begins_is_waited_for_no_more(self):
        began = time.monotonic()
        with self.assertRaises(tenure.Lost):
            self.locks.mutex(name(), max_hold=0).acquire(wait=0)
        self.assertLess(time.monotonic() - began, PATIENCE)

    @unittest.skipIf(IS_QUORUM or IS_ORDERED, "no classes there")
    def test_a_higher_class_enters_first(self):
        lock, order = name(), []
        with self.locks.mutex(lock):

            def wait(priority):
                with self.locks.mutex(lock, priority=priority):
                    order.append(priority)

            threads = []
            for number, priority in enumerate(["low", "high"]):
                threads.append(threading.Thread(target=wait, args=[priority]))
                threads[-1].start()
                eventually("it waits", lambda: len(self.other.inspect(lock).queue) > number)
        for thread in threads:
            thread.join(PATIENCE)
        self.assertEqual(order, ["high", "low"])

    @unittest.skipIf(IS_QUORUM or IS_MEMORY, "no such ownership there")
    def test_a_transaction_gets_what_it_relies_on(self):
        with self.locks.mutex(name()) as lease:
            if IS_FILE:
                self.assertRaises(tenure.StoreError, lease.ownership)
                return
            ownership = lease.ownership()
            self.assertTrue(ownership.statement or ownership.key)
            self.assertNotIn(lease.owner, repr(ownership))


if __name__ == "__main__":
    unittest.main()
