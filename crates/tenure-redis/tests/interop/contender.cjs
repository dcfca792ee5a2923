// A process that locks with redlock, as the tests tell it line by line on its standard input: see contender.py.

const { createInterface } = require("node:readline");
const { setTimeout: sleep } = require("node:timers/promises");
const { Redis } = require("ioredis");
const { default: Redlock, ExecutionError } = require("redlock");

const server = { host: "127.0.0.1", port: Number(process.argv[2]) };
const client = new Redis(server);
const redlock = new Redlock([client], { retryCount: 0 });
// Every vote against us comes here as well as to the caller.
redlock.on("error", () => {});
let held;

const between = (least, most) => least + Math.random() * (most - least);

// What the library answers, or undefined if the lock is not its own.
async function unless(promise) {
  try {
    return await promise;
  } catch (error) {
    if (error instanceof ExecutionError) return undefined;
    throw error;
  }
}

async function lock(name, ms) {
  const attempt = await unless(redlock.acquire([name], Number(ms)));
  held = attempt ?? held;
  return attempt ? "held" : "busy";
}

async function extend(ms) {
  const extended = await unless(held.extend(Number(ms)));
  held = extended ?? held;
  return extended ? "done" : "gone";
}

async function unlock() {
  return (await unless(held.release())) ? "done" : "gone";
}

async function contend(name, ms, counter, pause) {
  const referee = new Redis(server);
  let entries = 0;
  let violations = 0;
  const end = performance.now() + Number(ms);
  while (performance.now() < end) {
    const turn = await unless(redlock.acquire([name], 30000));
    if (!turn) {
      await sleep(2);
      continue;
    }
    violations += (await referee.incr(counter)) !== 1;
    await sleep(between(1, 5));
    violations += (await referee.decr(counter)) !== 0;
    // Throws if it was not ours any more.
    await turn.release();
    entries += 1;
    if (pause !== "0") await sleep(Number(pause));
  }
  await referee.quit();
  return `${entries} ${violations}`;
}

const verbs = { lock, extend, unlock, contend };

async function main() {
  await client.ping();
  console.log("ready");
  for await (const line of createInterface({ input: process.stdin })) {
    const [verb, ...rest] = line.trim().split(/\s+/);
    console.log(await verbs[verb](...rest));
  }
  client.disconnect();
}

main();
