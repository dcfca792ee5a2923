"""Processes that stop, fork, end and hold the interpreter's lock."""

import os
import signal
import subprocess
import threading
import time
import unittest

import tenure
from support import PATIENCE, SLOWNESS, URL, Case, ended, eventually, name, python

#: How many stops a test makes: `TENURE_TEST_STOPS=1000` for the whole proof.
STOPS = int(os.environ.get("TENURE_TEST_STOPS", "8"))

#: Checks its lease in a loop, and writes what it saw: from, to, what.
CHECKER = """
import sys, time, tenure
lock = tenure.connect().mutex(sys.argv[1], ttl=float(sys.argv[2]))
now = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
def say(began, what):
    print(began, what, flush=True)
while True:
    began = now()
    try:
        with lock as lease:
            token = lease.token
            say(began, f"entered {token}")
            while True:
                began = now()
                lease.check()
                token = lease.token
                say(began, f"held {token}")
                time.sleep(0.003)
    except tenure.Lost as lost:
        say(began, f"lost {lost.token}")
"""


class Stops(Case):
    def test_nothing_says_held_after_a_stop_longer_than_the_ttl(self):
        """L1, L4: what says *held* began before the store may have granted another."""
        lock, ttl = name(), 0.6 * SLOWNESS
        # Its warnings would fill a pipe.
        process = python(CHECKER, lock, str(ttl), stderr=subprocess.DEVNULL)
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(line.split() for line in process.stdout))
        reader.start()
        try:
            for _ in range(STOPS):
                seen = len(lines)
                eventually("it holds", lambda: any(line[1] == "held" for line in lines[seen:]))
                process.send_signal(signal.SIGSTOP)
                with self.locks.mutex(lock, wait=PATIENCE) as lease:
                    granted = time.clock_gettime(time.CLOCK_BOOTTIME)
                    after = len(lines)
                    process.send_signal(signal.SIGCONT)
                    # It must learn of the loss while another one holds; where the machine stalled, it had lost it before the stop.
                    eventually("it is lost", lambda: any(line[1] == "lost" for line in lines[seen:]))
                    false = [line for line in lines[after:] if line[1] == "held" and float(line[0]) > granted]
                    self.assertEqual(false, [])
                    self.assertTrue(lease.is_held)
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()
            reader.join()
            process.stdout.close()
            process.wait()

    def test_a_program_that_keeps_the_interpreter_keeps_its_lease(self):
        """The renewals need no lock of the interpreter."""
        lock, ttl = name(), 1.0 * SLOWNESS
        code = """
import ctypes, sys, time, tenure
with tenure.connect().mutex(sys.argv[1], ttl=float(sys.argv[2])) as lease:
    print("in", flush=True)
    # Of a library that is called with the lock of the interpreter.
    ctypes.PyDLL(None).usleep(int(float(sys.argv[2]) * 5e6))
    lease.check()
    print("held", flush=True)
"""
        process = python(code, lock, str(ttl))
        self.assertEqual(process.stdout.readline().strip(), "in")
        while process.poll() is None:
            lease = self.locks.mutex(lock).try_acquire()
            if lease is not None:
                break
            time.sleep(0.02)
        self.assertEqual(ended(process), (0, "held\n", ""))
        if lease is not None:
            lease.release()

    def test_ctrl_c_ends_a_wait(self):
        lock = name()
        with self.locks.mutex(lock):
            process = python("import sys, tenure; tenure.connect().mutex(sys.argv[1]).acquire()", lock)
            eventually("it waits", lambda: self.locks.inspect(lock).queue)
            process.send_signal(signal.SIGINT)
            code, _, err = ended(process)
            self.assertEqual(code, -signal.SIGINT)
            self.assertIn("KeyboardInterrupt", err)
            eventually("its place goes", lambda: not self.locks.inspect(lock).queue)

    def test_an_interpreter_that_ends_releases_what_it_holds(self):
        lock = name()
        for code in [
            "lease = tenure.connect().mutex(sys.argv[1], ttl=60).acquire()",
            "tenure.connect().mutex(sys.argv[1], ttl=60).acquire(); sys.exit(0)",
            "lease = tenure.connect().mutex(sys.argv[1], ttl=60).acquire(); lease.on_lost(print)",
            "(lambda: tenure.connect().mutex(sys.argv[1], ttl=60).acquire())()",
            "def main():\n  for lock in [tenure.connect().mutex(sys.argv[1], ttl=60)]:\n    lease = lock.acquire()\nmain()",
        ]:
            self.assertEqual(ended(python("import sys, tenure\n" + code, lock)), (0, "", ""))
            with self.locks.mutex(lock, wait=10 * SLOWNESS):
                pass

    def test_a_handler_of_the_end_may_join_a_thread_that_locks(self):
        code = """
import atexit, sys, threading
stop = threading.Event()
def work():
    while not stop.is_set():
        with lock:
            pass
thread = threading.Thread(target=work, daemon=True)
# Called after the handler of the module, because it is registered before.
atexit.register(lambda: (stop.set(), thread.join()))
import tenure
lock = tenure.connect().mutex(sys.argv[1])
thread.start()
"""
        self.assertEqual(ended(python(code, name())), (0, "", ""))

    def test_a_thread_that_still_works_keeps_its_lease_at_the_end(self):
        lock = name()
        code = """
import sys, threading, time, tenure
lock = tenure.connect().mutex(sys.argv[1], ttl=5)
entered = threading.Event()
def work():
    with lock:
        entered.set()
        time.sleep(100)
threading.Thread(target=work, daemon=True).start()
entered.wait()
# Others wait for a lock, and for a loss, as the interpreter ends.
threading.Thread(target=lock.acquire, daemon=True).start()
threading.Thread(target=lambda: lock.acquire().wait_lost(), daemon=True).start()
time.sleep(0.2)
"""
        code, out, err = ended(python(code, lock))
        self.assertEqual((code, out, err), (0, "", ""))
        self.assertIsNone(self.locks.mutex(lock).try_acquire(), "it ends with its ttl")


