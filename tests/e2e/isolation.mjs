// Python that attacks: the network, storage, the page, its own guest's glue, other executions and other sandboxes.
//   node tests/e2e/isolation.mjs --browser chromium|firefox [--only part-of-a-name]
//
// `isolation: "frame"` must hold against all attacks. `isolation: "worker"` has no policy of its own that forbids `eval`, so
// code there can build a function whose body is `import(url)`, which is a request. Unless the page's own policy forbids it, a
// plain worker can therefore send data out, with the page's origin. All else holds there too: no page, no DOM, no storage, no
// other network API, no forged results.
import { createHash } from "node:crypto";
import { createServer } from "node:http";
import { frameHash } from "../../dist/assets.js";
import { CROSS_ORIGIN_ISOLATED, listen } from "../../scripts/serve.mjs";
import {
  ABUSES,
  attacks,
  CALL_BACK,
  CONSOLE,
  FIND_BRIDGE,
  frameOnlyAttacks,
  LEFTOVERS,
  POLLUTIONS,
  PRELUDE,
  STRAY,
} from "./attacks.mjs";
import { openBrowser, readArguments, root, Score, serve } from "./harness.mjs";
import { testHostileServer } from "./hostile-server.mjs";

const { browser: name, only } = readArguments();
const SECRET = "the-secret-of-the-page";
const score = new Score(only);
const test = score.test.bind(score);
const canary = await startCanary();
const host = await openBrowser(name);

/** @typedef {import("puppeteer-core").Page} Page */

try {
  for (const isolation of /** @type {const} */ (["frame", "worker"])) await attack(isolation);
  await leftovers();
  await lifeOnThePage();
  await sharedMemory();
  await blockingIsRefused();
  await policies();
  await behindTheBackend();
  score.add("nothing is thrown into the page", host.uncaught);
} catch (error) {
  score.fail("the tests could not be run", [String(/** @type {Error} */ (error).stack ?? error)]);
} finally {
  await host.close();
  await canary.close();
}
score.end();

// ---- the attacks ----

