"""A process that locks with kazoo, as the tests tell it line by line on its standard input.

try PATH          one attempt: `held` or `busy`
wait PATH         waits for it: `held`
unlock            gives it back: `done`
contend PATH MS REFEREE
                  takes turns with others for so long: `ENTRIES VIOLATIONS`, see the referee in contention.rs
"""

import logging
import random
import sys
import time

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

logging.disable(logging.CRITICAL)
HOSTS = sys.argv[1]
client = KazooClient(hosts=HOSTS, timeout=10)
client.start(timeout=30)
held = None


def between(least, most):
    return random.uniform(least, most) / 1000


def lock(path, blocking):
    global held
    attempt = client.Lock(path, "kazoo")
    if not attempt.acquire(blocking=blocking):
        return "busy"
    held = attempt
    return "held"


def unlock():
    held.release()
    return "done"


def contend(path, ms, inside):
    referee = KazooClient(hosts=HOSTS, timeout=10)
    referee.start(timeout=30)
    turn = client.Lock(path, "kazoo")
    entries = violations = 0
    end = time.monotonic() + int(ms) / 1000
    while time.monotonic() < end:
        turn.acquire()
        try:
            referee.create(inside, ephemeral=True)
        except NodeExistsError:
            violations += 1
        time.sleep(between(1, 5))
        try:
            referee.delete(inside)
        except NoNodeError:
            violations += 1
        turn.release()
        entries += 1
        time.sleep(between(0, 20))
    return f"{entries} {violations}"


VERBS = {
    "try": lambda path: lock(path, False),
    "wait": lambda path: lock(path, True),
    "unlock": unlock,
    "contend": contend,
}

print("ready", flush=True)
for line in sys.stdin:
    verb, *arguments = line.split()
    print(VERBS[verb](*arguments), flush=True)
