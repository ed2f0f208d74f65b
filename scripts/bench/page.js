// The benchmarks' part in the page. Every function returns samples in milliseconds; scripts/bench.mjs prints them.

import { createSandbox, deletePersisted } from "../../pyodide-glue/index.js";

const MB = 1_000_000;
const INDEX_URL = new URL("../../node_modules/pyodide/", import.meta.url).href;

/** Main-thread tasks over 50 ms, and the times in which Sandglass worked. @type {PerformanceEntry[]} */
let longTasks = [];
/** @type {[begin: number, end: number][]} */
let ours = [];
if (PerformanceObserver.supportedEntryTypes.includes("longtask")) {
  new PerformanceObserver((list) => longTasks.push(...list.getEntries())).observe({ type: "longtask" });
}

const RIVALS = new Set(["loadPyodide", "globalsSet", "globalsGet", "pyodide", "bareEval", "echo", "jupyterlite"]);

/** Returns true when the browser has the caches that make later visits fast. */
const isKept = async () => (await (await caches.open("sandglass-modules")).keys()).length > 0;

/** @param {() => Promise<boolean>} condition */
async function until(condition) {
  while (!(await condition())) await idle(50);
}

/** @param {number} ms */
const idle = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** @param {Awaited<ReturnType<typeof createSandbox>>} sandbox */
async function boot(sandbox) {
  await sandbox.initialize(null);
  await sandbox.execute("1+1");
  await sandbox.destroy();
}

/** A worker that answers one message at a time. */
function startRival() {
  const worker = new Worker(new URL("pyodide-worker.js", import.meta.url), { type: "module" });
  return {
    /** @param {unknown[]} message @returns {Promise<any>} */
    ask: (...message) =>
      new Promise((resolve) => {
        worker.onmessage = ({ data }) => resolve(data);
        worker.postMessage(message);
      }),
    stop: () => worker.terminate(),
  };
}

/** The rivals' starts, from nothing to the first result. @type {Record<string, () => Promise<unknown>>} */
const BOOTED = {
  loadPyodide: async () => {
    const rival = startRival();
    await rival.ask("boot", INDEX_URL);
    rival.stop();
  },
};
// Exists only after scripts/bench/jupyterlite.mjs has made it.
if (new URLSearchParams(location.search).get("rivals") === "jupyterlite") BOOTED.jupyterlite = bootJupyterLite;

/** Makes JupyterLite's kernel without its user interface, its contents and its access to PyPI. */
async function bootJupyterLite() {
  const base = new URL("/jupyterlite/", location.href).href;
  const { PyodideKernel, pipliteWheelUrl, allJSONUrl } = await import(`${base}kernel.js`);
  /** @type {string | undefined} */
  let result;
  const kernel = new PyodideKernel({
    id: crypto.randomUUID(),
    name: "python",
    location: "",
    sendMessage: (/** @type {any} */ { header, content }) => {
      if (header.msg_type === "execute_result") result = content.data["text/plain"];
    },
    pyodideUrl: `${INDEX_URL}pyodide.mjs`,
    pipliteWheelUrl: new URL(pipliteWheelUrl.default, base).href,
    pipliteUrls: [new URL(allJSONUrl.default, base).href],
    disablePyPIFallback: true,
    mountDrive: false,
    loadPyodideOptions: { lockFileURL: `${base}wheels/pyodide-lock.json`, packageBaseUrl: `${base}wheels/` },
  });
  const header = { msg_id: "1", msg_type: "execute_request", session: "", username: "", date: "", version: "5.3" };
  await kernel.handleMessage({ header, parent_header: {}, metadata: {}, channel: "shell", content: { code: "1+1" } });
  if (result !== "2") throw new Error(`JupyterLite says that 1+1 is ${result}`);
  kernel.dispose();
}

/** @param {() => Promise<unknown>} work */
async function time(work) {
  const begin = performance.now();
  await work();
  return performance.now() - begin;
}

/**
 * Times the competitors in turn, forwards and backwards, so that other load on the machine hits all of them alike.
 * @param {number} rounds
 * @param {Record<string, () => Promise<unknown>>} competitors
 * @param {number} gap  the rest in milliseconds before each, as between cells of a model that thinks; 0 for none
 * @param {boolean} twice  gives each two turns, of which the second counts: it comes `gap` after the first
 */