/** @param {"frame" | "worker"} isolation */
async function attack(isolation) {
  const page = await openPage();
  const title = (/** @type {string} */ test) => `${isolation}: ${test}`;
  const before = await snapshot(page);
  const { sandbox: bystander } = await create(page, { isolation });
  await bystander.run("x = 42");
  const options = { isolation, gracePeriod: 300 };
  const { sandbox, capabilities } = await create(page, options);
  await test(title("it says what it is"), () => [...unequal(capabilities.isolation, isolation)]);

  const all = { ...attacks(canary), ...(isolation === "frame" ? frameOnlyAttacks(canary, SECRET) : {}) };
  for (const [attackName, code] of Object.entries(all)) {
    await test(title(attackName), async () => {
      const run = await sandbox.run(PRELUDE + code, { timeout: 20_000 });
      const text = JSON.stringify(run);
      if (process.env.VERBOSE) console.log(`${run.stdout}${run.error ?? ""}`.replace(/^/gm, "    "));
      const problems = [];
      if (/REACHED/.test(run.stdout + run.stderr + (run.result ?? ""))) problems.push(text.slice(0, 1000));
      if (run.stdout.includes(SECRET) || run.result?.includes(SECRET)) problems.push("it has seen the secret");
      if (["timeout", "interrupted"].includes(run.outcome)) problems.push(`it ended as ${run.outcome}`);
      return [...problems, ...(await works(sandbox, run))];
    });
  }
  for (const pollution of POLLUTIONS) {
    await test(title(`pollution: ${pollution}`), async () => {
      const run = await sandbox.run(`${PRELUDE}\ntry:\n    ${pollution}\nexcept Exception: pass`, { timeout: 5000 });
      return works(sandbox, run);
    });
  }
  for (const abuse of ABUSES) {
    await test(title(`bridge: ${abuse.replaceAll("\n", "; ")}`), async () => {
      const run = await sandbox.run(`${FIND_BRIDGE}y = 1\n${abuse}`, { timeout: 5000 });
      return works(sandbox, run);
    });
  }
  await test(title("a flood of messages ends, and does not hold up the page"), async () => {
    await page.evaluate(() => {
      const window = /** @type {any} */ (globalThis);
      window.ticks = 0;
      window.begun = performance.now();
      window.ticker = setInterval(() => (window.ticks += 1), 5);
    });
    const run = await sandbox.run(`${FIND_BRIDGE}y = 1\nwhile True: bridge.output('stdout', 0, 'x' * 1000)`, {
      timeout: 5000,
    });
    const { ticks, ms } = await page.evaluate(() => {
      const window = /** @type {any} */ (globalThis);
      clearInterval(window.ticker);
      return { ticks: window.ticks, ms: performance.now() - window.begun };
    });
    return [
      // A guest that floods fast enough ends with a ProtocolError; a slow one reaches its time limit.
      ...(["ProtocolError", "TimeoutError"].includes(run.errorType) ? [] : [`${run.outcome} ${run.error}`]),
      // A free machine does 50 times as many. A page blocked by the flood would do one or two in all.
      ...(ticks >= ms / 250 ? [] : [`the page did ${ticks} other things in ${ms} ms`]),
      ...(await works(sandbox, run)),
    ];
  });

  await test(title("nothing is written to the page's console"), async () => {
    /** @type {string[]} */
    const lines = [];
    page.on("console", (message) => lines.push(message.text()));
    // Firefox reports rejections even if they are handled.
    if (name !== "firefox") page.on("pageerror", (error) => lines.push(String(error)));
    const problems = [];
    for (const code of CONSOLE) {
      const run = await sandbox.run(`${PRELUDE}${code}`, { timeout: 5000 });
      problems.push(...(await works(sandbox, run)));
    }
    // The console's messages come in order, so this one comes after all that the guests wrote.
    const last = new Promise((resolve) => page.once("console", resolve));
    await page.evaluate(() => console.log("the last line"));
    await last;
    return [...problems, ...unequal(lines.join("\n"), "the last line")];
  });

  await test(title("another sandbox on the page noticed nothing"), async () => {
    const run = await bystander.run("x");
    return [...unequal(run.result, "42"), ...unequal(run.id, 2), ...unequal(run.state.status, "kept")];
  });
  await sandbox.destroy();
  await bystander.destroy();
  await pause(500);
  await test(title("nothing reached the network"), () => canary.hits.splice(0).map((hit) => `the canary saw ${hit}`));
  await test(title("the page is as it was"), async () => {
    const after = await snapshot(page);
    return Object.keys(before).flatMap((key) => unequal(after[key], before[key], key));
  });
  await test(title("the canary hears what does reach it"), async () => {
    await page.evaluate(async (url) => void (await fetch(`${url}/control`)), canary.url);
    await page.evaluate((ws) => new Promise((resolve) => (new WebSocket(ws).onerror = resolve)), canary.ws);
    return unequal(canary.hits.splice(0).join(), "GET /control,upgrade /ws");
  });
  await page.close();
}

/**
 * Checks that a sandbox gives right results after an attack. If the guest was ended, the execution must have said so.
 * @param {Sandbox} sandbox @param {any} run  the attack's execution
 */
async function works(sandbox, run) {
  const problems = [];
  const lost = run.state.status !== "kept";
  if (lost && !["crashed", "timeout", "limit"].includes(run.outcome)) problems.push(`lost, but ${run.outcome}`);
  for (let attempt = 0; attempt < 2; attempt += 1) {
    const next = await sandbox.run("print(llm_query('q')); 6 * 7", { timeout: 5000 });
    // The damage may show only now. Then the guest is ended, and the next one must be right.
    if (attempt === 0 && next.outcome === "crashed" && next.state.status !== "kept") continue;
    problems.push(...unequal(next.outcome, "ok", "outcome"), ...unequal(next.result, "42", "result"));
    problems.push(...unequal(next.stdout, "echo: q\n", "stdout"), ...unequal(next.final, undefined, "final"));
    if (next.error) problems.push(`error: ${next.error}`);
    break;
  }
  if (problems.length > 0) {
    problems.push(`the attack itself: ${run.outcome} ${run.error ?? ""} ${run.stdout.slice(0, 300)}`);
    await sandbox.renew();
  }
  return problems;
}

// ---- code of one execution in the next ----

