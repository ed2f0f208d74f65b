// Sandboxes from their creation to their end. This file runs in a page. tests/e2e/lifecycle.mjs runs each of `TESTS` and reports
// the problems that they return; it also gives the page two functions that no page has (`countWorkers`, `collectGarbage`).

import { countReferences, countTimers } from "./leftovers.js";
import { pause, randomness, unequal, until, within } from "./tools.js";

/** @import { Sandbox, SandboxOptions } from "../../pkg/sandglass.js" */

const page = /** @type {any} */ (globalThis);
const { setTimeout: wait } = globalThis;

/** Counts of timers and channels that the supervisor has begun and not ended. Counting starts before its import. */
const meter = countLeftovers();

/** All frames that were ever opened. @type {HTMLIFrameElement[]} */
const opened = [];
new MutationObserver((changes) => {
  for (const { addedNodes } of changes)
    for (const node of addedNodes) if (node instanceof HTMLIFrameElement) opened.push(node);
}).observe(document, { childList: true, subtree: true });

const { createSandbox } = /** @type {typeof import("../../pyodide-glue/index.js")} */ (
  await import(/** @type {any} */ ("/pyodide-glue/index.js"))
);
const supervisor = await (
  await import(/** @type {any} */ ("/pkg/sandglass.js"))
).default({ module_or_path: "/dist/supervisor.wasm" });

const { build } = await import(/** @type {any} */ ("/dist/assets.js"));

/** Code that hears no interrupt, so that its guest has to be ended: one that comes before the long call is swallowed. */
const STUCK = "while True:\n    try: sum(range(10 ** 11))\n    except BaseException: pass";
const STUCK_OPTIONS = { timeout: 200 };
const LARGE = 60_000_000;

// ---- tools ----

/** Sandboxes that a test has made. @type {Set<Sandbox>} */
const alive = new Set();

/** @param {SandboxOptions} [options] @returns {Promise<Sandbox>} a sandbox without a spare, unless told otherwise */
async function create(options) {
  const sandbox = await createSandbox({ spares: 0, gracePeriod: 50, ...options });
  alive.add(sandbox);
  return sandbox;
}

/** A sandbox in which code can run. @param {SandboxOptions} [options] */
async function createReady(options) {
  const sandbox = await create(options);
  await sandbox.initialize("ctx");
  return sandbox;
}

const frames = () => document.querySelectorAll("iframe").length;

/** The outcome of a promise as a text: an error's code, such as `destroyed`, if it was rejected. @param {Promise<any>} promise */
const endOf = (promise) =>
  promise.then(
    (value) => `resolved: ${JSON.stringify(value)?.slice(0, 200)}`,
    (error) => String(error?.code ?? error),
  );

/**
 * Keeps the page's thread busy: nothing else of the page runs meanwhile. A request that the thread waits for takes no processor
 * from others, but in Firefox other tasks of the page run while it waits.
 * @param {number} ms
 */
function keepBusy(ms) {
  if (navigator.userAgent.includes("Chrome")) {
    const request = new XMLHttpRequest();
    request.open("GET", `${page.late}/${ms}`, false);
    request.send();
  } else for (const ends = performance.now() + ms; performance.now() < ends;);
}

/** Waits until nothing is left of any guest. Returns the remains as problems. */
async function leftovers() {
  const count = async () => ({ frames: frames(), workers: await page.countWorkers(), "open ports": meter.ports() });
  const left = async () => Object.entries(await count()).filter(([, number]) => number > 0);
  // A worker that was just started ends only after its start. Each look goes through all processes of the machine.
  await until(async () => (await left()).length === 0, "nothing is left", 90_000, 50).catch(() => {});
  return (await left()).map(([what, number]) => `${number} ${what} are left`);
}

/** Counts timers and channels of the page, without the tests' own. */
function countLeftovers() {
  const timers = countTimers();
  /** The near ends of open channels. @type {Set<MessagePort>} */
  const ports = new Set();
  const { MessageChannel } = globalThis;
  const { close } = MessagePort.prototype;
  page.setInterval = () => {
    throw new Error("an interval would have to be counted, too");
  };
  page.MessageChannel = class extends MessageChannel {
    constructor() {
      super();
      ports.add(this.port1);
    }
  };
  MessagePort.prototype.close = function () {
    ports.delete(this);
    close.call(this);
  };
  return { ports: () => ports.size, timers };
}

/** The supervisor's holdings: JavaScript values, and memory. */
export function figures() {
  opened.length = 0;
  return { references: countReferences(supervisor), supervisorBytes: supervisor.memory.buffer.byteLength };
}

// ---- destroy, at every stage ----

/**
 * The page's record of a sandbox.
 * @typedef {{ text: string, signals: AbortSignal[], aborts: number }} Heard
 */

/**
 * The work of a sandbox at the moment when it is destroyed.
 * @typedef {object} Stage
 * @property {SandboxOptions} [options]
 * @property {boolean} [raw]  true if the sandbox is not initialized
 * @property {boolean} [mayEnd]  true if pending work may end before
 * @property {number} [calls]  number of pending host calls
 * @property {(sandbox: Sandbox, heard: Heard) => Promise<Promise<unknown>[]>} begin  begins the work; resolves to the pending
 *   promises at the moment to destroy the sandbox
 */

/** Runs code and waits until it has printed "go". @param {string} code @returns {Stage["begin"]} */
const running = (code) => async (sandbox, heard) => {
  // Output just before a long call into C would arrive late, so the code sleeps first.
  const execution = sandbox.execute(`import time\nprint("go")\ntime.sleep(0.1)\n${code}`);
  execution.catch(() => {});
  await until(() => heard.text.includes("go"), "the code runs");
  return [execution];
};

/** @param {string} code @param {number} calls @returns {Stage["begin"]} */
const calling = (code, calls) => async (sandbox, heard) => {
  const execution = sandbox.execute(code);
  await until(() => heard.signals.length === calls, `${calls} host calls`);
  return [execution];
};