async function race(rounds, competitors, gap = 0, twice = false) {
  /** @type {Record<string, number[]>} */
  const samples = Object.fromEntries(Object.keys(competitors).map((name) => [name, []]));
  for (let round = 0; round < rounds; round++) {
    const order = Object.entries(competitors);
    for (const [name, work] of round % 2 ? order.reverse() : order) {
      if (twice) {
        await idle(gap);
        await work();
      }
      if (gap) await idle(gap);
      const begin = performance.now();
      samples[name]?.push(await time(work));
      if (!RIVALS.has(name)) ours.push([begin, performance.now()]);
    }
  }
  return samples;
}

const benchmarks = {
  /** Times a start from nothing to the first result, in a freshly opened page. @param {string} competitor */
  async boot(competitor) {
    const { [competitor]: work } = { sandglass: async () => boot(await createSandbox({ spares: 0 })), ...BOOTED };
    if (!work) throw new Error(`there is no ${competitor}`);
    const samples = await race(1, { [competitor]: work });
    if (competitor === "sandglass") await until(isKept);
    return samples;
  },

  /** Times the start of another sandbox in a page that has one at rest. */
  async secondSandbox(rounds = 5) {
    const first = await createSandbox();
    await first.initialize(null);
    await first.execute("1+1");
    const samples = await race(
      rounds,
      {
        sandglass: async () => boot(await createSandbox()),
        ...BOOTED,
      },
      1500, // in this time, a spare takes the place of the last one
    );
    await first.destroy();
    return samples;
  },

  /** Times a call into C that hears no interrupt, with a state of 10 MB: milliseconds after its deadline and the grace period. */
  async recovery(rounds = 7) {
    const [timeout, gracePeriod] = [100, 50];
    const sandbox = await createSandbox({ gracePeriod });
    await sandbox.initialize(null);
    await sandbox.execute(`import os\nstate = [os.urandom(1000) for _ in range(${10 * 1000})]`);
    /** @type {Record<string, number[]>} */
    const samples = { toItsResult: [], toTheNextResult: [] };
    for (let round = 0; round < rounds; round++) {
      await sandbox.checkpoint();
      await idle(1500);
      const begin = performance.now();
      const killed = await sandbox.execute("sum(range(10 ** 11))", { timeout });
      samples.toItsResult?.push(performance.now() - begin - timeout - gracePeriod);
      const next = await sandbox.execute("len(state)");
      samples.toTheNextResult?.push(performance.now() - begin - timeout - gracePeriod);
      if (killed.state.status !== "restored" || next.result !== "10000")
        throw new Error(JSON.stringify([killed, next]));
    }
    await sandbox.destroy();
    return samples;
  },

  /** Times an execution `gap` ms after a state of 50 MB began to be saved. */
  async checkpoint(gap = 100, rounds = 40) {
    /** @type {Record<string, () => Promise<unknown>>} */
    const competitors = {};
    const sandboxes = [];
    for (const checkpoints of /** @type {const} */ (["off", "auto"])) {
      const sandbox = await createSandbox({ checkpoints, spares: 0 });
      await sandbox.initialize(null);
      await sandbox.execute(`import os\nstate = [os.urandom(1000) for _ in range(${50 * 1000})]\nn = 0`);
      competitors[checkpoints] = () => sandbox.execute("n += 1");
      sandboxes.push(sandbox);
    }
    await race(5, competitors, 500);
    const samples = await race(rounds, competitors, gap, true);
    await Promise.all(sandboxes.map((sandbox) => sandbox.destroy()));
    return samples;
  },

  /**
   * Times an execution of 10 calls that take the host `ms` each, in a kept session with and without a journal.
   * @param {number} ms @param {number} [rounds]
   */
  async journal(ms, rounds = 9) {
    const code =
      "import random, time\nfor at in range(10):\n    began = time.time(), random.random()\n    ask(f'{at}' * 1000)";
    /** @type {Record<string, number[]>} */
    const samples = { withoutJournal: [], withJournal: [] };
    const ask = async () => {
      if (ms) await idle(ms);
      return "answer".repeat(500);
    };
    const sandboxes = await Promise.all(
      Object.keys(samples).map(async (name) => {
        const persist = { name, journal: name === "withJournal" };
        await deletePersisted(name);
        const sandbox = await createSandbox({ persist, hostFunctions: { ask } });
        await sandbox.initialize(null);
        await sandbox.execute(code);
        return /** @type {const} */ ([name, sandbox]);
      }),
    );
    for (let round = 0; round < rounds; round++) {
      for (const [name, sandbox] of sandboxes) {
        await idle(300);
        const begin = performance.now();
        const { error } = await sandbox.execute(code);
        if (error) throw new Error(error);
        samples[name]?.push(performance.now() - begin);
      }
    }
    for (const [name, sandbox] of sandboxes) {
      await sandbox.destroy();
      await deletePersisted(name);
    }
    return samples;
  },

  /**
   * Times sessions that the browser keeps, with 100 MB of state: an execution and the time until it is kept, and the way back to the state,
   * beside a new sandbox and the same code run again.
   */
  async kept(rounds = 5) {
    const code = `import os\nstate = [os.urandom(1000) for _ in range(${100 * 1000})]\nn = 0`;
    const options = { persist: "bench", timeout: 60_000 };
    await deletePersisted(options.persist);
    let sandbox = await createSandbox(options);
    await sandbox.initialize(null);
    await sandbox.execute(code);
    await sandbox.checkpoint();
    /** @type {Record<string, number[]>} */
    const samples = { execute: [], untilItIsKept: [], comeBack: [], anew: [] };
    const time = async (/** @type {string} */ what, /** @type {() => Promise<unknown>} */ work) => {
      const begin = performance.now();
      await work();
      samples[what]?.push(performance.now() - begin);
    };
    for (let round = 0; round < rounds; round++) {
      for (let cell = 0; cell < 8; cell++) {
        await idle(300);
        await time("execute", () => sandbox.execute("n += 1"));
        await time("untilItIsKept", () => sandbox.checkpoint());
      }
      await sandbox.destroy();
      await time("comeBack", async () => {
        sandbox = await createSandbox(options);
        const { result } = await sandbox.execute("len(state), n");
        if (result !== `(100000, ${8 * (round + 1)})`) throw new Error(String(result));
      });
      await time("anew", async () => {
        const fresh = await createSandbox({ timeout: 60_000 });
        await fresh.initialize(null);
        await fresh.execute(code);
        await fresh.destroy();
      });
    }
    await sandbox.destroy();
    await deletePersisted(options.persist);
    return samples;
  },

  /** Times round trips: an empty message, `1+1`, one host call, and the rival's `1+1`. */
  async roundTrip(rounds = 300, gap = 0) {
    const sandbox = await createSandbox({ onLLMQuery: (prompt) => prompt });
    await sandbox.initialize(null);
    const rival = startRival();
    await rival.ask("boot", INDEX_URL);
    // The cost of a host call: the difference between cells with calls and a cell without.
    const calls = gap ? 1 : 20;
    const competitors = {
      echo: () => rival.ask("echo"),
      execute: () => sandbox.execute("1+1"),
      pyodide: () => rival.ask("run", "1+1"),
      bareEval: () => rival.ask("eval", "1+1"),
      withCalls: () => sandbox.execute(`for _ in range(${calls}): llm_query("x")`),
      withoutCalls: () => sandbox.execute(`for _ in range(${calls}): str("x")`),
    };
    await race(30, competitors);
    const { withCalls, withoutCalls, ...samples } = await race(rounds, competitors, gap);
    const base = median(withoutCalls);
    await sandbox.destroy();
    rival.stop();
    return { ...samples, hostCall: withCalls.map((ms) => (ms - base) / calls) };
  },

  /** Times 50 calls at once that take the model `ms` each, and as many timers of the page's own. @param {number} ms */
  async batch(ms, rounds = 5) {
    const wait = () => new Promise((resolve) => setTimeout(resolve, ms));
    const sandbox = await createSandbox({ onLLMQuery: async (prompt) => (await (ms && wait()), prompt) });
    await sandbox.initialize(null);
    const samples = await race(rounds, {
      ideal: () => Promise.all(Array.from({ length: 50 }, wait)),
      batch: () => sandbox.execute("llm_query_batched([f'prompt {n}' for n in range(50)])"),
      ...(ms === 0 && { oneByOne: () => sandbox.execute("[llm_query(f'prompt {n}') for n in range(50)]") }),
    });
    await sandbox.destroy();
    return samples;
  },

  /** Times a context of so many megabytes on its way into Python. @param {number} megabytes */
  async initialize(megabytes, rounds = 3) {
    const context = text(megabytes * MB);
    const sandbox = await createSandbox();
    const rival = startRival();
    await rival.ask("boot", INDEX_URL);
    // The rests in between keep the rival's load on the page out of our samples.
    const samples = await race(
      rounds,
      {
        sandglass: () => sandbox.initialize(context),
        globalsSet: () => rival.ask("set", context),
      },
      50,
    );
    const { stdout } = await sandbox.execute("print(len(context))");
    if (Number(stdout) !== context.length) throw new Error(`the context arrived with ${stdout} characters`);
    await sandbox.destroy();
    rival.stop();
    return samples;
  },

  /** Times a context of so many megabytes in different shapes. @param {number} megabytes */
  async contexts(megabytes, rounds = 2) {
    const context = text(megabytes * MB);
    const documents = context.match(/[^]{1,100000}/g);
    const lines = context.match(/[^]{1,1000}/g);
    const file = new Blob([context]);
    const sandbox = await createSandbox();
    await sandbox.initialize(null);
    const samples = await race(
      rounds,
      {
        text: () => sandbox.initialize(context),
        file: () => sandbox.initialize(file),
        documents: () => sandbox.initialize(documents),
        lines: () => sandbox.initialize(lines),
      },
      50,
    );
    const { stdout } = await sandbox.execute("print(sum(map(len, context)))");
    if (Number(stdout) !== context.length) throw new Error(`the context arrived with ${stdout} characters`);
    await sandbox.destroy();
    return samples;
  },

  /** Times a text of 10 MB on its way out of Python. */
  async getVariable(rounds = 7) {
    const context = text(10 * MB);
    const sandbox = await createSandbox();
    await sandbox.initialize(context);
    const rival = startRival();
    await rival.ask("boot", INDEX_URL);
    await rival.ask("set", context);
    const samples = await race(rounds, {
      sandglass: () => sandbox.getVariable("context"),
      globalsGet: () => rival.ask("get"),
    });
    await sandbox.destroy();
    rival.stop();
    return samples;
  },
};