async function leftovers() {
  const page = await openPage();
  const { sandbox } = await create(page, { isolation: "frame", gracePeriod: 300 });
  for (const [scheme, code] of Object.entries(LEFTOVERS)) {
    await test(`leftovers: ${scheme}`, async () => {
      const first = await sandbox.run(STRAY + code);
      await pause(50);
      const second = await sandbox.run("import time\nprint('one'); time.sleep(0.4); print('two')\n6 * 7");
      const third = await sandbox.run("print(llm_query('slow'))\n6 * 7");
      const problems = [
        ...unequal(second.outcome, "ok", "second.outcome"),
        ...unequal(second.stdout, "one\ntwo\n", "second.stdout"),
        ...unequal(second.result, "42", "second.result"),
        ...unequal(second.hostCalls, 0, "second.hostCalls"),
        ...unequal(third.outcome, "ok", "third.outcome"),
        ...unequal(third.stdout, "echo: slow\n", "third.stdout"),
        ...unequal(third.hostCalls, 1, "third.hostCalls"),
      ];
      // `answer` is an ordinary variable, so the first cell may change it at any time.
      for (const run of [second, third]) {
        if (JSON.stringify(run.final ?? null).includes("STRAY")) problems.push(`final: ${JSON.stringify(run.final)}`);
      }
      if (problems.length > 0) problems.push(`the first: ${first.outcome} ${first.error ?? ""} ${second.error ?? ""}`);
      await sandbox.renew();
      return problems;
    });
  }
  await page.close();
}

// ---- sandboxes as parts of a page ----

async function lifeOnThePage() {
  const page = await openPage();
  const frames = () => page.evaluate(() => document.querySelectorAll("iframe").length);
  await test("page: two sandboxes do not disturb each other", async () => {
    const [{ sandbox: a }, { sandbox: b }] = await Promise.all([
      create(page, { isolation: "frame", gracePeriod: 200, checkpoints: "off", spares: 0 }),
      create(page, { isolation: "frame", spares: 0 }),
    ]);
    await Promise.all([a.run("x = 'a'"), b.run("x = 'b'")]);
    const [killed, busy] = await Promise.all([
      a.run("while True:\n    try:\n        while True: pass\n    except BaseException: pass", { timeout: 300 }),
      b.run("import time\nfor _ in range(10): time.sleep(0.1)\nx + llm_query('q')"),
    ]);
    const problems = [
      ...unequal(await frames(), 2, "frames"),
      ...unequal(killed.state.status, "lost"),
      ...unequal(busy.result, "'becho: q'"),
      ...unequal((await b.run("x")).result, "'b'"),
      ...unequal((await a.run("'x' in globals()")).result, "False"),
    ];
    await a.destroy();
    problems.push(...unequal(await frames(), 1, "frames"), ...unequal((await b.run("x")).result, "'b'"));
    await b.destroy();
    return [...problems, ...unequal(await frames(), 0, "frames")];
  });
  await test("page: a sandbox that is destroyed while it starts leaves nothing", async () => {
    await page.evaluate(async () => {
      const { createSandbox } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
      let reached = () => {};
      const python = new Promise((resolve) => (reached = () => resolve(undefined)));
      const starting = createSandbox({
        bootTimeout: 1500,
        onProgress: (/** @type {any} */ { stage }) => stage === "python" && reached(),
      });
      await Promise.race([python, starting.catch(() => {})]);
      await starting.then(
        (/** @type {any} */ sandbox) => sandbox.destroy(),
        () => {},
      );
    });
    return unequal(await frames(), 0, "frames");
  });
  await test("page: large values do not hold up the page", async () => {
    const { sandbox } = await create(page, { isolation: "frame" });
    const hold = async () => {
      const window = /** @type {any} */ (globalThis);
      const sandbox = window.sandboxes.at(-1);
      let longest = 0;
      let last = performance.now();
      const timer = setInterval(() => {
        longest = Math.max(longest, performance.now() - last);
        last = performance.now();
      }, 4);
      await sandbox.initialize("0123456789abcdef".repeat(2_000_000));
      await sandbox.execute("for i in range(200_000): print('x' * 100)");
      await sandbox.execute("b = bytes(10_000_000)");
      await sandbox.getVariable("b");
      clearInterval(timer);
      return longest;
    };
    // A fault would block the page each time, a busy machine only sometimes. So the best of several tries counts.
    let longest = Infinity;
    for (let round = 0; round < 3 && longest >= 500; round += 1) longest = Math.min(longest, await page.evaluate(hold));
    await sandbox.destroy();
    return longest < 500 ? [] : [`the page stood still for ${Math.round(longest)} ms`];
  });
  await page.close();
}

// ---- the page's own policy ----

