// npm run bench: the costs of Sandglass, beside its rivals, in one run and one browser.
//   node scripts/bench.mjs [--browser chromium|firefox] [--quick] [--visits] [--kept] [--rivals jupyterlite]
//   --visits: first and later visits only; --kept: sessions that the browser keeps only
import { existsSync } from "node:fs";
import { cpus } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { megabytes } from "./processes.mjs";
import { quantile } from "./bench/quantile.mjs";
import { serveSlowly } from "./bench/line.mjs";
import { launch } from "./browsers.mjs";
import { root } from "./project.mjs";
import { CROSS_ORIGIN_ISOLATED, serve } from "./serve.mjs";

const { values } = parseArgs({
  options: {
    browser: { type: "string", default: "chromium" },
    quick: { type: "boolean", default: false },
    rivals: { type: "string", default: "" },
    visits: { type: "boolean", default: false },
    kept: { type: "boolean", default: false },
  },
});
const name = /** @type {"chromium" | "firefox"} */ (values.browser);

// Isolated pages have finer clocks: 5 µs instead of 100 µs in Chromium, 20 µs instead of 1 ms in Firefox.
// All competitors' files may be cached, as on a real site.
const headers = { ...CROSS_ORIGIN_ISOLATED, "Cache-Control": "max-age=3600" };
// node_modules may be a link that leads out of this folder, so it is served by name.
const folders = { node_modules: join(root, "node_modules"), ...(await rivals(values.rivals)) };
const server = await serve(root, { headers, folders });
const browser = await launch(name);
/** A line's speed in Mbit/s, for the benchmark of first visits. */
const LINE = 20;
/** Durations of main-thread tasks over 50 ms, by benchmark. @type {Map<string, number[]>} */
const blocked = new Map();

try {
  console.log(`Sandglass benchmarks: ${await browser.version()}, ${cpus().length} × ${cpus()[0]?.model}`);
  console.log("Milliseconds; competitors take turns; p50 is the median, p90 the ninth decile.\n");

  const boots = values.quick ? 1 : 9;
  if (values.kept) await keptSessions();
  else await all(boots);
} finally {
  await browser.close();
  await server.close();
}

/** @param {number} boots */
async function all(boots) {
  const { first, later } = await visits(boots);
  table("A first visit, nothing cached: from createSandbox to the first result", first, "loadPyodide");
  const cold = { ...later, "cold start": first.loadPyodide ?? [] };
  table("A later visit; the cold start is loadPyodide's first visit", cold, "cold start");
  await overLine(values.quick ? 1 : 5);
  table("The first paint of the playground, from the start of the navigation", await paints(values.quick ? 1 : 15));
  if (!values.visits) await onAPage(boots);
}

async function keptSessions() {
  table(
    "A session that the browser keeps, 100 MB of state, beside the same made anew",
    await run("kept", values.quick ? 1 : 5),
  );
  for (const ms of [1000, 100, 0]) {
    const samples = await run("journal", ms, values.quick ? 2 : 9);
    table(`A kept session: an execution of 10 calls that take the host ${ms} ms each`, samples, "withoutJournal");
  }
}

/** All but the visits. @param {number} boots */
async function onAPage(boots) {
  table("A second sandbox on a page", await run("secondSandbox", boots), "loadPyodide");
  await keptSessions();
  table("After a guest had to be terminated, 10 MB of state", await run("recovery", values.quick ? 2 : 9));
  for (const gap of [100, 4]) {
    const samples = await run("checkpoint", gap, values.quick ? 10 : 60);
    table(`execute ${gap} ms after another, 50 MB of state, checkpoints off and auto`, samples, "off");
  }

  const spaced = await run("roundTrip", values.quick ? 50 : 300, 4);
  table("Round trips, 4 ms apart (as between a model's cells)", spaced, "echo");

  const dense = await run("roundTrip", values.quick ? 50 : 300);
  table("Round trips, back to back", dense, "echo");

  for (const ms of [100, 0]) {
    const samples = await run("batch", ms, values.quick ? 3 : 20);
    table(`A batch of 50 calls that take the model ${ms} ms each`, samples, "ideal");
  }

  for (const megabytes of [1, 10, 100]) {
    const rounds = values.quick ? 1 : megabytes > 10 ? 3 : 7;
    table(`initialize with ${megabytes} MB of text`, await run("initialize", megabytes, rounds), "globalsSet");
  }
  const large = values.quick ? 20 : 200;
  const shapes = await run("contexts", large, values.quick ? 1 : 3);
  table(`initialize with ${large} MB: a text, a file, documents of 100 000 characters, lines of 1000`, shapes);

  table("getVariable of 10 MB of text", await run("getVariable", values.quick ? 1 : 7), "globalsGet");

  if (existsSync("/proc/self/smaps_rollup")) await memory();

  if (name === "chromium") {
    console.log("Main-thread tasks over 50 ms");
    for (const [what, tasks] of blocked) {
      console.log(
        `  ${what.padEnd(24)} ${tasks.length ? tasks.map((ms) => `${ms.toFixed(0)} ms`).join(", ") : "none"}`,
      );
    }
  }
}

