// Sandboxes with guests on a server, while the server is absent, refuses, or goes away.
import { createServer } from "node:net";
import { startProxy } from "./cutting.mjs";
import { KEY, startHost } from "./host.mjs";
import { listen } from "../../scripts/serve.mjs";
import { NOBODY } from "./harness.mjs";

/** Connections that break in the test of that: SANDGLASS_CUTS=1000 for the long form. */
const CUTS = Number(process.env.SANDGLASS_CUTS ?? 60);
/** Lines of one execution there. */
const LINES = 20;
/** Time in which the server must notice that a page has gone. */
const IN_TIME_MS = 60_000;

/** @typedef {{ outcome: string, result?: string, error?: string, stdout: string, state: { status: string, lost?: { name: string }[] } }} Run */

/**
 * @param {{ backend: string, origin: string, page: import("puppeteer-core").Page, score: import("./harness.mjs").Score, only: string }} options
 */
export async function testBackend({ backend, origin, page, score, only }) {
  /** @param {string} name @param {() => Promise<string[]>} test */
  const check = async (name, test) => {
    if (!`backend/${name}`.includes(only)) return;
    try {
      score.add(`backend/${name}`, await test());
    } catch (error) {
      score.fail(`backend/${name}`, [String(/** @type {Error} */ (error).stack ?? error)]);
    }
  };
  const create = (/** @type {object} */ options) =>
    page.evaluate(async (options) => {
      const { createSandbox } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
      try {
        const sandbox = await createSandbox(options);
        await sandbox.destroy();
        return "a sandbox";
      } catch (/** @type {any} */ error) {
        return `${error.name} ${error.code}: ${error.message}`;
      }
    }, options);

  await check("a server that is not there is told", async () => {
    const text = await create({ backend: { url: NOBODY } });
    return differs(text, "SandboxError backend_unavailable: no sandglass-host server answers", "sandglass-host serve");
  });
  await check("something else than a server is told", async () => {
    const text = await create({ backend: { url: origin } });
    return differs(text, "SandboxError backend_unavailable: what answers", "no sandglass-host server");
  });

  await check("a key that is missing, wrong or right", async () => {
    const host = await startHost({ backend, origin });
    try {
      const { url } = host;
      return [
        ...differs(await create({ backend: { url } }), "backend_unavailable", "pass backend.apiKey"),
        ...differs(
          await create({ backend: { url, apiKey: "x".repeat(20) } }),
          "backend_unavailable",
          "does not accept backend.apiKey",
        ),
        ...differs(await create({ backend: { url: `${url}/`, apiKey: KEY } }), "a sandbox"),
      ];
    } finally {
      await host.stop();
    }
  });
  await check("a page of another origin is refused", async () => {
    const host = await startHost({ backend, origin: "https://example.com" });
    try {
      const text = await create({ backend: { url: host.url, apiKey: KEY } });
      return differs(text, "backend_unavailable", "--allow-origin");
    } finally {
      await host.stop();
    }
  });
  await check("limits of the server are told", async () => {
    const settings = ["--max-sessions", "1", "--max-memory-mib", "512"];
    const host = await startHost({ backend, origin, settings });
    const server = { url: host.url, apiKey: KEY };
    try {
      const large = await create({ backend: server, memoryLimit: 1e9 });
      const second = await page.evaluate(async (backend) => {
        const { createSandbox } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
        const first = await createSandbox({ backend });
        const second = await createSandbox({ backend }).catch((/** @type {any} */ error) => error);
        await first.destroy();
        return `${second.code}: ${second.message}`;
      }, server);
      return [
        ...differs(large, "backend_unavailable", "these limits", "memoryLimit"),
        ...differs(second, "backend_unavailable", "no room for another"),
      ];
    } finally {
      await host.stop();
    }
  });

  await check("a channel that the server refuses is told with its reason", async () => {
    const host = await startHost({ backend, origin });
    try {
      await page.evaluate(() => {
        const { WebSocket } = globalThis;
        globalThis.WebSocket = class extends WebSocket {
          /** @param {string} url @param {string[]} protocols */
          constructor(url, protocols) {
            super(url.replace(/sessions.[^/]+/, "sessions/gone"), protocols);
            globalThis.WebSocket = WebSocket;
          }
        };
      });
      const text = await create({ backend: { url: host.url, apiKey: KEY } });
      return differs(text, "backend_unavailable", 'did not open its channel: there is no session "gone"');
    } finally {
      await host.stop();
    }
  });
  await check("a sandbox that is destroyed, or whose page is closed, leaves no session", async () => {
    const host = await startHost({ backend, origin, settings: ["--max-sessions", "1"] });
    const server = { url: host.url, apiKey: KEY };
    try {
      const first = await create({ backend: server });
      const other = await page.browser().newPage();
      await other.goto(page.url());
      // The first sandbox's session ends by itself a moment later, which makes room.
      const second = await other.evaluate(createInTime, server, IN_TIME_MS);
      await other.close();
      const third = await page.evaluate(createInTime, server, IN_TIME_MS);
      await page.evaluate(() => /** @type {any} */ (window).sandbox.destroy());
      return [first, second, third].flatMap((text) => differs(text, "a sandbox"));
    } finally {
      await host.stop();
    }
  });
  await check("a server that stands still is not waited for without end", async () => {
    if (backend !== "subprocess") return []; // the connection is the same for all
    const host = await startHost({ backend, origin });
    try {
      await page.evaluate(
        async (backend) => {
          const { createSandbox } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
          const sandbox = await createSandbox({ backend, timeout: 500, gracePeriod: 100, bootTimeout: 30_000 });
          await sandbox.initialize("the context");
          /** @type {any} */ (window).sandbox = sandbox;
        },
        { url: host.url, apiKey: KEY },
      );
      await host.pause();
      const run = await page.evaluate(() => /** @type {any} */ (window).sandbox.execute("1"));
      const stalled = await page.evaluate(() => {
        const { sandbox } = /** @type {any} */ (window);
        return sandbox.execute("1").catch((/** @type {any} */ error) => `${error.code}: ${error.message}`);
      });
      host.goOn();
      const after = await page.evaluate(async () => {
        const { sandbox } = /** @type {any} */ (window);
        const run = await sandbox.execute("context", { timeout: 30_000 }); // the guest first works off the messages that it missed
        await sandbox.destroy();
        return run;
      });
      return [
        ...differs(run.outcome, "timeout"),
        ...differs(stalled, "boot_failed", "bootTimeout"),
        ...differs(after.result ?? "", "'the context'"),
      ];
    } finally {
      await host.stop();
    }
  });

  await check("nothing is lost or doubled when connections break", async () => {
    if (backend !== "subprocess") return []; // the connection is the same for all
    const host = await startHost({ backend, origin, settings: ["--requests-per-second", "10000"] });
    const proxy = await startProxy(host.url);
    try {
      await page.evaluate(
        async (backend) => {
          const { createSandbox } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
          /** @type {number[]} */
          const effects = [];
          const hostFunctions = {
            effect: (/** @type {number} */ number) => {
              effects.push(number);
              return 2 * number;
            },
          };
          const sandbox = await createSandbox({ backend, hostFunctions, timeout: 60_000 });
          await sandbox.initialize("the context");
          Object.assign(window, { sandbox, effects });
        },
        { url: proxy.url, apiKey: KEY },
      );
      proxy.isOn = true;
      /** @type {string[]} */
      const problems = [];
      for (let begin = 0; proxy.cuts < CUTS && !problems.length; begin += LINES) {
        const told = await page.evaluate(runLines, begin, LINES);
        const numbers = Array.from({ length: LINES }, (_, index) => begin + index);
        const wanted = {
          effects: numbers,
          stdout: numbers.map((number) => `line ${number}\n`).join(""),
          heard: numbers.map((number) => `line ${number}\n`).join(""),
          shown: numbers.map(String),
          outcome: "ok",
          isSame: true,
        };
        if (JSON.stringify(told) !== JSON.stringify(wanted)) problems.push(JSON.stringify(told));
      }
      proxy.isOn = false;
      const last = await page.evaluate(() => /** @type {any} */ (window).sandbox.execute("context"));
      await page.evaluate(() => /** @type {any} */ (window).sandbox.destroy());
      return [...problems, ...differs(last.result ?? "", "'the context'")];
    } finally {
      await proxy.stop();
      await host.stop();
    }
  });

  await check("a session that is gone is not waited for", async () => {
    if (backend !== "subprocess") return []; // the connection is the same for all
    const port = await freePort();
    let host = await startHost({ backend, origin, port });
    try {
      await page.evaluate(
        async (backend) => {
          const { createSandbox } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
          const sandbox = await createSandbox({ backend });
          await sandbox.initialize(null);
          Object.assign(globalThis, { sandbox, run: sandbox.execute("import time; time.sleep(1000)") });
        },
        { url: host.url, apiKey: KEY },
      );
      await host.stop("SIGKILL");
      host = await startHost({ backend, origin, port }); // knows no session
      const run = await page.evaluate(() => /** @type {any} */ (globalThis).run);
      await page.evaluate(() => /** @type {any} */ (globalThis).sandbox.destroy());
      return [
        ...differs(run.outcome, "crashed"),
        ...differs(run.error ?? "", "there is no session", "variables are lost"),
      ];
    } finally {
      await host.stop();
    }
  });

  const dies = async (/** @type {object} */ options) => {
    const port = await freePort();
    const settings = ["--reconnect-within", "0.5"];
    let host = await startHost({ backend, origin, port, settings });
    try {
      const begun = page.evaluate(
        async (backend, options) => {
          const { createSandbox } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
          const sandbox = await createSandbox({ backend, ...options });
          await sandbox.initialize("the context");
          await sandbox.execute("x = 1");
          /** @type {any} */ (window).sandbox = sandbox;
          return new Promise((resolve) => {
            /** @type {any} */ (window).run = sandbox.execute("import time\nprint('begun')\ntime.sleep(1000)", {
              onStdout: resolve,
            });
          });
        },
        { url: host.url, apiKey: KEY },
        options,
      );
      await begun;
      await host.stop("SIGKILL");
      const died = /** @type {Run} */ (await page.evaluate(() => /** @type {any} */ (window).run));
      const unavailable = await page.evaluate(async () => {
        const { sandbox } = /** @type {any} */ (window);
        return sandbox.getVariable("x").catch((/** @type {any} */ error) => `${error.code}: ${error.message}`);
      });
      host = await startHost({ backend, origin, port, settings });
      const after = /** @type {Run} */ (
        await page.evaluate(async () => {
          const { sandbox } = /** @type {any} */ (window);
          const run = await sandbox.execute("context, 'x' in globals()");
          await sandbox.destroy();
          return run;
        })
      );
      return [
        ...differs(died.outcome, "crashed"),
        ...differs(died.stdout, "begun"),
        ...differs(died.error ?? "", "the connection to the sandglass-host server", "variables are lost"),
        ...differs(JSON.stringify(died.state), '"status":"lost"', '"name":"x"'),
        ...differs(unavailable, "backend_unavailable", "no sandglass-host server answers"),
        ...differs(after.result ?? "", "('the context', False)"),
      ];
    } finally {
      await host.stop();
    }
  };
  await check("a server that dies takes the state along, and the next one goes on", () => dies({}));
  if (backend === "docker") {
    await check("a server without checkpoints says so", async () => {
      const host = await startHost({ backend, origin });
      try {
        const text = await create({ backend: { url: host.url, apiKey: KEY }, checkpoints: 2 });
        return differs(text, "backend_unavailable", "checkpoints", "docker");
      } finally {
        await host.stop();
      }
    });
  } else {
    await check("a server that dies takes all checkpoints along", () => dies({ checkpoints: 3 }));
  }
}

