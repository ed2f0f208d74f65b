// The contestants: how each is started, given a task, and ended.
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { launch } from "../../browsers.mjs";
import { root } from "../../project.mjs";
import { serve } from "../../serve.mjs";
import { endContainers, findContainers } from "./containers.mjs";

/**
 * A task for a contestant. A limit that it does not have is not given to it.
 * @typedef {{ task: string, file: string, url: string, model: string, subModel: string, code: string[], calls?: number, seconds?: number, allTokens?: number }} Order  `allTokens`: the most tokens of all models together
 * @typedef {{ answer?: string, error?: string, ahead?: { begun: number, used: number } }} Outcome  `ahead`: calls that began ahead
 * @typedef {object} Running  a started contestant
 * @property {string} version
 * @property {(order: Order) => Promise<Outcome>} ask
 * @property {() => (number | undefined)} process  the process whose family is its own
 * @property {() => Promise<string[]>} [containers]  the ids of containers that run for it
 * @property {() => Promise<number | void>} end  resolves to the number of containers that it has left
 * @typedef {object} Contestant
 * @property {keyof typeof import("./policies.mjs").CONVENTIONS} convention
 * @property {"all calls" | "sub-calls"} [calls]  the limit that `calls` sets
 * @property {boolean} [seconds]  has a limit of time
 * @property {boolean} [allTokens]  has a limit of tokens
 * @property {boolean} [isPage]  asks the model from a page
 * @property {boolean} [plain]  false: a form of another contestant, which takes part in few scenarios
 * @property {boolean} [faults]  false: takes no part in faults and limits, because its client is that of another contestant
 * @property {string} title  for readers
 * @property {string} isolation  of the code that the model writes
 * @property {(scratch: string) => Promise<Running>} start  `scratch`: a folder for its temporary files and its home
 */

/** Where pip installs the contestants in Python. */
export const RIVALS = join(root, ".setup/rlm-rivals");
/** The cache of Deno, which has what DSPy's interpreter imports. */
export const DENO_CACHE = join(root, ".setup/rlm-deno");

/** @type {Record<string, Contestant>} */
export const CONTESTANTS = {
  "map-reduce": {
    ...{ title: "`map-reduce`", convention: "sandglass", isolation: "none, and no model writes code" },
    start: python("map-reduce"),
  },
  "sandglass-host": {
    ...{ title: "`sandglass-host rlm`", convention: "sandglass" },
    ...{ calls: "all calls", seconds: true, allTokens: true },
    isolation: "namespaces, seccomp, Landlock",
    start: (scratch) => host(scratch, false),
  },
  "sandglass-host-ahead": {
    ...{ title: "– with `--ahead-calls`", convention: "sandglass", plain: false },
    isolation: "namespaces, seccomp, Landlock",
    start: (scratch) => host(scratch, true),
  },
  "sandglass-browser": {
    ...{ title: "`runRlm` in Chromium", convention: "sandglass" },
    ...{ calls: "all calls", seconds: true, allTokens: true },
    isPage: true,
    isolation: "WebAssembly in a worker of an opaque origin",
    start: (scratch) => browser(scratch, false),
  },
  "sandglass-browser-ahead": {
    ...{ title: "– with `aheadCalls`", convention: "sandglass", plain: false },
    isPage: true,
    isolation: "WebAssembly in a worker of an opaque origin",
    start: (scratch) => browser(scratch, true),
  },
  rlms: {
    ...{ title: "`rlms`", convention: "rlms", seconds: true, allTokens: true, isolation: "none" },
    start: python("rlms"),
  },
  "rlms-docker": {
    ...{ title: "`rlms` in Docker", convention: "rlms", seconds: true, isolation: "a container", faults: false },
    start: python("rlms-docker"),
  },
  dspy: {
    ...{ title: "`dspy`", convention: "dspy", calls: "sub-calls", isolation: "WebAssembly in Deno" },
    start: python("dspy"),
  },
  minrlm: {
    ...{ title: "`minrlm`", convention: "minrlm", calls: "sub-calls", seconds: true, isolation: "none" },
    start: python("minrlm"),
  },
};

/** @param {string} scratch @returns {NodeJS.ProcessEnv} */
function environment(scratch) {
  return {
    ...process.env,
    PATH: `${join(RIVALS, "bin")}:${process.env.PATH}`,
    HOME: scratch,
    TMPDIR: scratch,
    NO_COLOR: "1",
    DENO_DIR: DENO_CACHE,
    OPENAI_API_KEY: "no-key-is-needed",
  };
}

/** @param {string} name @returns {Contestant["start"]} */
function python(name) {
  return async (scratch) => {
    const command = join(RIVALS, "bin/python");
    const child = spawn(command, [join(root, "scripts/bench/rlm/rivals.py"), name], {
      env: environment(scratch),
      cwd: scratch,
      stdio: ["pipe", "pipe", "pipe"],
    });
    let said = "";
    child.stderr.setEncoding("utf8").on("data", (text) => (said = (said + text).slice(-4000)));
    child.stdin.on("error", () => undefined); // the child has ended, which `next` reports
    const ended = new Promise((resolve) => child.once("close", resolve));
    const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
    const next = async () => {
      const { value, done } = await lines.next();
      return done ? { error: `it has ended: ${said.trim().split("\n").at(-1)}` } : JSON.parse(value);
    };
    const { ready, error } = await next();
    if (error) throw new Error(error);
    return {
      version: ready,
      ask: (order) => {
        child.stdin.write(`${JSON.stringify(order)}\n`);
        return next();
      },
      process: () => child.pid,
      ...(name === "rlms-docker" && { containers: findContainers }),
      async end() {
        child.stdin.end();
        const timer = setTimeout(() => child.kill("SIGKILL"), 5000);
        await ended;
        clearTimeout(timer);
        // A controller that was killed leaves its container.
        if (name === "rlms-docker") return endContainers();
      },
    };
  };
}