/**
 * Measures first visits over a line with nothing cached, and prints what each competitor fetches.
 * @param {number} times
 */
async function overLine(times) {
  const line = await serveSlowly(root, folders, (LINE * 1e6) / 8, headers);
  /** @type {Record<string, number[]>} */
  const samples = { sandglass: [], loadPyodide: [] };
  /** @type {Record<string, number>} */
  const bytes = {};
  try {
    // The first round is for the server, which compresses each file once.
    for (let time = -1; time < times; time++) {
      for (const competitor of time % 2 ? ["loadPyodide", "sandglass"] : ["sandglass", "loadPyodide"]) {
        const context = await browser.createBrowserContext();
        line.takeSent();
        const [ms] = (await runIn(context, line.url, "boot", competitor))[competitor] ?? [];
        await context.close();
        bytes[competitor] = line.takeSent();
        if (time >= 0 && ms !== undefined) samples[competitor]?.push(ms);
      }
    }
  } finally {
    await line.close();
  }
  table(`A first visit over a line of ${LINE} Mbit/s, nothing cached`, samples, "loadPyodide");
  for (const [competitor, sent] of Object.entries(bytes))
    console.log(`  ${competitor.padEnd(14)} ${(sent / 1e6).toFixed(1)} MB over the line, compressed by brotli`);
  console.log();
}

/**
 * Downloads the rivals that were asked for. Returns their folders by name.
 * @param {string} names
 * @returns {Promise<Record<string, string>>}
 */
async function rivals(names) {
  if (names === "") return {};
  if (names !== "jupyterlite") throw new Error(`unknown rival "${names}": jupyterlite`);
  const { prepare } = await import("./bench/jupyterlite.mjs");
  return { jupyterlite: await prepare() };
}

/**
 * Runs a benchmark in a page of its own.
 * @param {string} benchmark
 * @param {unknown[]} args
 */
function run(benchmark, ...args) {
  return runIn(browser, server.url, benchmark, ...args);
}

/**
 * @param {import("puppeteer-core").Browser | import("puppeteer-core").BrowserContext} context
 * @param {string} url  the server's
 * @param {string} benchmark
 * @param {unknown[]} args
 * @returns {Promise<Record<string, number[]>>}
 */
async function runIn(context, url, benchmark, ...args) {
  const page = await context.newPage();
  page.on("pageerror", (error) => console.error(error));
  await page.goto(`${url}/scripts/bench/index.html?rivals=${values.rivals}`);
  await page.waitForFunction("window.bench");
  const { samples, longTasks } = await page.evaluate(
    // @ts-expect-error: scripts/bench/page.js defines it
    (benchmark, args) => window.bench(benchmark, ...args),
    benchmark,
    args,
  );
  await page.close();
  const title = [benchmark, ...args].join(" ");
  blocked.set(title, [...(blocked.get(title) ?? []), ...longTasks]);
  return samples;
}

/**
 * Measures a first visit and a later one, `times` times for each competitor. Each pair has a browser of its own, so that no
 * visit finds files or caches of an earlier pair. A browser context would do the same, but its cache is in memory and keeps no
 * file as large as Python's module.
 * @param {number} times
 */