/** @param {() => number} dice @returns {Record<string, () => Stage>} */
const stages = (dice) => ({
  "has not been initialized": () => ({ raw: true, begin: async () => [] }),
  "has nothing to do": () => ({ begin: async () => [] }),
  "gets a large context": () => ({
    raw: true,
    mayEnd: true,
    begin: async (sandbox) => {
      const pending = [sandbox.initialize("é".repeat(LARGE)), sandbox.execute("len(context)")];
      await pause(dice() * 150);
      return pending;
    },
  }),
  "gets a large context, at once": () => ({
    raw: true,
    begin: async (sandbox) => [sandbox.initialize(new Uint8Array(LARGE)), sandbox.execute("len(context)")],
  }),
  "gives a large value": () => ({
    mayEnd: true,
    begin: async (sandbox) => {
      await sandbox.execute(`large = "é" * ${LARGE}`);
      const pending = [sandbox.getVariable("large")];
      await pause(dice() * 150);
      return pending;
    },
  }),
  computes: () => ({ begin: running("while True: pass") }),
  "computes and does not hear interrupts": () => ({ begin: running(STUCK) }),
  "has been asked to stop": () => ({
    options: { timeout: 100, gracePeriod: 60_000 },
    begin: async (sandbox) => {
      const execution = sandbox.execute(STUCK);
      await pause(300);
      return [execution];
    },
  }),
  "waits for the rest of its code": () => ({
    begin: async (sandbox) => {
      const stream = new ReadableStream({ start: (source) => source.enqueue("x = ") });
      const pending = [sandbox.executeStream(stream)];
      await pause(20);
      return pending;
    },
  }),
  sleeps: () => ({ begin: running("import time\ntime.sleep(1000)") }),
  "prints all the time": () => ({ begin: running("while True: print('x' * 1000)") }),
  "waits for a host call": () => ({ calls: 1, begin: calling("llm_query('never')", 1) }),
  "waits for 50 host calls": () => ({
    options: { maxConcurrentHostCalls: 50 },
    calls: 50,
    begin: calling("llm_query_batched(['never'] * 50)", 50),
  }),
  "waits for 50 host calls, 8 at a time": () => ({
    options: { maxConcurrentHostCalls: 8 },
    calls: 8,
    begin: calling("llm_query_batched(['never'] * 50)", 8),
  }),
  "waits for an rlm_query": () => ({ calls: 1, begin: calling("rlm_query('never', 'c')", 1) }),
  "has a queue": () => ({
    begin: async (sandbox, heard) => [
      ...(await running("while True: pass")(sandbox, heard)),
      ...Array.from({ length: 10 }, () => sandbox.execute("1")),
      sandbox.execute("1", { signal: new AbortController().signal }),
      ...[sandbox.initialize("other"), sandbox.setVariable("x", 1), sandbox.getVariable("x")],
      ...[sandbox.listVariables(), sandbox.checkpoint()],
    ],
  }),
  "saves its state because it was asked to": () => ({
    mayEnd: true,
    begin: async (sandbox) => {
      await sandbox.execute("import os\nballast = os.urandom(100_000) * 500");
      const pending = [sandbox.checkpoint()];
      await pause(dice() * 100);
      return pending;
    },
  }),
  "saves its state because it is idle": () => ({
    begin: async (sandbox) => {
      await sandbox.execute("import os\nballast = os.urandom(100_000) * 500");
      await pause(40 + dice() * 150);
      return [];
    },
  }),
});

/** @param {Stage} stage */
async function destroyDuring({ options, raw, mayEnd, calls = 0, begin }) {
  /** @type {Heard} */
  const heard = { text: "", signals: [], aborts: 0 };
  /** @type {string[]} */
  const late = [];
  let over = false;
  const ask = (/** @type {AbortSignal} */ signal) => {
    if (over) late.push("a host call came after destroy");
    heard.signals.push(signal);
    signal.addEventListener("abort", () => (heard.aborts += 1));
    return new Promise(() => {});
  };
  const sandbox = await create({
    onLLMQuery: (_prompt, { signal }) => ask(signal),
    onRLMQuery: (_task, _context, { signal }) => ask(signal),
    onStdout: (text) => {
      if (over) late.push(`"${text.slice(0, 20)}" came after destroy`);
      else heard.text += text;
    },
    ...options,
  });
  if (!raw) await sandbox.initialize("ctx");
  const pending = (await begin(sandbox, heard)).map(endOf);
  over = true;
  const destroyed = [endOf(sandbox.destroy()), endOf(sandbox.destroy())];
  const problems = await refusals(sandbox);
  for (const end of await within(Promise.all(destroyed), "destroy"))
    problems.push(...unequal(end, "resolved: undefined", "destroy"));
  for (const end of await within(Promise.all(pending), "what was pending"))
    if (!(mayEnd && end.startsWith("resolved"))) problems.push(...unequal(end, "destroyed", "what was pending"));
  const aborted = heard.signals.filter((signal) => signal.aborted).length;
  problems.push(...unequal(aborted, calls, "signals that are aborted"));
  problems.push(...unequal(heard.aborts, calls, "abort events"));
  return [...problems, ...(await leftovers()), ...late];
}

/** Checks that a destroyed sandbox refuses all calls. @param {Sandbox} sandbox */
async function refusals(sandbox) {
  const calls = {
    initialize: () => sandbox.initialize("x"),
    execute: () => sandbox.execute("1"),
    executeStream: () => sandbox.executeStream((async function* () {})()),
    hint: () => sandbox.hint("1"),
    updateConversation: () => sandbox.updateConversation([]),
    "execute, aborted": () => sandbox.execute("1", { signal: AbortSignal.abort() }),
    getVariable: () => sandbox.getVariable("x"),
    setVariable: () => sandbox.setVariable("x", 1),
    listVariables: () => sandbox.listVariables(),
    checkpoint: () => sandbox.checkpoint(),
  };
  const problems = [];
  for (const [name, call] of Object.entries(calls))
    problems.push(...unequal(await within(endOf(call()), name), "destroyed", name));
  sandbox.interrupt();
  problems.push(...unequal(sandbox.capabilities.isolation, "frame", "capabilities.isolation"));
  return problems;
}

/** Ends the guest of a sandbox, which then starts the next one. @param {Sandbox} sandbox */
async function endGuest(sandbox) {
  const run = await within(sandbox.execute(STUCK, STUCK_OPTIONS), "a cell that does not hear its timeout");
  if (run.outcome !== "timeout" || run.state.status === "kept") throw new Error(`it ended as ${run.outcome}, kept`);
  return run;
}

