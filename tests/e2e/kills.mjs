// Chromium that is killed at random moments, in the middle of host calls too, and a sandbox that goes on in the same profile.
//   node tests/e2e/kills.mjs [--kills 10] [--seed N]
// After each kill the kept session is compared with a model of every variable, executions of earlier pages are replayed, and the host calls are
// compared with a book that is kept outside of the browser. No execution that was kept is lost, and no answered call is made again.
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { family, findProcess } from "../../scripts/processes.mjs";
import { launch } from "../../scripts/browsers.mjs";
import { listen, root, Score, serve } from "./harness.mjs";
import { Book } from "./kills-book.mjs";
import { randomness } from "./tools.js";

const { values } = parseArgs({
  options: {
    kills: { type: "string", default: "10" },
    seed: { type: "string", default: `${Date.now() % 1_000_000}` },
  },
});
const wanted = Number(values.kills);
/** The longest time without a word from a page, in milliseconds. */
const PATIENCE_MS = 300_000;
/** The time after which a page is killed that has not come to the moment that was drawn, in milliseconds. */
const LONGEST_VISIT_MS = 15_000;
/** A word on the command line of a process that runs pages. */
const RENDERER = "--type=renderer";

/** Keeps Chromium from giving the next page a process that was killed while it waited for one. */
const NO_SPARES = ["--disable-features=SpareRendererForSitePerProcess"];

const random = randomness(Number(values.seed));
/** A random whole number below `limit`. @param {number} limit */
const below = (limit) => Math.floor(random() * limit);
const score = new Score();
const book = new Book(below);
const counts = { browsers: 0, pages: 0, inCalls: 0, late: 0, replaced: 0 };

/** @import { Moment } from "./kills-book.mjs" */
/**
 * The moment of a kill: so many milliseconds after the `count`th such event. A call that has `arrived` gets no answer.
 * @typedef {{ moment: Moment | "begun" | "answered", count: number, ms: number, victim: "browser" | "page" }} Plan
 */

/** @returns {Plan} */
function drawPlan() {
  /** @type {[Plan["moment"], number, number][]} */
  const plans = [
    ["begun", 1, 3000],
    ["opened", 1, 1000],
    ["looked", 1, 1000],
    ["arrived", 6, 1],
    ["arrived", 6, 1],
    ["answered", 6, 4],
    ["answered", 6, 20],
    ["stored", 6, 4],
    ["ended", 6, 80],
  ];
  const [moment, most, ms] = /** @type {[Plan["moment"], number, number]} */ (plans[below(plans.length)]);
  return { moment, count: 1 + below(most), ms: below(ms), victim: below(3) === 0 ? "browser" : "page" };
}

const site = await serve(root, { folders: { node_modules: join(root, "node_modules") } });
const profile = mkdtempSync(join(tmpdir(), "sandglass-kills-"));
/** @type {import("puppeteer-core").Browser | undefined} */
let browser;
/** Hears of a moment of the page that is open. Returns true if the page is killed for it. @type {(moment: Plan["moment"]) => boolean} */
let meets = () => false;
let heardAt = Date.now();

const server = createServer((request, response) => {
  let text = "";
  request.on("data", (part) => (text += part));
  request.on("end", () => {
    heardAt = Date.now();
    const said = JSON.parse(text);
    const { answer, moment } = book.hear(said);
    const isPresent = said.visit === book.visit;
    if (isPresent && moment && meets(moment) && moment === "arrived") return;
    response.writeHead(200, { "access-control-allow-origin": "*" });
    response.end(JSON.stringify(answer), () => isPresent && moment === "arrived" && meets("answered"));
  });
});
const { url, close } = await listen(server);

try {
  await visit(undefined);
  while (counts.browsers + counts.pages < wanted && book.wrong.length === 0) await visit(drawPlan());
  book.isLast = true;
  if (book.wrong.length === 0) await visit(undefined);
} catch (error) {
  book.wrong.push(String(/** @type {Error} */ (error).stack ?? error));
} finally {
  await browser?.close().catch(() => {});
  await site.close();
  await close();
  if (book.wrong.length > 0) console.log(`the profile stays, to be looked at: ${profile}`);
  else rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
}
const kills = counts.browsers + counts.pages;
console.log(`seed ${values.seed}, ${kills} kills: ${JSON.stringify({ ...counts, ...book.counts })}`);
score.add("nothing that was kept is lost, and no answered call is made again", book.wrong);
score.add("pages were killed, and executions of earlier pages were replayed", [
  ...(kills >= wanted ? [] : [`${kills} kills`]),
  ...(book.counts.earlier > 0 ? [] : ["nothing was replayed"]),
]);
score.end();