async function visits(times) {
  const competitors = ["sandglass", "loadPyodide", ...(values.rivals ? [values.rivals] : [])];
  /** @type {Record<"first" | "later", Record<string, number[]>>} */
  const all = { first: {}, later: {} };
  for (let time = 0; time < times; time++) {
    for (const competitor of time % 2 ? competitors.toReversed() : competitors) {
      const own = await launch(name);
      for (const visit of /** @type {const} */ (["first", "later"])) {
        const samples = await runIn(own, server.url, "boot", competitor);
        (all[visit][competitor] ??= []).push(...(samples[competitor] ?? []));
      }
      await own.close();
    }
  }
  return all;
}

/**
 * Measures the playground's first paint in a first visit and a later one, as the browser reports it.
 * @param {number} times
 */
async function paints(times) {
  /** @type {Record<string, number[]>} */
  const samples = { "first visit": [], "later visit": [] };
  for (let time = 0; time < times; time++) {
    const context = await browser.createBrowserContext();
    for (const visit of Object.values(samples)) {
      const page = await context.newPage();
      await page.goto(`${server.url}/www/`);
      const paint = page.evaluate(
        () =>
          /** @type {Promise<number>} */ (
            new Promise((resolve) => {
              const find = (/** @type {PerformanceObserverEntryList} */ list) =>
                list.getEntriesByName("first-contentful-paint").forEach(({ startTime }) => resolve(startTime));
              new PerformanceObserver(find).observe({ type: "paint", buffered: true });
            })
          ),
      );
      visit.push(await paint);
      await page.close();
    }
    await context.close();
  }
  return samples;
}

/**
 * @param {string} title
 * @param {Record<string, number[]>} samples
 * @param {string} [baseline]
 */
function table(title, samples, baseline) {
  const base = quantile((baseline && samples[baseline]) || [], 0.5);
  console.log(title);
  for (const [competitor, times] of Object.entries(samples)) {
    const p50 = quantile(times, 0.5);
    const ratio = !baseline || competitor === baseline ? "" : `${(p50 / base).toFixed(2)} × ${baseline}`;
    const faster = base / p50 > 1.5 ? `  (${(base / p50).toFixed(1)} times faster)` : "";
    const [mid, high] = [p50, quantile(times, 0.9)].map((ms) => ms.toFixed(ms < 10 ? 3 : 0).padStart(9));
    console.log(
      `  ${competitor.padEnd(14)} p50 ${mid}   p90 ${high}   n ${String(times.length).padEnd(4)} ${ratio}${faster}`,
    );
  }
  console.log();
}

/** Prints the memory of sandboxes at rest: the growth of the proportional set size of all of the browser's processes. */
async function memory() {
  const page = await browser.newPage();
  await page.goto(`${server.url}/scripts/bench/index.html`);
  await page.waitForFunction("window.keep");
  console.log("Memory of sandboxes at rest (MB, all of the browser's processes)");
  let before = await megabytesAtRest();
  for (const [what, options] of /** @type {[string, object | undefined][]} */ ([
    ["the first sandbox", { spares: 0 }],
    ["the second", { spares: 0 }],
    ["the third, and a spare", { spares: 1 }],
    ["plain loadPyodide", undefined],
  ])) {
    let peak = 0;
    const watch = setInterval(() => (peak = Math.max(peak, browserMegabytes())), 100);
    // @ts-expect-error: scripts/bench/page.js defines it
    await page.evaluate((options) => window.keep(options), options);
    const after = await megabytesAtRest();
    clearInterval(watch);
    const [grown, most] = [after - before, Math.max(peak, after) - before].map((mb) => mb.toFixed(0).padStart(5));
    console.log(`  ${what.padEnd(24)} ${grown}   at most ${most} while it started`);
    before = after;
  }
  console.log();
  await page.close();
}

/** Memory after some seconds, in which spares start, states are saved and garbage is collected. */
async function megabytesAtRest() {
  await new Promise((resolve) => setTimeout(resolve, 4000));
  return browserMegabytes();
}

/** The browser's memory in MB. */
function browserMegabytes() {
  return megabytes(browser.process()?.pid);
}