/** @type {Record<string, () => Promise<string[]>>} */
const DESTROY = {
  ...Object.fromEntries(
    Object.entries(stages(randomness(1))).map(([what, stage]) => [
      `destroy: a sandbox that ${what}`,
      () => destroyDuring(stage()),
    ]),
  ),

  "destroy: while a guest that was ended is replaced, at random moments": async () => {
    const dice = randomness(2);
    const problems = [];
    for (let round = 0; round < 4; round += 1) {
      const at = Math.floor(dice() * 700);
      const sandbox = await createReady({ checkpoints: round % 2 ? "auto" : "off" });
      await sandbox.execute("import os\nballast = os.urandom(100_000) * 20");
      if (round % 2) await sandbox.checkpoint();
      await endGuest(sandbox);
      const next = endOf(sandbox.execute("len(ballast)"));
      await pause(at);
      await sandbox.destroy();
      const end = await within(next, `the execute that was pending ${at} ms later`);
      if (end !== "destroyed" && !end.startsWith("resolved")) problems.push(`after ${at} ms: ${end}`);
      problems.push(...(await refusals(sandbox)));
    }
    return [...problems, ...(await leftovers())];
  },

  "destroy: in onProgress, at every stage of the next guest": async () => {
    const problems = [];
    for (const when of ["assets", "python", "ready"]) {
      let armed = false;
      /** @type {Sandbox} */
      const sandbox = await createReady({
        onProgress: ({ stage }) => void (armed && stage === when && sandbox.destroy()),
      });
      armed = true;
      await endGuest(sandbox);
      const end = await within(endOf(sandbox.execute("1")), "the execute");
      problems.push(...unequal(end, "destroyed", when), ...(await refusals(sandbox)));
    }
    return [...problems, ...(await leftovers())];
  },

  "destroy: in the sandbox's own callbacks": async () => {
    const problems = [];
    for (const code of ["print('now')", "llm_query('now')", "now()", "print('one'); llm_query('now'); print('two')"]) {
      /** @type {Sandbox} */
      const sandbox = await createReady({
        onStdout: (text) => void (text.includes("now") && sandbox.destroy()),
        onLLMQuery: async () => sandbox.destroy().then(() => "answer"),
        hostFunctions: { now: () => sandbox.destroy() },
      });
      problems.push(...unequal(await within(endOf(sandbox.execute(code)), code), "destroyed", code));
    }
    const sandbox = await createReady({
      onLLMQuery: (_prompt, { signal }) => {
        signal.addEventListener("abort", () => sandbox.destroy());
        wait(() => sandbox.interrupt(), 0);
        return new Promise(() => {});
      },
    });
    const end = await within(endOf(sandbox.execute("llm_query('q')")), "the interrupted execute");
    return [...problems, ...unequal(end, "destroyed", "when a signal aborts"), ...(await leftovers())];
  },

  "destroy: an execution's signal that aborts later does nothing": async () => {
    const sandbox = await createReady();
    const controller = new AbortController();
    const execution = endOf(sandbox.execute("while True: pass", { signal: controller.signal }));
    await sandbox.destroy();
    controller.abort();
    return [...unequal(await execution, "destroyed", "execute"), ...(await leftovers())];
  },

  "destroy: free() is destroy for who waits for nothing, and lets an execution end": async () => {
    const idle = await create();
    idle.free();
    alive.delete(idle);
    const problems = await leftovers();
    const busy = await createReady();
    const execution = busy.execute("import time\ntime.sleep(0.3)\n6 * 7");
    busy.free();
    alive.delete(busy);
    const { result } = await within(execution, "the execution");
    return [...problems, ...unequal(result, "42", "result"), ...(await leftovers())];
  },

  "destroy: one sandbox, and another goes on": async () => {
    const [a, b] = await Promise.all([createReady(), createReady()]);
    const execution = b.execute("import time\nfor _ in range(10): time.sleep(0.03)\ncontext");
    await a.execute("1");
    await a.destroy();
    const { result, state } = await within(execution, "the other's execution");
    const problems = [...unequal(result, "'ctx'", "result"), ...unequal(state.status, "kept", "state")];
    problems.push(...unequal(frames(), 1, "frames"));
    await b.destroy();
    return [...problems, ...(await leftovers())];
  },

  "a boot that is cut off, at random moments": async () => {
    const dice = randomness(3);
    /** @type {Record<string, number>} */
    const ends = {};
    for (let round = 0; round < 12; round += 1) {
      const bootTimeout = round === 0 ? 1 : 1 + Math.floor(dice() * 700);
      const isolation = round % 3 ? "frame" : "worker";
      const end = await within(
        createSandbox({ bootTimeout, isolation, spares: 0 }).then(
          (sandbox) => sandbox.destroy().then(() => "started"),
          (error) => String(error.code ?? error),
        ),
        "createSandbox",
      );
      ends[end] = (ends[end] ?? 0) + 1;
    }
    const { started = 0, boot_failed = 0 } = ends;
    const problems = started + boot_failed === 12 && boot_failed > 0 ? [] : [JSON.stringify(ends)];
    const sandbox = await createReady();
    problems.push(...unequal((await sandbox.execute("context")).result, "'ctx'", "the next sandbox's result"));
    await sandbox.destroy();
    return [...problems, ...(await leftovers())];
  },
};

// ---- spares ----

/** A sandbox with a spare beside it. @param {SandboxOptions} [options] @returns {Promise<{ sandbox: Sandbox, own: HTMLIFrameElement, spare: HTMLIFrameElement }>} */
async function createWithSpare(options) {
  const begin = opened.length;
  const sandbox = await createReady({ spares: 1, ...options });
  await sandbox.execute("x = 7");
  await sandbox.checkpoint();
  await until(() => frames() === 2, "a spare is started");
  const [own, spare] = opened.slice(begin);
  return { sandbox, own, spare };
}

/** Waits for longer than several spares take to start. */
const idle = () => pause(500);

