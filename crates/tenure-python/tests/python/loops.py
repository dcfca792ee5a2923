"""What every store promises, from tasks of an event loop."""

import asyncio
import gc
import os
import random
import sys
import threading
import time
import tracemalloc
import unittest

import tenure
from support import IS_MEMORY, IS_QUORUM, IS_SESSION, PATIENCE, SLOWNESS, eventually_async, name
import support


class Loops(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.locks = tenure.connect(support.URL)
        self.other = self.locks if IS_MEMORY else tenure.connect(support.URL)

    async def test_a_block_holds_the_lock_and_releases_it(self):
        lock = self.locks.mutex(name())
        async with lock as lease:
            self.assertTrue(lease.is_held)
            view = await self.locks.inspect_async(lease.name)
            self.assertEqual([holder.owner for holder in view.holders], [lease.owner])
            first = lease.token
        self.assertFalse(lease.is_held)
        async with lock as lease:
            self.assertGreater(lease.token, first, "L2")
        self.assertIsNotNone(held := await self.other.mutex(lease.name).try_acquire_async())
        self.assertIsNone(await self.locks.mutex(lease.name).try_acquire_async())
        await held.release_async()

    async def test_tasks_of_one_loop_exclude_each_other(self):
        lock, inside, overlaps, tokens = self.locks.mutex(name()), [], [], []

        async def work():
            for _ in range(4):
                async with lock as lease:
                    overlaps.extend(inside)
                    inside.append(lease)
                    tokens.append(lease.token)
                    await asyncio.sleep(0.002)
                    inside.pop()

        await asyncio.gather(*(work() for _ in range(10)))
        self.assertEqual((overlaps, len(tokens)), ([], 40))
        self.assertEqual(tokens, sorted(set(tokens)), "L2")

    async def test_a_busy_lock_names_its_holder(self):
        async with self.locks.mutex(name()) as lease:
            with self.assertRaises(tenure.Busy) as busy:
                await self.other.mutex(lease.name).acquire_async(wait=0.2)
        self.assertEqual(busy.exception.holder.owner, lease.owner)

    async def test_a_blocking_call_is_refused_in_a_loop(self):
        lock = self.locks.mutex(name())
        with self.assertRaisesRegex(RuntimeError, "acquire_async"):
            lock.acquire()
        with self.assertRaisesRegex(RuntimeError, "async with"):
            with lock:
                pass
        for look in [
            lambda: self.locks.inspect(name()),
            lambda: self.locks.list("none"),
            lambda: self.locks.force_release(name()),
            lambda: next(self.locks.watch(name())),
            lambda: self.locks.election(name()).leader(),
        ]:
            with self.assertRaisesRegex(RuntimeError, "async"):
                look()
        await asyncio.get_running_loop().run_in_executor(None, lambda: lock.acquire().release())

    async def test_a_loss_cancels_the_block_and_is_raised(self):
        lock, reached = name(), []
        with self.assertRaises(tenure.Lost) as lost:
            async with self.locks.mutex(lock, ttl=2 * SLOWNESS):
                await self.other.force_release_async(lock)
                await asyncio.sleep(PATIENCE)
                reached.append("the end")
        self.assertEqual((reached, lost.exception.cause), ([], "taken"))
        await asyncio.sleep(0)
        if sys.version_info >= (3, 11):
            self.assertEqual(asyncio.current_task().cancelling(), 0)

    async def test_a_loss_that_the_block_does_not_await_is_raised_at_its_end(self):
        lock = name()
        with self.assertRaises(tenure.Lost):
            async with self.locks.mutex(lock, ttl=2 * SLOWNESS) as lease:
                await self.other.force_release_async(lock)
                # Without an await between: the cancel is still to come when the block ends.
                while lease.is_held:
                    time.sleep(0.01)
        await asyncio.sleep(0)

    async def test_the_exception_of_a_block_is_not_replaced_by_a_loss(self):
        lock = name()
        with self.assertRaises(ZeroDivisionError):
            async with self.locks.mutex(lock, ttl=2 * SLOWNESS):
                try:
                    await self.other.force_release_async(lock)
                    await asyncio.sleep(PATIENCE)
                except asyncio.CancelledError:
                    1 / 0
        await asyncio.sleep(0)

    @unittest.skipIf(IS_SESSION, "a lease ends with its session")
    async def test_a_grant_that_nobody_received_does_not_linger(self):
        lock = name()
        async with self.locks.mutex(lock):
            task = asyncio.create_task(self.other.mutex(lock, linger=60).acquire_async())
            await asyncio.sleep(0.05)
        # Its grant may be on its way.
        await asyncio.sleep(0.001)
        task.cancel()
        try:
            await (await task).release_async()
        except asyncio.CancelledError:
            pass
        async with self.locks.mutex(lock, wait=PATIENCE):
            pass

    async def test_blocks_of_tasks_and_generators_release_what_they_entered(self):
        pool = self.locks.any([name("gpu"), name("gpu")])

        async def generator():
            async with pool as lease:
                yield lease

        one, two = generator(), generator()
        first, second = await one.__anext__(), await two.__anext__()
        await asyncio.create_task(one.aclose())
        self.assertEqual((first.is_held, second.is_held), (False, True))
        await two.aclose()
        self.assertFalse(second.is_held)

    async def test_a_cancelled_look_at_a_watch_misses_no_change(self):
        lock = name()
        watch, views = self.other.watch(lock), []
        self.assertEqual((await watch.__anext__()).holders, [])
        for _ in range(20):
            async with self.locks.mutex(lock):
                pass
            try:
                views.append(await asyncio.wait_for(watch.__anext__(), 0.0005))
            except asyncio.TimeoutError:
                pass
        async with self.locks.mutex(lock) as lease:
            while not (views and views[-1].holders and views[-1].holders[0].owner == lease.owner):
                views.append(await asyncio.wait_for(watch.__anext__(), PATIENCE))

    @unittest.skipIf(sys.version_info < (3, 11), "before 3.11 the two cannot be told apart")
    async def test_a_caller_that_cancels_at_the_moment_of_a_loss_is_heard(self):
        lock = name()
        breaking = threading.Thread(target=self.other.force_release, args=[lock])

        async def work():
            async with self.locks.mutex(lock, ttl=2 * SLOWNESS) as lease:
                breaking.start()
                while lease.is_held:
                    time.sleep(0.01)
                # The loss is known, and its cancel is on its way; the caller's comes at the same time.
                task.cancel()
                await asyncio.sleep(PATIENCE)

        task = asyncio.create_task(work())
        with self.assertRaises(asyncio.CancelledError):
            await task
        breaking.join()

    async def test_a_cancelled_wait_leaves_nothing(self):
        lock = name()
        async with self.locks.mutex(lock):
            task = asyncio.create_task(self.locks.mutex(lock).acquire_async())
            if not IS_QUORUM:
                await eventually_async("it waits", lambda: self.queue(lock))
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            if not IS_QUORUM:
                await eventually_async("its place goes", lambda: self.no_queue(lock))
        async with self.other.mutex(lock, wait=PATIENCE):
            pass

    async def queue(self, lock):
        return (await self.other.inspect_async(lock)).queue

    async def no_queue(self, lock):
        return not (await self.other.inspect_async(lock)).queue

    async def test_a_timeout_of_asyncio_ends_a_wait(self):
        lock = name()
        async with self.locks.mutex(lock):
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(self.other.mutex(lock).acquire_async(), 0.2)
        async with self.other.mutex(lock, wait=PATIENCE):
            pass

    async def test_cancels_at_any_await_leave_nothing(self):
        """Many tasks on one lock, cancelled at random moments."""
        lock, overlaps, inside = self.locks.mutex(name("storm")), [], []
        chance = random.Random(7)

        async def work():
            async with lock as lease:
                overlaps.extend(inside)
                inside.append(lease)
                try:
                    await asyncio.sleep(chance.random() * 0.003)
                finally:
                    inside.remove(lease)
            return 1

        async def tries():
            task = asyncio.create_task(work())
            await asyncio.sleep(chance.random() * 0.02)
            task.cancel()
            return (await asyncio.gather(task, return_exceptions=True))[0]

        done = 0
        for _ in range(6):
            for outcome in await asyncio.gather(*(tries() for _ in range(25))):
                self.assertTrue(outcome == 1 or isinstance(outcome, asyncio.CancelledError), outcome)
                done += outcome == 1
        self.assertEqual(overlaps, [])
        held = await lock.acquire_async(wait=PATIENCE)
        view = await eventually_async("no place is left", lambda: self.alone(held.name))
        self.assertEqual([holder.owner for holder in view.holders], [held.owner])
        await held.release_async()

    async def alone(self, lock):
        view = await self.other.inspect_async(lock)
        return view if not view.queue else None

    @unittest.skipIf(IS_QUORUM, "a quorum keeps no memos")
    async def test_a_job_runs_once_and_one_leads(self):
        once = self.locks.once(name("job"), interval=3600)

        async def work(lease):
            await asyncio.sleep(0)
            return lease.token

        self.assertTrue(await once.run_async(work))
        self.assertFalse(await once.run_async(work))
        election = self.locks.election(name("e"), wait=PATIENCE)
        async with election as leadership:
            await leadership.proclaim_async("here")
            leader = await eventually_async("it is proclaimed", election.leader_async)
            self.assertEqual(leader.owner, leadership.owner)

    async def test_a_watch_shows_changes(self):
        lock = name()
        watch = self.other.watch(lock)
        async for view in watch:
            self.assertEqual(view.holders, [])
            break
        async with self.locks.mutex(lock) as lease:
            async for view in watch:
                if view.holders:
                    self.assertEqual(view.holders[0].owner, lease.owner)
                    break

    async def test_cycles_leave_no_memory_and_no_descriptor(self):
        lock = self.locks.mutex(name())

        async def cycles(count):
            for _ in range(count):
                async with lock:
                    pass

        await cycles(50)
        before = len(os.listdir("/proc/self/fd"))
        gc.collect()
        tracemalloc.start()
        await cycles(50)
        gc.collect()
        first = tracemalloc.get_traced_memory()[0]
        await cycles(200)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - first
        tracemalloc.stop()
        self.assertLess(grown, 20_000, "bytes")
        # The library opens some of its own at times; one for each cycle would be hundreds.
        self.assertLess(len(os.listdir("/proc/self/fd")), before + 20)


class ManyLoops(unittest.TestCase):
    def test_a_loop_that_is_closed_among_its_tasks_leaves_no_lock(self):
        locks, lock = tenure.connect(support.URL), name()
        loop = asyncio.new_event_loop()

        async def hold():
            async with locks.mutex(lock):
                await asyncio.sleep(1000)

        async def begin():
            asyncio.get_running_loop().create_task(hold())
            while not (await locks.inspect_async(lock)).holders:
                await asyncio.sleep(0.01)

        loop.set_exception_handler(lambda *_: None)
        loop.run_until_complete(begin())
        loop.close()
        del loop
        gc.collect()
        with locks.mutex(lock, wait=PATIENCE):
            pass

    def test_one_store_serves_one_loop_after_another_and_several_at_the_same_time(self):
        locks = tenure.connect(support.URL)

        async def cycle():
            async with locks.mutex(name()) as lease:
                return lease.token

        for _ in range(5):
            self.assertTrue(asyncio.run(cycle()))
        tokens = []
        threads = [threading.Thread(target=lambda: tokens.append(asyncio.run(cycle()))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        self.assertEqual(len(tokens), 4)
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            asyncio.run(cycle())
        gc.collect()
        # Each loop had two; the library opens some of its own at times.
        self.assertLess(len(os.listdir("/proc/self/fd")), before + 20, "what the loops had is closed")


if __name__ == "__main__":
    unittest.main()
