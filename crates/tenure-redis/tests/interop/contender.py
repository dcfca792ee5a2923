"""A process that locks with redis-py, as the tests tell it line by line on its standard input.

lock NAME MS      one attempt, for so many milliseconds, 0 for ever: `held` or `busy`
extend MS         the lock that it holds lasts so long from now on: `done` or `gone`
unlock            gives it back: `done`, or `gone` if it was not its own any more
contend NAME MS COUNTER PAUSE
                  takes turns with others for so long, and comes back after so many ms: `ENTRIES VIOLATIONS`, see the referee in contention.rs
"""

import random
import sys
import time

import redis
from redis.exceptions import LockNotOwnedError

PORT = int(sys.argv[1])
client = redis.Redis(host="127.0.0.1", port=PORT)
held = None


def between(least, most):
    return random.uniform(least, most) / 1000


def lock(name, ms):
    global held
    attempt = client.lock(name, timeout=int(ms) / 1000 or None, blocking=False)
    if not attempt.acquire():
        return "busy"
    held = attempt
    return "held"


def owned(act):
    try:
        act()
    except LockNotOwnedError:
        return "gone"
    return "done"


def contend(name, ms, counter, pause):
    referee = redis.Redis(host="127.0.0.1", port=PORT)
    turn = client.lock(name, timeout=30, sleep=0.002, blocking_timeout=0.1)
    entries = violations = 0
    end = time.monotonic() + int(ms) / 1000
    while time.monotonic() < end:
        if not turn.acquire():
            continue
        violations += referee.incr(counter) != 1
        time.sleep(between(1, 5))
        violations += referee.decr(counter) != 0
        # Raises if it was not ours any more.
        turn.release()
        entries += 1
        time.sleep(int(pause) / 1000)
    return f"{entries} {violations}"


VERBS = {
    "lock": lock,
    "extend": lambda ms: owned(lambda: held.extend(int(ms) / 1000, replace_ttl=True)),
    "unlock": lambda: owned(held.release),
    "contend": contend,
}

client.ping()
print("ready", flush=True)
for line in sys.stdin:
    verb, *arguments = line.split()
    print(VERBS[verb](*arguments), flush=True)