/** @type {Record<string, () => Promise<string[]>>} */
const SPARES = {
  "spares: 1 is one frame more, and goes with the last sandbox": async () => {
    const begin = opened.length;
    const { sandbox } = await createWithSpare();
    for (let round = 0; round < 3; round += 1) await sandbox.execute("x");
    await idle();
    const problems = [...unequal(frames(), 2, "frames"), ...unequal(opened.length - begin, 2, "frames ever opened")];
    await sandbox.destroy();
    return [...problems, ...(await leftovers())];
  },

  "spares: 0 is none": async () => {
    const begin = opened.length;
    const sandbox = await createReady();
    await sandbox.execute("1");
    await idle();
    const problems = unequal(opened.length - begin, 1, "frames ever opened");
    await sandbox.destroy();
    return [...problems, ...(await leftovers())];
  },

  "spares: none before code has run": async () => {
    const begin = opened.length;
    const sandbox = await createReady({ spares: 1 });
    await idle();
    const problems = unequal(opened.length - begin, 1, "frames ever opened");
    await sandbox.destroy();
    return [...problems, ...(await leftovers())];
  },

  "spares: two sandboxes share one, which the second one is made of": async () => {
    const begin = opened.length;
    const { sandbox: a, spare } = await createWithSpare();
    const b = await createReady({ spares: 1 });
    const problems = unequal(opened.length - begin, 2, "frames opened before the second sandbox was ready");
    problems.push(...unequal((await b.execute("context")).result, "'ctx'", "the second one's result"));
    await until(() => frames() === 3, "another spare");
    await idle();
    problems.push(...unequal(frames(), 3, "frames of two sandboxes and a spare"));
    problems.push(...unequal(opened.length - begin, 3, "frames ever opened"));
    await b.destroy();
    await until(() => frames() === 2, "the second one's frame goes");
    problems.push(...unequal(spare.isConnected, false, "the second one's frame is there"));
    problems.push(...unequal((await a.execute("x")).result, "7", "the first one's result"));
    await a.destroy();
    return [...problems, ...(await leftovers())];
  },

  "spares: most are as many as the sandbox that wants most of them says": async () => {
    const begin = opened.length;
    const { sandbox: a } = await createWithSpare();
    const b = await createReady({ spares: 2 });
    await b.execute("1");
    await until(() => frames() === 4, "two sandboxes, two spares");
    await b.destroy();
    await until(() => frames() === 2, "one sandbox, one spare");
    await idle();
    const problems = [...unequal(frames(), 2, "frames"), ...unequal(opened.length - begin, 4, "frames ever opened")];
    await a.destroy();
    return [...problems, ...(await leftovers())];
  },

  "spares: one takes a dead guest's place, with the state": async () => {
    const begin = opened.length;
    const { sandbox, own, spare } = await createWithSpare();
    await endGuest(sandbox);
    const next = await within(sandbox.execute("x"), "the next execute");
    const problems = unequal(next.result, "7", "result");
    problems.push(...unequal(own.isConnected, false, "the dead one's frame is there"));
    problems.push(...unequal(spare.isConnected, true, "the spare's frame is there"));
    problems.push(...unequal(opened.length - begin, 2, "frames opened before the next result"));
    await until(() => frames() === 2, "another spare");
    await sandbox.destroy();
    return [...problems, ...(await leftovers())];
  },

  "spares: they go with a sandbox that has no guest when it is destroyed": async () => {
    const sandbox = await createReady({ spares: 2 });
    await sandbox.execute("1");
    await until(() => frames() === 3, "two spares");
    await sandbox.execute("import os; os._exit(1)");
    // A guest that dies before it has finished any work is replaced only at the next request.
    await sandbox.execute("import os; os._exit(1)");
    const problems = unequal(frames(), 1, "frames");
    await sandbox.destroy();
    return [...problems, ...(await leftovers())];
  },

  "spares: a worker has a worker for a spare": async () => {
    const sandbox = await createReady({ spares: 1, isolation: "worker" });
    await sandbox.execute("1");
    await until(async () => (await page.countWorkers()) === 2, "a spare");
    const problems = unequal(frames(), 0, "frames");
    await sandbox.destroy();
    return [...problems, ...(await leftovers())];
  },

  "spares: none is left when the last sandbox is destroyed while one starts": async () => {
    const dice = randomness(4);
    for (let round = 0; round < 4; round += 1) {
      const sandbox = await createReady({ spares: 1 });
      await sandbox.execute("1");
      await pause(70 + dice() * 200);
      await sandbox.destroy();
    }
    await idle();
    return leftovers();
  },

  "spares: one that another sandbox took and was destroyed with is replaced": async () => {
    const { sandbox: a } = await createWithSpare();
    await idle();
    const b = await create({ spares: 1 });
    await b.destroy();
    /** @type {string[]} */
    const problems = [];
    await until(() => frames() === 2, "the idle sandbox has a spare again", 5000).catch((error) =>
      problems.push(String(error)),
    );
    await a.destroy();
    return [...problems, ...(await leftovers())];
  },

  ...Object.fromEntries(
    Object.entries({
      "was removed from the page": (/** @type {HTMLIFrameElement} */ frame) => frame.remove(),
      "was led to another page": (/** @type {HTMLIFrameElement} */ frame) =>
        new Promise((resolve) => {
          frame.addEventListener("load", resolve, { once: true });
          frame.srcdoc = "<title>another page</title>";
        }),
    }).flatMap(([what, breakIt]) => [
      [
        `spares: one that ${what} does not hold up who needs it`,
        async () => {
          const { sandbox, spare } = await createWithSpare();
          await breakIt(spare);
          await endGuest(sandbox);
          const next = await within(sandbox.execute("x"), "the next execute");
          await sandbox.destroy();
          return [...unequal(next.result, "7", `the result (${next.error})`), ...(await leftovers())];
        },
      ],
      [
        `spares: one that ${what} does not hold up code that runs ahead`,
        async () => {
          const { sandbox, spare } = await createWithSpare();
          await breakIt(spare);
          await sandbox.hint("x + 1");
          const hasRun = () => sandbox.stats().ahead.code.explicit?.finished === 1;
          /** @type {string[]} */
          const problems = [];
          await until(hasRun, "the code runs ahead").catch((error) => problems.push(String(error)));
          await sandbox.destroy();
          return [...problems, ...(await leftovers())];
        },
      ],
      [
        `spares: one that ${what} does not hold up a new sandbox`,
        async () => {
          const { sandbox, spare } = await createWithSpare();
          await breakIt(spare);
          const second = await within(createReady({ spares: 1 }), "createSandbox");
          const { result } = await within(second.execute("context"), "its execute");
          await Promise.all([sandbox.destroy(), second.destroy()]);
          return [...unequal(result, "'ctx'", "the result"), ...(await leftovers())];
        },
      ],
    ]),
  ),
};

// ---- dropped sandboxes ----

/** Collects garbage until the page has `wanted` frames. @param {number} wanted */
const collectUntil = (wanted) =>
  until(
    async () => {
      await page.collectGarbage();
      return frames() === wanted;
    },
    `${wanted} frames after the garbage was collected`,
    30_000,
    50,
  );

