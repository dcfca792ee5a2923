// Contends with redlock or redis-semaphore: LIBRARY PORT NAME MS PAUSE COUNTER. See clients.rs.

const { once } = require("node:events");
const { setTimeout: sleep } = require("node:timers/promises");
const { Redis } = require("ioredis");

const [library, port, name, ms, pause, counter] = process.argv.slice(2);
const [client, referee] = [0, 1].map(() => new Redis({ host: "127.0.0.1", port: Number(port) }));

// Each makes one attempt: what releases the lock, or undefined. A release throws if it was not its own any more.
const libraries = {
  redlock() {
    const { default: Redlock, ExecutionError } = require("redlock");
    const redlock = new Redlock([client], { retryCount: 0 });
    redlock.on("error", () => {});
    return async () => {
      try {
        const lock = await redlock.acquire([name], 30000);
        return () => lock.release();
      } catch (error) {
        if (error instanceof ExecutionError) return undefined;
        throw error;
      }
    };
  },
  "redis-semaphore"() {
    const { Mutex } = require("redis-semaphore");
    return async () => {
      const mutex = new Mutex(client, name, { lockTimeout: 30000, acquireAttemptsLimit: 1, retryInterval: 0, refreshInterval: 0 });
      return (await mutex.tryAcquire()) ? () => mutex.release() : undefined;
    };
  },
};

async function main() {
  const acquire = libraries[library]();
  await referee.ping();
  console.log("ready");
  await once(process.stdin, "data");
  let entries = 0;
  let violations = 0;
  const end = performance.now() + Number(ms);
  while (performance.now() < end) {
    const release = await acquire();
    if (!release) {
      await sleep(2);
      continue;
    }
    violations += (await referee.incr(counter)) !== 1;
    await sleep(1 + Math.random() * 4);
    violations += (await referee.decr(counter)) !== 0;
    await release();
    entries += 1;
    if (pause !== "0") await sleep(Number(pause));
  }
  console.log(`${entries} ${violations}`);
  process.exit();
}

main();