/**
 * Runs code with output, displays, calls and a file. Runs in a page.
 * @param {number} begin @param {number} count
 */
async function runLines(begin, count) {
  const { sandbox, effects } = /** @type {any} */ (window);
  effects.length = 0;
  let heard = "";
  /** @type {string[]} */
  const shown = [];
  const code = `
for number in range(${begin}, ${begin + count}):
    print("line", number)
    assert effect(number) == 2 * number
    display({"text/plain": str(number)}, raw=True)
`;
  const run = await sandbox.execute(code, {
    onStdout: (/** @type {string} */ text) => (heard += text),
    onDisplay: (/** @type {{ data: string }} */ { data }) => shown.push(data),
  });
  const data = new Uint8Array((begin % 7) * 100_000).fill(begin);
  await sandbox.writeFile("data", data);
  const read = await sandbox.readFile("data");
  const isSame =
    read.length === data.length &&
    data.every((/** @type {number} */ byte, /** @type {number} */ at) => byte === read[at]);
  return { effects: [...effects], stdout: run.stdout, heard, shown, outcome: run.error ?? run.outcome, isSame };
}

/**
 * Creates a sandbox as soon as there is room for it. Runs in a page.
 * @param {object} backend @param {number} ms
 */
async function createInTime(backend, ms) {
  const { createSandbox } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
  const end = performance.now() + ms;
  for (;;) {
    try {
      /** @type {any} */ (window).sandbox = await createSandbox({ backend });
      return "a sandbox";
    } catch (/** @type {any} */ error) {
      if (performance.now() > end) return `${error.code}: ${error.message}`;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
}

/** Parts of `wanted` that are missing in a text. @param {string} text @param {string[]} wanted */
function differs(text, ...wanted) {
  return wanted.filter((part) => !text.includes(part)).map((part) => `expected ${part} in ${text}`);
}

/** A port that was free a moment ago. */
async function freePort() {
  const { port, close } = await listen(createServer());
  await close();
  return port;
}