/** @type {Record<string, () => Promise<string[]>>} */
const DROPPED = {
  "dropped: a sandbox goes with the garbage": async () => {
    await (async () => void (await createSandbox({ spares: 0 })))();
    await (async () => {
      const sandbox = await createSandbox({ spares: 0 });
      await sandbox.initialize("ctx");
      await sandbox.execute("print(1)");
    })();
    await collectUntil(0);
    return leftovers();
  },

  "dropped: its spare goes with it": async () => {
    await (async () => {
      const sandbox = await createSandbox({ spares: 1 });
      await sandbox.initialize("ctx");
      await sandbox.execute("1");
      await until(() => frames() === 2, "a spare");
    })();
    await collectUntil(0);
    return leftovers();
  },

  "dropped: one that somebody holds stays": async () => {
    const kept = await createReady();
    await (async () => void (await createSandbox({ spares: 0 })))();
    await collectUntil(1);
    const { result } = await kept.execute("context");
    await kept.destroy();
    return [...unequal(result, "'ctx'", "result"), ...(await leftovers())];
  },

  "dropped: host calls that are never answered go with their sandbox": async () => {
    const counts = [];
    for (let round = 0; round < 4; round += 1) {
      await (async () => {
        /** @type {() => void} */
        let called = () => {};
        const calling = new Promise((resolve) => (called = () => resolve(undefined)));
        const sandbox = await createSandbox({
          spares: 0,
          onLLMQuery: () => {
            called();
            return new Promise(() => {});
          },
        });
        await sandbox.initialize("ctx");
        const end = endOf(sandbox.execute("llm_query('q')"));
        await calling;
        await sandbox.destroy();
        await end;
      })();
      for (let collected = 0; collected < 5; collected += 1) {
        await page.collectGarbage();
        await pause(20);
      }
      counts.push(figures().references);
    }
    return [
      ...(counts[3] > counts[1] ? [`values that the supervisor holds after each: ${counts.join(", ")}`] : []),
      ...(await leftovers()),
    ];
  },

  "dropped: an execution that is pending still ends, then it goes": async () => {
    const onLLMQuery = async () => {
      for (let round = 0; round < 3; round += 1) await page.collectGarbage();
      await pause(200);
      return "answer";
    };
    // In a scope of its own: the sandbox keeps all that its options' functions can see, here even the sandbox itself.
    const executions = await executeAndDrop({ spares: 0, onLLMQuery });
    for (let round = 0; round < 3; round += 1) await page.collectGarbage();
    const problems = unequal(frames(), 1, "frames while it is pending");
    const [first, second] = await within(Promise.all(executions), "the executions");
    problems.push(...unequal(first.result, "'answer'", "the first result"));
    problems.push(...unequal(second.result, "'ctx'", "the second result"));
    return [...problems, ...(await leftovers())];
  },
};

/** @param {SandboxOptions} options */
async function executeAndDrop(options) {
  const sandbox = await createSandbox(options);
  await sandbox.initialize("ctx");
  return [sandbox.execute("import time\ntime.sleep(0.3)\nllm_query('q')"), sandbox.execute("context")];
}

// ---- the state ----

/** Random values of a guest, from several sources. @param {Sandbox} sandbox @returns {Promise<string[]>} */
async function randomOf(sandbox) {
  const code = `
import os, random, secrets, tempfile, uuid
FINAL([str(random.random()), os.urandom(8).hex(), secrets.token_hex(8), uuid.uuid4().hex, next(tempfile._get_candidate_names())])`;
  const { final, error } = await sandbox.execute(code);
  if (!final) throw new Error(error);
  return /** @type {string[]} */ (final.value);
}

/** Cells, the most of which can be repeated. `look` tells what differs if a state is not quite the same. */
const IN_A_ROW = [
  `import random
class Thing: pass
things = []
def look():
    things.append(Thing())
    return repr((things, [*{Thing() for _ in range(9)}], random.random(), id(object()), globals().get("now")))`,
  "things += [Thing() for _ in range(100)]",
  "print('x' * 1000); 1 + 1",
  "names = {str(n): [n] for n in range(1000)}",
  "import time; now = time.time()",
  "things.reverse(); del names",
  "import asyncio; await asyncio.gather(*[asyncio.sleep(0, thing) for thing in things[:9]])",
  "file = open('/tmp/row.txt', 'w+'); file.write(look()); file.seek(0)",
  "lines = file.read(10)",
  "lines += file.read(10); raised = []\ntry: 1 / 0\nexcept ZeroDivisionError as error: raised.append(error)",
];