/** Opens a page, and kills it as planned. Without a plan, the page does what the book says, to the end. @param {Plan | undefined} plan */
async function visit(plan) {
  book.visit += 1;
  book.isOver = false;
  const page = await openPage();
  const program = browser?.process()?.pid;
  const ends = { resolve: () => {}, reject: (/** @type {Error} */ _) => {} };
  const ended = new Promise((resolve, reject) => Object.assign(ends, { resolve: () => resolve(undefined), reject }));
  let isKilled = false;
  let seen = 0;
  /** @type {Process[]} */
  let found = [];
  const look = () => {
    const all = family(program);
    found = plan?.victim === "browser" ? all : all.filter(({ id }) => isRenderer(id));
  };
  const kill = () => {
    if (isKilled) return;
    isKilled = true;
    for (const victim of found) end(victim);
    look(); // processes that have come meanwhile
    for (const victim of found) end(victim);
    ends.resolve();
  };
  meets = (moment) => {
    if (moment === "opened") look();
    if (moment !== plan?.moment || ++seen !== plan.count) return false;
    if (moment === "arrived" || moment === "answered") counts.inCalls += 1;
    if (plan.ms === 0) kill();
    else setTimeout(kill, plan.ms);
    return true;
  };
  heardAt = Date.now();
  const begun = heardAt;
  const watch = setInterval(() => {
    if (Date.now() > heardAt + PATIENCE_MS) ends.reject(new Error(`page ${book.visit} hangs`));
    if (!plan || isKilled || Date.now() < begun + LONGEST_VISIT_MS) return;
    counts.late += 1;
    kill();
  }, 100);
  const runs = page.evaluate(
    async ([url, number]) => (await import(/** @type {any} */ ("/tests/e2e/kills.js"))).visit(url, number),
    /** @type {const} */ ([url, book.visit]),
  );
  runs.then(
    () => book.isOver && ends.resolve(),
    (error) => isKilled || ends.reject(error),
  );
  meets("begun");
  try {
    await ended;
  } finally {
    clearInterval(watch);
    meets = () => false;
  }
  if (!plan) return page.close();
  counts[plan.victim === "browser" ? "browsers" : "pages"] += 1;
  await killAll(found);
  if (plan.victim === "browser") browser = undefined;
  else page.close().catch(() => {});
}

/** Opens a page. A browser that has lost processes may fail to: then another one takes its place. */
async function openPage() {
  for (let tries = 1; ; tries++) {
    browser ??= await launch("chromium", { profile, args: NO_SPARES });
    try {
      const page = await browser.newPage();
      page.setDefaultTimeout(0);
      await page.goto(`${site.url}/tests/e2e/page.html`);
      return page;
    } catch (error) {
      if (tries === 3) throw error;
      counts.replaced += 1;
      await killAll(family(browser.process()?.pid));
      browser = undefined;
    }
  }
}

/** Kills processes, and waits until they are gone. @param {Process[]} victims */
async function killAll(victims) {
  for (const victim of victims) end(victim);
  while (victims.some(({ id, started }) => findProcess(id)?.started === started))
    await new Promise((resolve) => setTimeout(resolve, 5));
}

/** @import { Process } from "../../scripts/processes.mjs" */

/** @param {number} id */
function isRenderer(id) {
  try {
    return readFileSync(`/proc/${id}/cmdline`, "latin1").includes(RENDERER);
  } catch {
    return false; // it has ended
  }
}

/** Kills a process, unless another one has its number now. @param {Process} victim */
function end({ id, started }) {
  if (findProcess(id)?.started !== started) return;
  try {
    process.kill(id, "SIGKILL");
  } catch {
    // It has ended meanwhile.
  }
}