/** Checks the strictest policy that a page may have, and what is told when it allows too little. */
async function policies() {
  const scripts = `script-src 'self' 'wasm-unsafe-eval'`;
  const allowed = `${scripts} '${frameHash}'; worker-src blob:; connect-src 'self'; require-trusted-types-for 'script'`;
  const cases = {
    "the strictest policy is enough": [`${allowed}; trusted-types sandglass`, "2"],
    "without the frame's hash": [
      `${scripts}; worker-src blob:; connect-src 'self'`,
      "boot_failed",
      "frameHash",
      "blocks",
    ],
    "a policy that only reports": [`${scripts} '${frameHash}'; worker-src blob:; connect-src 'self'`, "2"],
    "without workers": [`${scripts} '${frameHash}'; worker-src 'none'; connect-src 'self'`, "boot_failed"],
    ...(name === "chromium" && {
      "without the policy of Trusted Types": [
        `${allowed}; trusted-types other`,
        "boot_failed",
        "trusted-types sandglass",
      ],
      "a second copy of the package": [`${allowed}; trusted-types sandglass`, "boot_failed", "'allow-duplicates'"],
      "a second copy that is allowed": [`${allowed}; trusted-types sandglass 'allow-duplicates'`, "2"],
    }),
  };
  for (const [what, [policy, ...wanted]] of Object.entries(cases)) {
    await test(`policy: ${what}`, async () => {
      /** @type {Record<string, string>} */
      const headers = { "Content-Security-Policy": `default-src 'none'; ${policy}` };
      if (what.includes("reports")) headers["Content-Security-Policy-Report-Only"] = `default-src 'none'; ${scripts}`;
      const site = await serve(root, { headers });
      const page = await host.browser.newPage();
      await page.goto(`${site.url}/tests/e2e/page.html`);
      const told = await page.evaluate(async (isSecond) => {
        // The first copy has made its policy.
        if (isSecond) /** @type {any} */ (window).trustedTypes.createPolicy("sandglass", {});
        const { createSandbox } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
        const run = async () => {
          const sandbox = await createSandbox();
          await sandbox.initialize(null);
          return (await sandbox.execute("1 + 1")).result;
        };
        return run().catch((error) => `${error.code}: ${error.message}`);
      }, what.startsWith("a second copy"));
      await page.close();
      await site.close();
      if (wanted[0] === "2") return unequal(told, "2");
      return wanted.filter((part) => !told.includes(part)).map((part) => `not ${part}: ${told}`);
    });
  }
}

// ---- waiting by shared memory ----

/** Checks that in a cross-origin isolated page Python can wait while a JavaScript function is on the stack. */
async function sharedMemory() {
  const site = await serve(root, { headers: CROSS_ORIGIN_ISOLATED });
  const page = await openPage(site.url);
  const isolated = await page.evaluate(() => globalThis.crossOriginIsolated);
  await test("shared memory: the page has it", () => unequal(isolated, true));
  for (const isolation of /** @type {const} */ (["frame", "worker"])) {
    const { sandbox, capabilities } = await create(page, { isolation, gracePeriod: 30_000 });
    const title = (/** @type {string} */ text) => `shared memory, ${isolation}: ${text}`;
    await test(title("the bridge has it"), () => unequal(capabilities.bridge, "atomics"));
    if (capabilities.bridge !== "atomics") {
      score.skip(title("the rest"), `the bridge is ${capabilities.bridge}`);
      await sandbox.destroy();
      continue;
    }
    const cases = {
      "llm_query is answered within a JavaScript callback": [
        "back(lambda value: llm_query(f'q{value}'))",
        { outcome: "ok", result: "['echo: q1', 'echo: q2']", hostCalls: 2 },
      ],
      "a batch is answered there": [
        "back(lambda value: llm_query_batched(['a', 'b', 'c'])[value])",
        { outcome: "ok", result: "['echo: b', 'echo: c']" },
      ],
      "large answers come in pieces": [
        "[len(t) for t in back(lambda value: llm_query('huge'))]",
        { outcome: "ok", result: "[3000000, 3000000]" },
      ],
      "a failing host call fails there": [
        "def f(_):\n    try: return llm_query('fail')\n    except HostCallError as e: return str(e)\nback(f)",
        { outcome: "ok", result: "['failed', 'failed']" },
      ],
      "time.sleep sleeps there": [
        "begin = time.monotonic()\nback(lambda _: time.sleep(0.2))\n0.35 < time.monotonic() - begin",
        { outcome: "ok", result: "True" },
      ],
      "ordinary waiting works the same": [
        "time.sleep(0.05)\nllm_query('q')",
        { outcome: "ok", result: "'echo: q'", state: "kept" },
      ],
      "a sleep there times out": ["back(lambda _: time.sleep(100))", { outcome: "timeout", state: "kept" }, 400],
      "a loop there times out": [
        "def f(_):\n    while True: pass\nback(f)",
        { outcome: "timeout", state: "kept" },
        400,
      ],
      "a sleep there can be interrupted": [
        "back(lambda _: time.sleep(100))",
        { outcome: "interrupted", state: "kept" },
      ],
      "a loop there can be interrupted": [
        "def f(_):\n    while True: pass\nback(f)",
        { outcome: "interrupted", state: "kept" },
      ],
      "a host call there can be interrupted": [
        "back(lambda _: llm_query('never'))",
        { outcome: "interrupted", state: "kept" },
      ],
      "after all that it works": ["back(lambda value: llm_query(f'q{value}'))\nx", { outcome: "ok", result: "7" }],
    };
    await sandbox.run(`${CALL_BACK}x = 7`);
    for (const [text, [code, { state, ...wanted }, timeout]] of /** @type {[string, any][]} */ (
      Object.entries(cases)
    )) {
      await test(title(text), async () => {
        const interrupt = wanted.outcome === "interrupted" ? 300 : undefined;
        const run = await sandbox.run(code, { timeout: timeout ?? 60_000 }, interrupt);
        const problems = Object.keys(wanted).flatMap((key) => unequal(run[key], wanted[key], key));
        if (state) problems.push(...unequal(run.state.status, state, "state"));
        if (run.duration > 25_000) problems.push(`it took ${run.duration} ms`);
        if (problems.length > 0) problems.push(`error: ${run.traceback ?? run.error}`);
        if (run.state.status === "lost") await sandbox.run(`${CALL_BACK}x = 7`);
        return problems;
      });
    }
    await sandbox.destroy();
  }
  await page.close();
  await site.close();
}