/** @type {Record<string, () => Promise<string[]>>} */
const STATE = {
  "state: a guest that needed much memory once is replaced when nothing runs": async () => {
    const begin = opened.length;
    const sandbox = await createReady();
    await sandbox.execute("numbers = iter(range(9))\nnext(numbers)\nbig = bytearray(b'x' * 100_000_000)\ndel big");
    await until(() => opened.length === begin + 2 && !opened[begin].isConnected, "another guest");
    const { result, state } = await within(sandbox.execute("next(numbers), 'big' in globals()"), "the next execute");
    const problems = [...unequal(result, "(1, False)", "the result"), ...unequal(state.status, "kept", "the state")];
    // The guest is small now, so the next save does not replace it.
    await sandbox.checkpoint();
    await idle();
    problems.push(...unequal(opened.length - begin, 2, "frames ever opened"), ...unequal(frames(), 1, "frames"));
    await sandbox.destroy();
    return [...problems, ...(await leftovers())];
  },

  "state: a guest is not replaced for its memory while it has what no other can have": async () => {
    const begin = opened.length;
    const sandbox = await createReady();
    const code =
      "import os\nreader, writer = os.pipe()\nos.write(writer, b'!')\nbig = bytearray(b'x' * 100_000_000)\ndel big";
    await sandbox.execute(code);
    await idle();
    // Waits for a save that may still be under way.
    await sandbox.checkpoint();
    await idle();
    const { result } = await sandbox.execute("os.read(reader, 1)");
    const problems = [...unequal(result, "b'!'", "the result"), ...unequal(opened.length - begin, 1, "frames opened")];
    await sandbox.destroy();
    return [...problems, ...(await leftovers())];
  },

  "state: what comes at random is nobody else's": async () => {
    const sandboxes = await Promise.all([createReady(), createReady()]);
    const drawn = await Promise.all(sandboxes.map(randomOf));
    const [sandbox] = sandboxes;
    await sandbox.checkpoint();
    const before = await randomOf(sandbox);
    await sandbox.undo();
    const [number, ...after] = await randomOf(sandbox);
    // The state of \`random\` belongs to the state, so undo restores it.
    const problems = unequal(number, before[0], "random.random() after undo()");
    const all = [...drawn.flat(), ...before, ...after.slice(0, 3)];
    problems.push(...unequal(new Set(all).size, all.length, "different ones among what was drawn"));
    await Promise.all(sandboxes.map((sandbox) => sandbox.destroy()));
    return [...problems, ...(await leftovers())];
  },

  "state: executions in a row are undone exactly, to the addresses of objects": async () => {
    const sandbox = await createReady();
    /** What each execution has seen. @type {(string | undefined)[]} */
    const seen = [];
    for (const code of IN_A_ROW) {
      const { final, error } = await sandbox.execute(`${code}\nseen = look(); FINAL(seen)`);
      if (!final) throw new Error(error);
      seen.push(String(final.value));
    }
    const problems = [];
    for (let execution = seen.length - 1; execution > 0; execution--) {
      problems.push(...unequal(await within(sandbox.undo(), "undo"), execution, "the execution to which undo goes"));
      const known = String(await sandbox.getVariable("seen"));
      problems.push(...unequal(known, seen[execution - 1], `the state after execution ${execution}`));
    }
    await sandbox.destroy();
    return [...problems, ...(await leftovers())];
  },

  "state: a page that is busy for longer than a save may take loses nothing": async () => {
    const sandbox = await createReady();
    const begin = opened.length;
    await sandbox.execute("import os\nx = 7\nballast = os.urandom(100_000) * 1000");
    const saving = sandbox.checkpoint();
    await pause(0);
    keepBusy(21_000);
    const problems = unequal(await within(saving, "the save"), 1, "the execution that is saved");
    const { result, state } = await sandbox.execute("x");
    problems.push(...unequal(result, "7", "the result"), ...unequal(state.status, "kept", "the state"));
    problems.push(...unequal(opened.length - begin, 0, "frames opened meanwhile"));
    await sandbox.destroy();
    return [...problems, ...(await leftovers())];
  },
};

// ---- code that comes in pieces ----

/** A source of pieces, and the number of times that it was ended. @param {unknown[]} list */
function source(list) {
  const heard = { ended: 0 };
  async function* pieces() {
    try {
      for (const piece of list) yield await (typeof piece === "function" ? piece() : piece);
    } finally {
      heard.ended += 1;
    }
  }
  return { pieces: /** @type {AsyncIterable<string>} */ (pieces()), heard };
}

/** @type {Record<string, () => Promise<string[]>>} */
const PIECES = {
  "pieces: a stream and an iterator are read to their end, and run once": async () => {
    const sandbox = await createReady();
    const stream = new ReadableStream({
      start(controller) {
        for (const piece of ["pri", "nt(1)", "\n", "", "2 +", " 3"]) controller.enqueue(piece);
        controller.close();
      },
    });
    const { pieces, heard } = source(["import sys\n", "print('warned', file=", "sys.stderr)"]);
    let streamed = "";
    const onStderr = (/** @type {string} */ text) => (streamed += text);
    const [first, second] = [await sandbox.executeStream(stream), await sandbox.executeStream(pieces, { onStderr })];
    const none = await sandbox.executeStream(source([]).pieces);
    return [
      ...unequal([first.stdout, first.result, first.id].join(), "1\n,5,1", "the stream's"),
      ...unequal([second.stderr, streamed, second.id].join(), "warned\n,warned\n,2", "the iterator's"),
      ...unequal([none.outcome, none.code].join(), "ok,", "nothing's"),
      ...unequal(heard.ended, 1, "ends of the iterator"),
    ];
  },

  "pieces: whoever takes them back runs nothing": async () => {
    const sandbox = await createReady();
    const { pieces, heard } = source(["x = 1\n", new Promise(() => {})]);
    const controller = new AbortController();
    const running = sandbox.executeStream(pieces, { signal: controller.signal });
    await pause(20);
    controller.abort();
    const run = await within(running, "what was taken back");
    let cancelled = 0;
    const stream = new ReadableStream({ cancel: () => void (cancelled += 1) });
    const before = await within(sandbox.executeStream(stream, { signal: AbortSignal.abort() }), "aborted before");
    const next = await sandbox.execute("'x' in globals()");
    return [
      ...unequal([run.outcome, run.code, run.state.status].join(), "interrupted,x = 1\n,kept", "the outcome"),
      ...unequal(before.outcome, "interrupted", "the outcome of what never began"),
      ...unequal(cancelled, 1, "cancelled streams"),
      ...unequal(next.result, "False", "whether any of it was run"),
      // The iterator still waits for its second piece; only after that can it end.
      ...unequal(heard.ended, 0, "ends of the iterator"),
    ];
  },

  "pieces: what is no code is refused, and nothing is run": async () => {
    const sandbox = await createReady({ maxCodeLength: 100 });
    const failing = source(["x = 1\n", () => Promise.reject(new Error("the line is dead"))]);
    const why = await sandbox.executeStream(failing.pieces).catch((error) => error);
    const bytes = source(["x = 1\n", new Uint8Array(3), "x = 2"]);
    const { pieces, heard } = source(Array(1000).fill("x = 3\n"));
    const long = await sandbox.executeStream(pieces);
    const locked = new ReadableStream();
    locked.getReader();
    /** @type {[any, string][]} */
    const wrong = [
      ["x = 1", "invalid_option"],
      [undefined, "invalid_option"],
      [["x = 1"], "invalid_option"],
      [locked, "invalid_option"],
      [bytes.pieces, "invalid_option"],
      [source(["x = '\ud800'"]).pieces, "invalid_option"],
    ];
    const problems = [];
    for (const [code, end] of wrong)
      problems.push(...unequal(await endOf(sandbox.executeStream(code)), end, "refusal"));
    const option = await endOf(sandbox.executeStream(source([]).pieces, /** @type {any} */ ({ timeuot: 1 })));
    const { result } = await sandbox.execute("'x' in globals()");
    return [
      ...problems,
      ...unequal([why.code, /the line is dead; nothing was run/.test(why.message)].join(), "source_failed,true", why),
      ...unequal(long.outcome, "limit", "the outcome of what is too long"),
      ...unequal([heard.ended, bytes.heard.ended].join(), "1,1", "ends of iterators that were given up"),
      ...unequal(option, "invalid_option", "a wrong option"),
      ...unequal(result, "False", "whether any of it was run"),
    ];
  },

  "pieces: a sandbox that nobody holds any more runs what is still coming": async () => {
    /** @type {(piece: string) => void} */
    let goOn = () => {};
    const last = new Promise((resolve) => (goOn = resolve));
    const begin = async () => {
      const sandbox = await createSandbox({ spares: 0 });
      await sandbox.initialize(null);
      const running = sandbox.executeStream(source(["6 *", last]).pieces);
      /** @type {any} */ (sandbox).free();
      return { running };
    };
    const { running } = await begin();
    await pause(50);
    goOn(" 7");
    const { result } = await within(running, "its execution");
    return [...unequal(result, "42", "the result"), ...(await leftovers())];
  },
};

