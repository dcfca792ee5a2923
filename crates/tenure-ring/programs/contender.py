"""Contends with redis-py or python-redis-lock: LIBRARY PORT NAME MS PAUSE COUNTER. See clients.rs."""

import logging
import random
import sys
import time

import redis

library, port, name, ms, pause, counter = sys.argv[1:]
client, referee = (redis.Redis(host="127.0.0.1", port=int(port)) for _ in range(2))

# It logs each attempt in vain.
logging.getLogger("redis_lock").setLevel(logging.ERROR)


def redis_py():
    lock = client.lock(name, timeout=30, blocking=False)
    return lock if lock.acquire() else None


def python_redis_lock():
    import redis_lock

    lock = redis_lock.Lock(client, name, expire=30)
    return lock if lock.acquire(blocking=False) else None


acquire = {"redis-py": redis_py, "python-redis-lock": python_redis_lock}[library]
referee.ping()
print("ready", flush=True)
sys.stdin.readline()
entries = violations = 0
end = time.monotonic() + int(ms) / 1000
while time.monotonic() < end:
    turn = acquire()
    if turn is None:
        time.sleep(0.002)
        continue
    violations += referee.incr(counter) != 1
    time.sleep(random.uniform(0.001, 0.005))
    violations += referee.decr(counter) != 0
    # Raises if it was not ours any more.
    turn.release()
    entries += 1
    time.sleep(int(pause) / 1000)
print(entries, violations)