/** The command-line program. Each task starts it anew, and that time counts. @param {string} scratch @param {boolean} callsAhead @returns {Promise<Running>} */
async function host(scratch, callsAhead) {
  const program = process.env.SANDGLASS_HOST ?? join(root, "target/release/sandglass-host");
  /** @type {import("node:child_process").ChildProcess | undefined} */
  let child;
  return {
    version: await output(program, ["--version"]).then((text) => text.trim().split(" ").at(-1) ?? ""),
    async ask({ task, file, url, model, subModel, calls, seconds, allTokens }) {
      const limits = [
        ...(calls ? ["--budget-calls", `${calls}`] : []),
        ...(allTokens ? ["--budget-tokens", `${allTokens}`] : []),
        ...(seconds ? ["--budget-time", `${seconds}`] : []),
        ...(callsAhead ? ["--ahead-calls"] : []),
      ];
      const args = [
        "rlm",
        file,
        "--backend",
        "bubblewrap",
        "--task",
        task,
        "--url",
        url,
        "--model",
        model,
        "--sub-model",
        subModel,
        ...limits,
      ];
      let [answer, said] = ["", ""];
      child = spawn(program, args, { env: environment(scratch), cwd: scratch, stdio: ["ignore", "pipe", "pipe"] });
      child.stdout?.setEncoding("utf8").on("data", (text) => (answer += text));
      child.stderr?.setEncoding("utf8").on("data", (text) => (said = (said + text).slice(-4000)));
      const code = await new Promise((resolve) => child?.once("close", resolve));
      const [, used, begun] = /called ahead: (\d+) of (\d+) calls/.exec(said) ?? [];
      return code === 0
        ? { answer: answer.trimEnd(), ahead: { begun: Number(begun ?? 0), used: Number(used ?? 0) } }
        : { error: said.trim().split("\n").at(-1) ?? `exit status ${code}` };
    },
    process: () => child?.pid,
    async end() {
      child?.kill("SIGKILL");
    },
  };
}

/** `runRlm` in a page of Chromium. @param {string} scratch @param {boolean} callsAhead @returns {Promise<Running>} */
async function browser(scratch, callsAhead) {
  const site = await serve(root, { folders: { data: scratch, node_modules: join(root, "node_modules") } });
  // The model's certificate is made for this run.
  const homes = { HOME: scratch, XDG_CONFIG_HOME: join(scratch, "config"), XDG_CACHE_HOME: join(scratch, "cache") };
  const env = { TMPDIR: scratch, ...homes };
  const chromium = await launch("chromium", { args: ["--ignore-certificate-errors"], env });
  const page = await chromium.newPage();
  await page.goto(`${site.url}/tests/e2e/page.html`);
  await page.evaluate(async () => {
    /** @type {any} */ (window).rlm = await import(/** @type {any} */ ("/pyodide-glue/rlm.js"));
  });
  const files = mkdtempSync(join(scratch, "files-"));
  return {
    version: `${JSON.parse(readFileSync(join(root, "package.json"), "utf8")).version}, ${await chromium.version()}`,
    async ask({ task, file, url, model, subModel, calls, seconds, allTokens }) {
      const copy = join(files, "context.txt");
      writeFileSync(copy, readFileSync(file));
      const path = `/data/${copy.slice(scratch.length + 1)}`;
      return page.evaluate(
        async (order) => {
          const context = await (await fetch(order.path, { cache: "no-store" })).text();
          const endpoint = { baseUrl: order.url, apiKey: "no-key-is-needed" };
          const run = await /** @type {any} */ (window).rlm.runRlm({
            task: order.task,
            context,
            model: { ...endpoint, model: order.model },
            subModel: { ...endpoint, model: order.subModel },
            ...(Object.keys(order.budget).length > 0 && { budget: order.budget }),
            aheadCalls: order.callsAhead,
          });
          const count = (/** @type {string} */ type, /** @type {string} */ key) =>
            run.events.filter((/** @type {any} */ event) => event.type === type && event[key]).length;
          const begun = count("callStarted", "ahead");
          const ahead = { begun, used: begun - count("callEnded", "wasted") };
          return run.outcome !== "answered"
            ? { error: `${run.outcome}: ${run.error}` }
            : { answer: String(run.answer), ahead };
        },
        {
          ...{ task, path, url, model, subModel, callsAhead },
          budget: {
            ...(calls && { maxCalls: calls }),
            ...(seconds && { maxTime: seconds * 1000 }),
            ...(allTokens && { maxTokens: allTokens }),
          },
        },
      );
    },
    process: () => chromium.process()?.pid,
    async end() {
      await chromium.close();
      await site.close();
      rmSync(files, { recursive: true });
    },
  };
}

/** @param {string} program @param {string[]} args @returns {Promise<string>} */
async function output(program, args) {
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "inherit"] });
  let text = "";
  child.stdout.setEncoding("utf8").on("data", (piece) => (text += piece));
  await new Promise((resolve, reject) => child.once("close", resolve).once("error", reject));
  return text;
}