/** @type {Record<string, () => Promise<string[]>>} */
const STATS = {
  "stats: they say what was done": async () => {
    // Python hears an interrupt within the grace period, also on a machine that is busy.
    const options = { onLLMQuery: async () => "x", checkpoints: "off", maxCodeLength: 100, gracePeriod: 3_000 };
    const sandbox = await createReady(options);
    const fresh = JSON.stringify(sandbox.stats().executions);
    const runs = [];
    for (const code of ["llm_query('a')", "1/0", "x".repeat(101)]) runs.push(await sandbox.execute(code));
    runs.push(await sandbox.execute("while True: pass", { timeout: 50 }));
    runs.push(await sandbox.execute(STUCK, STUCK_OPTIONS));
    runs.push(await sandbox.execute("1", { signal: AbortSignal.abort() }));
    const stats = sandbox.stats();
    const sum = (/** @type {"duration" | "guestTime"} */ what) => runs.reduce((all, run) => all + run[what], 0);
    const close = (/** @type {number} */ one, /** @type {number} */ other) => Math.abs(one - other) < 1;
    return [
      ...unequal(fresh, '{"ok":0,"error":0,"timeout":0,"interrupted":0,"crashed":0,"limit":0}', "before"),
      ...unequal(
        JSON.stringify(stats.executions),
        '{"ok":1,"error":1,"timeout":2,"interrupted":1,"crashed":0,"limit":1}',
        "executions",
      ),
      ...unequal([stats.hostCalls, stats.guests, stats.lost, stats.restored].join(), "1,2,1,0", "the others"),
      ...unequal(close(stats.duration, sum("duration")), true, `duration ${stats.duration}`),
      ...unequal(close(stats.guestTime, sum("guestTime")), true, `guestTime ${stats.guestTime}`),
    ];
  },
};

/** All tests by name. Each returns its problems. */
export const TESTS = { ...DESTROY, ...SPARES, ...DROPPED, ...STATE, ...PIECES, ...STATS };

/** @param {string} name @returns {Promise<string[]>} */
export async function runTest(name) {
  try {
    return await TESTS[name]();
  } catch (error) {
    return [String(/** @type {Error} */ (error).message ?? error)];
  } finally {
    for (const sandbox of alive) sandbox.destroy();
    alive.clear();
  }
}

// ---- many sandboxes ----

/** The moments at which a sandbox of `churn` is destroyed. */
const CUT_OFF = "in its boot, which is cut off";
const KINDS = ["at once", "after an execute", "during an execute", "during a host call", CUT_OFF, CUT_OFF];

/**
 * Makes and destroys sandboxes, two at a time.
 * @param {number} seed @param {number} count
 */
export async function churn(seed, count) {
  const dice = randomness(seed);
  const pick = (/** @type {any[]} */ from) => from[Math.floor(dice() * from.length)];
  /** @type {string[]} */
  const problems = [];
  let left = count;
  const lane = async () => {
    while (left-- > 0 && problems.length < 5) {
      const kind = pick(KINDS);
      const options = {
        spares: pick([0, 1]),
        checkpoints: pick(["auto", "off"]),
        isolation: pick(["frame", "worker"]),
      };
      const bootTimeout = kind === CUT_OFF ? 1 + Math.floor(dice() * 200) : undefined;
      try {
        await within(cycle(kind, { ...options, bootTimeout }), "a cycle", 180_000);
      } catch (error) {
        problems.push(`${kind}, ${JSON.stringify(options)}: ${error}`);
      }
    }
  };
  await Promise.all([lane(), lane()]);
  return [...problems, ...(await leftovers())];
}

/** @param {string} kind @param {SandboxOptions} options */
async function cycle(kind, options) {
  let calls = 0;
  const onLLMQuery = (/** @type {string} */ _prompt, /** @type {{ signal: AbortSignal }} */ { signal }) => {
    calls += 1;
    return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  };
  const sandbox = await createSandbox({ ...options, onLLMQuery }).catch((error) => {
    if (error.code !== "boot_failed" || !options.bootTimeout) throw error;
  });
  if (!sandbox) return;
  let pending = Promise.resolve("destroyed");
  if (kind !== "at once") {
    await sandbox.initialize("some text ".repeat(1000));
    if (kind === "after an execute") {
      const { result } = await sandbox.execute("words = context.split()\nlen(words)");
      if (result !== "2000") throw new Error(`the result is ${result}`);
    } else if (kind === "during an execute") {
      pending = endOf(sandbox.execute("while True: pass"));
    } else if (kind === "during a host call") {
      pending = endOf(sandbox.execute("llm_query('q')"));
      await until(() => calls === 1, "the host call");
    }
  }
  await sandbox.destroy();
  if ((await pending) !== "destroyed") throw new Error(`what was pending: ${await pending}`);
}

/** The page's pending timers. Once all sandboxes are destroyed, there must be none. */
export const { timers } = meter;

// ---- the snapshot that the browser keeps ----

const CACHE = "sandglass-snapshots";
const MODULES = "sandglass-modules";

/** @returns {Promise<{ cache: Cache, key: Request, blob: Blob } | undefined>} */
async function kept() {
  const cache = await caches.open(CACHE);
  const [key] = await cache.keys();
  const response = key && (await cache.match(key));
  return response && { cache, key, blob: await response.blob() };
}

