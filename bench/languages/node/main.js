// Runs the lock client of Node for `python -m bench --languages`. ../README.md describes the command line.
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";

import { Redis } from "ioredis";
import Redlock from "redlock";

const TTL_MS = 10_000;

let runs = 0;

function fail(reason) {
  process.stderr.write(`${reason}\n`);
  process.exit(1);
}

// Acquire and release the lock of one name. Both calls reject if there is no quorum.
async function cycle(redlock, name) {
  const lock = await redlock.acquire([name], TTL_MS);
  await lock.release();
}

// An order is "MODE AMOUNT [CALLERS]"; the amount is cycles as "2000", or seconds as "0.5s".
function parse(line) {
  const [, mode, amount, seconds, callers = "1"] = /^(cycle|tasks) ([\d.]+)(s?)(?: (\d+))?$/.exec(line.trim()) ?? [];
  if (!mode) {
    fail(`expected cycle or tasks, an amount, and the callers; got ${line}`);
  }
  return { mode, callers: +callers, seconds: seconds ? +amount : 0, cycles: seconds ? 0 : +amount };
}

// Run one caller to the end of the order, with a new name for each cycle, and return the microseconds of each cycle.
async function call(redlock, order, prefix, begin) {
  const times = [];
  const most = order.cycles ? Math.max(1, Math.floor(order.cycles / order.callers)) : Infinity;
  const end = order.cycles ? Infinity : begin + order.seconds * 1000;
  for (let before = begin; before < end && times.length < most; ) {
    await cycle(redlock, `${prefix}${times.length}`);
    const after = performance.now();
    times.push((after - before) * 1000);
    before = after;
  }
  return times;
}

async function run(redlock, order) {
  runs += 1;
  const cpu = process.cpuUsage();
  const begin = performance.now();
  const callers = Array.from({ length: order.callers }, (_, i) =>
    call(redlock, order, `bench:${process.pid}:${runs}:${i}:`, begin),
  );
  const times = Float64Array.from((await Promise.all(callers)).flat()).sort();
  const seconds = (performance.now() - begin) / 1000;
  const { user, system } = process.cpuUsage(cpu);
  return {
    mode: order.mode,
    width: order.callers,
    cycles: times.length,
    seconds,
    p50_us: times[Math.floor(times.length / 2)],
    p99_us: times[Math.floor((times.length * 99) / 100)],
    cycles_per_s: times.length / seconds,
    cpu_s: (user + system) / 1e6,
    failed: 0,
  };
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    callers: { type: "string", default: "1" },
    seconds: { type: "string", default: "2" },
    pipelining: { type: "boolean", default: false },
    stdin: { type: "boolean", default: false },
  },
});
if (!positionals.length) {
  fail("usage: main.js [--callers 1] [--seconds 2] [--pipelining] [--stdin] MASTER...");
}
const masters = positionals.map((master) => {
  const client = new Redis(master.includes("://") ? master : `redis://${master}`, {
    enableAutoPipelining: values.pipelining,
  });
  client.on("error", fail);
  return client;
});
// One attempt: a cycle that must wait for a retry ends the program.
const redlock = new Redlock(masters, { retryCount: 0 });
if (values.stdin) {
  for await (const line of createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(await run(redlock, parse(line))));
  }
} else {
  console.log(JSON.stringify(await run(redlock, parse(`tasks ${values.seconds}s ${values.callers}`))));
}
await redlock.quit();