/** Checks that in any other page such a wait is a clear error, and the sandbox lives on. */
async function blockingIsRefused() {
  const page = await openPage();
  const { sandbox, capabilities } = await create(page, { isolation: "frame" });
  await test("no shared memory: the bridge is JSPI alone", () => unequal(capabilities.bridge, "jspi"));
  await sandbox.run(`${CALL_BACK}x = 7`);
  for (const call of ["llm_query('q')", "time.sleep(0.01)"]) {
    await test(`no shared memory: ${call} in a JavaScript callback says why not`, async () => {
      const run = await sandbox.run(`back(lambda _: ${call})`);
      const after = await sandbox.run("x, llm_query('q')");
      return [
        ...unequal(run.outcome, "error"),
        ...(run.error?.includes("Python cannot wait here: a JavaScript function is on the stack")
          ? []
          : [`${run.error}`]),
        ...unequal(run.hostCalls, 0, "hostCalls"),
        ...unequal(after.result, "(7, 'echo: q')"),
      ];
    });
  }
  await test("no shared memory: an exception that takes long to be told leaves a JavaScript callback", async () => {
    const slow = `class Slow(Exception):
    def __str__(self):
        begin = time.monotonic()
        while time.monotonic() - begin < 0.3: pass
        return 'slow'
def f(_): raise Slow
back(f)`;
    const run = await sandbox.run(slow);
    const after = await sandbox.run("x");
    return [...unequal(run.error, "Slow: slow"), ...unequal(run.state.status, "kept"), ...unequal(after.result, "7")];
  });
  await test("no shared memory: a loop in a JavaScript callback times out", async () => {
    const run = await sandbox.run("def f(_):\n    while True: pass\nback(f)", { timeout: 400 });
    const after = await sandbox.run("x");
    return [...unequal(run.outcome, "timeout"), ...unequal(run.state.status, "kept"), ...unequal(after.result, "7")];
  });
  await page.close();
}

// ---- guests of servers ----

/** Checks hostile servers. A page trusts its server with its code and data, and with nothing else. */
async function behindTheBackend() {
  const page = await openPage();
  const before = await snapshot(page);
  await testHostileServer(page, test);
  await test("hostile server: the page is as it was", async () => {
    const after = await snapshot(page);
    return Object.keys(before).flatMap((key) => unequal(after[key], before[key], key));
  });
  await page.close();
}

// ---- tools ----

/** @param {unknown} actual @param {unknown} wanted @param {string} [what] */
function unequal(actual, wanted, what = "got") {
  return actual === wanted ? [] : [`${what}: ${JSON.stringify(actual)?.slice(0, 500)}, not ${JSON.stringify(wanted)}`];
}