/** @param {number} at a share of it @returns {(blob: Blob) => Promise<Blob>} */
const flipBit = (at) => async (blob) => {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  bytes[Math.floor(at * bytes.length)] ^= 4;
  return new Blob([bytes]);
};

/** Kinds of damage to a snapshot. @type {Record<string, (blob: Blob) => Blob | Promise<Blob>>} */
export const DAMAGE = {
  "with a bit flipped in the middle": flipBit(0.5),
  "cut short to half": (blob) => blob.slice(0, blob.size >> 1),
  "that is empty": () => new Blob([]),
  "of random bytes": (blob) => {
    const bytes = new Uint32Array(blob.size >> 2);
    const dice = randomness(5);
    for (let index = 0; index < bytes.length; index += 1) bytes[index] = dice() * 2 ** 32;
    return new Blob([bytes]);
  },
  "that is a page of HTML": () => new Blob(["<!doctype html><title>Welcome</title>".repeat(50)], { type: "text/html" }),
  "with a bit flipped in its header": flipBit(20 / 31e6),
};

/**
 * Replaces the kept snapshot by one with a memory that is longer by pages of zeros. Resolves to the new one's digest.
 * @param {number[]} hasher  pyodide-glue/pages.wat as wasm
 */
export async function enlarge(hasher) {
  const { cache, key, blob } = await until(kept, "the snapshot is kept");
  // The format is described in snapshot.js.
  const [, size, pages] = new Float64Array(await blob.slice(0, 24).arrayBuffer());
  const more = 1024;
  const old = new Uint8Array(await blob.slice(24, 24 + size + 8 * pages).arrayBuffer());
  const head = new Uint8Array(old.length + 8 * more);
  head.set(old);
  const memory = new WebAssembly.Memory({ initial: Math.ceil(head.length / 65536) });
  new Uint8Array(memory.buffer).set(head);
  const { instance } = await WebAssembly.instantiate(new Uint8Array(hasher), { env: { memory } });
  const hash = /** @type {any} */ (instance.exports).hash(0, Math.ceil(head.length / 64) * 64);
  const larger = new Blob([new Float64Array([hash, size, pages + more]), head, blob.slice(24 + old.length)]);
  await cache.put(key, new Response(larger));
  return digestOf(larger);
}

/** The digest of the snapshot that the browser keeps. */
export const keptDigest = async () => digestOf((await until(kept, "a snapshot is kept")).blob);

const digestOf = async (/** @type {Blob} */ blob) =>
  new Uint8Array(await crypto.subtle.digest("SHA-256", await blob.arrayBuffer())).join();

/** Damages the snapshot that the browser keeps. Resolves to its new digest. @param {string} kind */
export async function damage(kind) {
  const { cache, key, blob } = await until(kept, "the snapshot is kept");
  const damaged = await DAMAGE[kind](blob);
  await cache.put(key, new Response(damaged));
  return digestOf(damaged);
}

/** Damages the module that the browser keeps. Resolves to the digest that it had. */
export async function damageModule() {
  const { cache, key, module } = await until(findModule, "the module is kept");
  await cache.put(key, new Response(await flipBit(0.5)(module)));
  return digestOf(module);
}

/** Waits until the browser keeps a module of a digest. @param {string} wanted */
export async function keepsModule(wanted) {
  await until(async () => {
    const { module } = (await findModule()) ?? {};
    return module && (await digestOf(module)) === wanted;
  }, "the module is kept again");
}

/** Keeps files of releases that no page has. @param {string[]} releases */
export async function keepOthers(releases) {
  for (const name of [CACHE, MODULES]) {
    const cache = await caches.open(name);
    for (const release of releases) await cache.put(`https://snapshot.invalid/${release}`, new Response(release));
  }
}

/** Forgets the files of all releases. */
export async function forgetKept() {
  for (const name of [CACHE, MODULES]) await caches.delete(name);
}

/** Waits until the files of this release and one other are kept. Resolves to the releases by kind, the oldest first. */
export async function keptReleases() {
  return Promise.all([CACHE, MODULES].map((name) => until(() => releasesIn(name), "two releases are kept")));
}

/** @param {string} name @returns {Promise<string[] | undefined>} */
async function releasesIn(name) {
  const keys = (await (await caches.open(name)).keys()).map(({ url }) => url.replace("https://snapshot.invalid/", ""));
  return keys.includes(build) && keys.length === 2 ? keys.map((key) => (key === build ? "this" : key)) : undefined;
}

async function findModule() {
  const cache = await caches.open(MODULES);
  const [key] = await cache.keys();
  const module = key && (await (await cache.match(key))?.blob());
  return module && { cache, key, module };
}

/**
 * Starts the page's first sandboxes and checks them.
 * @param {string} [before] the digest of the entry that must be replaced
 * @returns {Promise<{ problems: string[], cold: string | undefined }>} `cold`: the reason for which they did not start from the kept snapshot
 */
export async function boot(before, count = 1) {
  /** @type {string | undefined} */
  let cold;
  const onProgress = (/** @type {{ stage: string, reason?: string }} */ { stage, reason }) => {
    if (stage === "cold") cold = reason ?? "no reason";
  };
  try {
    const sandboxes = await within(
      Promise.all(Array.from({ length: count }, () => createReady({ onProgress }))),
      "createSandbox",
      180_000,
    );
    const problems = [];
    const check = "context, len(numbers), all(numbers[str(n)] == n for n in range(1000)), {'b', 'a'} == {'a', 'b'}";
    for (const sandbox of sandboxes) {
      await sandbox.execute("numbers = {str(n): n for n in range(1000)}");
      const { result, error } = await sandbox.execute(check);
      problems.push(...unequal(result, "('ctx', 1000, True, True)", `the result (${error})`));
    }
    // Checkpoints of these guests must fit the guests after them.
    for (const sandbox of count > 1 ? sandboxes : []) {
      await sandbox.checkpoint();
      await endGuest(sandbox);
      const { result, error, state } = await within(sandbox.execute(check), "the execute of the next guest");
      problems.push(
        ...unequal(
          result,
          "('ctx', 1000, True, True)",
          `the result in the next guest (${JSON.stringify(state)} ${error})`,
        ),
      );
    }
    await until(async () => (await keptDigest()) !== before, "it is replaced");
    return { problems, cold };
  } catch (error) {
    return { problems: [String(/** @type {Error} */ (error).message ?? error)], cold };
  } finally {
    for (const sandbox of alive) sandbox.destroy();
    alive.clear();
  }
}
