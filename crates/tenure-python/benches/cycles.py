"""Cycles of acquire and release a second on one Redis, beside the libraries that Python programs use, in turn.

REDIS_PORT=6379 python cycles.py [SECONDS] [ROUNDS]; needs tenure, redis and python-redis-lock.
"""

import asyncio
import os
import statistics
import sys
import threading
import time

import redis
import redis.asyncio
import redis_lock
import tenure

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
PORT = int(os.environ["REDIS_PORT"])
URL = f"redis://127.0.0.1:{PORT}/?guard=off"


def threads(count, cycle):
    """All threads together, each on a lock of its own."""
    done, until = [0] * count, time.perf_counter() + SECONDS

    def work(number):
        while time.perf_counter() < until:
            cycle(number)
            done[number] += 1

    began = time.perf_counter()
    workers = [threading.Thread(target=work, args=[number]) for number in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(done) / (time.perf_counter() - began)


async def tasks(count, cycle):
    done, until = 0, time.perf_counter() + SECONDS

    async def work(number):
        nonlocal done
        while time.perf_counter() < until:
            await cycle(number)
            done += 1

    began = time.perf_counter()
    await asyncio.gather(*(work(number) for number in range(count)))
    return done / (time.perf_counter() - began)


def tenure_threads(count):
    locks = tenure.connect(URL)
    mine = [locks.mutex(f"t{number}") for number in range(count)]

    def cycle(number):
        with mine[number]:
            pass

    return threads(count, cycle)


def redis_py_threads(count):
    client = redis.Redis(port=PORT)

    def cycle(number):
        with client.lock(f"r{number}", timeout=10):
            pass

    return threads(count, cycle)


def python_redis_lock_threads(count):
    client = redis.Redis(port=PORT)

    def cycle(number):
        with redis_lock.Lock(client, f"p{number}", expire=10):
            pass

    return threads(count, cycle)


def tenure_tasks(count):
    async def run():
        locks = tenure.connect(URL)
        mine = [locks.mutex(f"at{number}") for number in range(count)]

        async def cycle(number):
            async with mine[number]:
                pass

        return await tasks(count, cycle)

    return asyncio.run(run())


def redis_py_tasks(count):
    async def run():
        async with redis.asyncio.Redis(port=PORT) as client:

            async def cycle(number):
                async with client.lock(f"ar{number}", timeout=10):
                    pass

            return await tasks(count, cycle)

    return asyncio.run(run())


ROWS = [
    ("threads", [("tenure", tenure_threads), ("redis-py", redis_py_threads), ("python-redis-lock", python_redis_lock_threads)]),
    ("asyncio", [("tenure", tenure_tasks), ("redis-py", redis_py_tasks)]),
]

for kind, libraries in ROWS:
    for count in (1, 64):
        rates = {name: [] for name, _ in libraries}
        for _ in range(ROUNDS):
            for name, run in libraries:
                rates[name].append(run(count))
        ours = statistics.median(rates["tenure"])
        for name, all_rates in rates.items():
            rate = statistics.median(all_rates)
            print(f"{kind:8} {count:3}  {name:18} {rate:8.0f}/s  {ours / rate:5.2f}", flush=True)