class Forks(Case):
    def in_child(self, work):
        """Runs it in a forked child, and returns what it wrote."""
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(reads)
                with os.fdopen(writes, "w") as out:
                    try:
                        out.write(str(work()))
                    except BaseException as error:
                        out.write(repr(error))
                code = 0
            finally:
                os._exit(code)
        os.close(writes)
        watchdog = threading.Timer(PATIENCE, os.kill, [child, signal.SIGKILL])
        watchdog.start()
        with os.fdopen(reads) as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        watchdog.cancel()
        self.assertEqual(status, 0, f"the child hung or crashed after {said!r}")
        return said

    def test_a_handle_of_the_parent_raises_and_a_new_one_works(self):
        lock = name()
        old = self.locks.mutex(lock)
        lease = old.acquire()
        uses = [
            lambda: lease.check(),
            lambda: lease.token,
            lambda: lease.release(),
            lambda: lease.wait_lost(),
            lambda: old.acquire(),
            lambda: old.try_acquire(),
            lambda: self.locks.inspect(lock),
            lambda: self.locks.mutex(lock),
        ]

        def forked():
            said = []
            for use in uses:
                try:
                    said.append(use())
                except tenure.Forked:
                    said.append("forked")
            busy = tenure.connect(URL).mutex(lock).try_acquire()
            with tenure.connect(URL).mutex(lock + "too") as mine:
                return said, busy, mine.is_held

        self.assertEqual(self.in_child(forked), str((["forked"] * len(uses), None, True)))
        self.assertTrue(lease.is_held, "the parent has it still")
        lease.check()
        lease.release()

    def test_a_block_of_the_parent_does_not_release_in_the_child(self):
        lock = name()
        with self.locks.mutex(lock) as lease:

            def forked():
                try:
                    with lease:
                        return "held"
                except tenure.Forked:
                    return "forked"

            self.assertEqual(self.in_child(forked), "forked")
            time.sleep(0.1)
            lease.check()
            self.assertEqual([h.owner for h in self.locks.inspect(lock).holders], [lease.owner])

    def test_an_exception_of_a_child_passes_on(self):
        # Python warns of each fork of a process with threads, from 3.12 on.
        code = """
import os, sys, warnings, tenure
warnings.simplefilter("ignore", DeprecationWarning)
with tenure.connect().mutex(sys.argv[1]) as lease:
    child = os.fork()
    if child == 0:
        repr(lease)
        sys.exit(7)
    _, status = os.waitpid(child, 0)
    lease.check()
    print(os.WEXITSTATUS(status))
"""
        self.assertEqual(ended(python(code, name())), (0, "7\n", ""))

    def test_children_that_are_forked_among_threads_do_not_hang(self):
        stop = threading.Event()
        lock = self.locks.mutex(name())

        def cycle():
            while not stop.is_set():
                with lock:
                    pass

        threads = [threading.Thread(target=cycle) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(20):

                def forked():
                    with tenure.connect(URL).mutex(name("child")) as lease:
                        return lease.is_held

                self.assertEqual(self.in_child(forked), "True", number)
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def test_a_pool_of_forked_workers_works(self):
        """As Celery and gunicorn start theirs."""
        code = """
import multiprocessing, os, sys, tenure
from tenure import connect
parent = connect()
with parent.mutex(sys.argv[1] + "parent"):
    pass
def work(number):
    with connect().mutex(sys.argv[1], wait=60) as lease:
        return lease.token
if __name__ == "__main__":
    for method in ["fork", "spawn"][:int(sys.argv[2])]:
        with multiprocessing.get_context(method).Pool(3) as pool:
            tokens = pool.map(work, range(9))
        assert len(set(tokens)) == 9, tokens
    print("done")
"""
        self.assertEqual(ended(python(code, name(), "1")), (0, "done\n", ""))


if __name__ == "__main__":
    unittest.main()