/** @param {number} ms */
function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Opens a page with secrets that records every message to it. @param {string} [site] */
async function openPage(site = host.site.url) {
  const page = await host.page(`${site}/tests/e2e/page.html`);
  await page.evaluate((secret) => {
    document.cookie = `secret=${secret}`;
    localStorage.setItem("secret", secret);
    const window = /** @type {any} */ (globalThis);
    window.secret = secret;
    window.sandboxes = [];
    window.heard = [];
    const hear = (/** @type {MessageEvent} */ event) => window.heard.push(String(event.data));
    window.addEventListener("message", hear);
    window.channel = new BroadcastChannel("sandglass");
    window.channel.onmessage = hear;
  }, SECRET);
  return page;
}

/** Facts of the page that an attack might change. @param {Page} page @returns {Promise<Record<string, any>>} */
async function snapshot(page) {
  const state = await page.evaluate(async () => {
    const window = /** @type {any} */ (globalThis);
    const ignored = ["begun", "ticks", "ticker"];
    return {
      globals: Object.getOwnPropertyNames(window)
        .filter((key) => !ignored.includes(key) && !/^\d+$/.test(key))
        .sort()
        .join(" "),
      prototypes: [Object, Array, Promise, Map, String, Function, MessagePort]
        .flatMap((type) => Reflect.ownKeys(type.prototype).map(String))
        .join(" "),
      natives: [fetch, JSON.parse, JSON.stringify, Promise.prototype.then, Array.prototype.push].map(String).join(),
      cookie: document.cookie,
      storage: JSON.stringify({ ...localStorage }),
      databases: JSON.stringify((await indexedDB.databases?.()) ?? []),
      // The package itself keeps this cache.
      caches: (await globalThis.caches?.keys())?.filter((name) => !name.startsWith("sandglass-")).join(),
      heard: window.heard.join(),
      title: document.title,
      location: location.href,
      dom: document.documentElement.outerHTML,
    };
  });
  return { ...state, dom: createHash("sha256").update(state.dom).digest("hex") };
}

/**
 * @typedef {object} Sandbox
 * @property {(code: string, options?: any, interruptAfterMs?: number) => Promise<any>} run
 * @property {() => Promise<void>} destroy
 * @property {() => Promise<void>} renew  replaces the sandbox by a new one
 */

/**
 * Creates a sandbox in a page. Its `llm_query` echoes the prompt.
 * @param {Page} page @param {any} options
 * @returns {Promise<{ sandbox: Sandbox, capabilities: any }>}
 */
async function create(page, options) {
  const start = () =>
    page.evaluate(async (options) => {
      const window = /** @type {any} */ (globalThis);
      const { createSandbox } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
      const onLLMQuery = async (/** @type {string} */ prompt) => {
        if (prompt === "never") return new Promise(() => {});
        if (prompt === "slow") await new Promise((resolve) => setTimeout(resolve, 400));
        if (prompt === "fail") throw new Error("failed");
        return prompt === "huge" ? "é".repeat(3_000_000) : `echo: ${prompt}`;
      };
      const sandbox = await createSandbox({ ...options, onLLMQuery });
      await sandbox.initialize(null);
      return { index: window.sandboxes.push(sandbox) - 1, capabilities: sandbox.capabilities };
    }, options);
  let { index, capabilities } = await start();
  const destroy = () => page.evaluate((index) => /** @type {any} */ (globalThis).sandboxes[index].destroy(), index);
  return {
    capabilities,
    sandbox: {
      run: (code, options = {}, interruptAfterMs) =>
        page.evaluate(
          async ({ index, code, options, interruptAfterMs }) => {
            const sandbox = /** @type {any} */ (globalThis).sandboxes[index];
            if (interruptAfterMs) setTimeout(() => sandbox.interrupt(), interruptAfterMs);
            return sandbox.execute(code, options);
          },
          { index, code, options, interruptAfterMs },
        ),
      destroy,
      renew: async () => {
        await destroy();
        ({ index } = await start());
      },
    },
  };
}

/** Starts a server that counts all requests. */
async function startCanary() {
  /** @type {string[]} */
  const hits = [];
  const server = createServer((request, response) => {
    hits.push(`${request.method} ${request.url}`);
    response.writeHead(200, {
      "Access-Control-Allow-Origin": "*",
      "Cross-Origin-Resource-Policy": "cross-origin",
      "Content-Type": "text/javascript",
    });
    response.end("export default 1");
  });
  server.on("upgrade", (request, socket) => {
    hits.push(`upgrade ${request.url}`);
    socket.destroy();
  });
  const { port, url, close } = await listen(server);
  return { hits, port, url, ws: `ws://127.0.0.1:${port}/ws`, close };
}