/** Makes words of every length, one in twenty not ASCII, the same every time. @param {number} length */
function text(length) {
  const words = ["sand", "glass", "a", "context", "is", "longer", "than", "prompts", "größer", "砂時計"];
  const paragraph = Array.from({ length: 2000 }, (_, i) => words[(i * 7 + (i >> 3)) % (i % 20 ? 8 : 10)]).join(" ");
  const whole = (paragraph + "\n").repeat(Math.ceil(length / paragraph.length)).slice(0, length);
  // Flat, as a text that was read from somewhere, and not a tree of repetitions.
  return new TextDecoder().decode(new TextEncoder().encode(whole));
}

/** @param {number[]} samples */
const median = (samples) => samples.toSorted((a, b) => a - b)[samples.length >> 1];

/** The things that `keep` has made. @type {unknown[]} */
const kept = [];

Object.assign(window, {
  /** Keeps a sandbox at rest after its first execution; without options, plain Pyodide. @param {any} [options] */
  async keep(options) {
    if (!options) {
      const rival = startRival();
      await rival.ask("boot", INDEX_URL);
      kept.push(rival);
      return;
    }
    const sandbox = await createSandbox(options);
    await sandbox.initialize(null);
    await sandbox.execute("1+1");
    kept.push(sandbox);
  },

  /** Runs a benchmark. @param {keyof typeof benchmarks} name @param {any[]} args */
  async bench(name, ...args) {
    longTasks = [];
    ours = [];
    // @ts-expect-error: each takes its own arguments
    const samples = await benchmarks[name](...args);
    await idle(100);
    const during = longTasks.filter(({ startTime, duration }) =>
      ours.some(([begin, end]) => startTime < end && startTime + duration > begin),
    );
    return { samples, longTasks: during.map((task) => task.duration) };
  },
});
