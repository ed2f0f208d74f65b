// The examples of bundlers and frameworks: each is copied out of the repository, gets the packed tarball in the place of the published
// package, is built, and opened in Chromium.
//   node tests/e2e/examples.mjs [--only vite|webpack|…] [--keep]     --keep: leaves the copies, and prints where they are
import { spawn } from "node:child_process";
import { cp, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { launch } from "../../scripts/browsers.mjs";
import { mustRun } from "../../scripts/project.mjs";
import { listen, root, Score, serve } from "./harness.mjs";

const { values } = parseArgs({
  options: { only: { type: "string", default: "" }, keep: { type: "boolean", default: false } },
});
const ANSWER = "Python counts 5 words.";
const BUILD_SECONDS = 300;
const ANSWER_MS = 120_000;

/**
 * The ways to try an example. Without `build`, its files are served as they are. With `start`, its own server is asked, at the port that
 * the words `PORT` stand for; else `folder` is served.
 * With `asks`, the page is closed while it asks, and opened again.
 * @typedef {{ example: string, build?: string, start?: string[], folder?: string, asks?: boolean }} Way
 */
/** @type {Record<string, Way>} */
const WAYS = {
  script: { example: "script", folder: "." },
  approval: { example: "approval", folder: ".", asks: true },
  "vite build": { example: "vite", build: "build", folder: "dist" },
  "vite dev": { example: "vite", start: ["node_modules/.bin/vite", "--host", "127.0.0.1", "--port", "PORT"] },
  webpack: { example: "webpack", build: "build", folder: "dist" },
  rollup: { example: "rollup", build: "build", folder: "dist" },
  esbuild: { example: "esbuild", build: "build", folder: "dist" },
  react: { example: "react", build: "build", folder: "dist" },
  parcel: { example: "parcel", build: "build", folder: "dist" },
  "next with Turbopack": { example: "next", build: "build", start: ["node_modules/.bin/next", "start", "-p", "PORT"] },
  "next with webpack": {
    example: "next",
    build: "build:webpack",
    start: ["node_modules/.bin/next", "start", "-p", "PORT"],
  },
};

const score = new Score(values.only);
const top = await mkdtemp(join(tmpdir(), "sandglass-examples-"));
const log = (/** @type {string} */ name) => join(root, `.setup/logs/example-${name}.log`);
const browser = await launch("chromium");
try {
  await mustRun(["npm", "pack", "--ignore-scripts", "--pack-destination", top], { log: log("pack") });
  const tarball = join(top, String((await readdir(top)).find((name) => name.endsWith(".tgz"))));
  for (const [name, way] of Object.entries(WAYS)) {
    if (!score.wants(name)) continue;
    await score.test(name, () => tryOut(way, tarball));
  }
  if (score.passed + score.failed === 0) score.fail(values.only, ["there is no such example"]);
} finally {
  await browser.close();
  if (values.keep) console.log(`the copies are in ${top}`);
  else await rm(top, { recursive: true, force: true });
}
score.end();

/** @param {Way} way @param {string} tarball @returns {Promise<string[]>} problems */
async function tryOut({ example, build, start, folder, asks }, tarball) {
  const copy = join(top, example);
  const isNew = await mkdir(copy).then(
    () => true,
    () => false,
  );
  if (isNew) {
    await cp(join(root, "examples", example), copy, { recursive: true });
    const file = join(copy, "package.json");
    const project = JSON.parse(await readFile(file, "utf8"));
    project.dependencies.sandglass = `file:${tarball}`;
    await writeFile(file, JSON.stringify(project));
    const install = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"];
    await mustRun(install, { cwd: copy, log: log(`${example}-install`), timeoutSeconds: BUILD_SECONDS });
  }
  if (build) {
    const env = { NEXT_TELEMETRY_DISABLED: "1" };
    await mustRun(["npm", "run", build], { cwd: copy, log: log(example), timeoutSeconds: BUILD_SECONDS, env });
  }
  if (!start) {
    const { url, close } = await serve(join(copy, folder ?? "."));
    return (asks ? closeAndOpen(url) : open(url)).finally(close);
  }
  const { port, close } = await listen(createServer());
  await close();
  const [program, ...args] = start.map((word) => word.replace("PORT", `${port}`));
  const server = spawn(/** @type {string} */ (program), args, { cwd: copy, stdio: "ignore", detached: true });
  /** @type {Promise<string[]>} */
  const ended = new Promise((resolve) => {
    server.once("exit", (code) => resolve([`its server ended by itself (${code})`]));
    server.once("error", (error) => resolve([`its server could not be started: ${error}`]));
  });
  try {
    return await Promise.race([open(`http://127.0.0.1:${port}`), ended]);
  } finally {
    if (server.pid && server.exitCode === null) process.kill(-server.pid, "SIGKILL");
    await ended;
  }
}

/** Opens a page that asks, closes it, opens it again, and says yes. @param {string} url @returns {Promise<string[]>} problems */
async function closeAndOpen(url) {
  const first = await browser.newPage();
  await first.goto(url);
  await first.waitForSelector("#yes", { visible: true, timeout: ANSWER_MS });
  await first.close();
  const page = await browser.newPage();
  try {
    await page.goto(url);
    const yes = await page.waitForSelector("#yes", { visible: true, timeout: ANSWER_MS });
    await yes?.click();
    await page.waitForFunction(
      () => !/^(Starting|Python waits)/.test(document.querySelector("#result")?.textContent ?? "Starting"),
      {
        timeout: ANSWER_MS,
      },
    );
    const said = await page.$eval("#result", (element) => element.textContent ?? "");
    return /^Paid 14\. Python began on \d\d \w+\.$/.test(said) ? [] : [`it says: ${said}`];
  } finally {
    await page.close();
  }
}

/** Opens an example's page. @param {string} url @returns {Promise<string[]>} problems */
async function open(url) {
  const page = await browser.newPage();
  /** @type {string[]} */
  const problems = [];
  page.on("pageerror", (error) => problems.push(String(error)));
  try {
    for (const end = Date.now() + ANSWER_MS; ;) {
      const answered = await page.goto(url).catch((/** @type {Error} */ error) => error);
      if (!(answered instanceof Error)) break;
      if (Date.now() > end) return [`its server does not answer: ${answered}`];
      await new Promise((resolve) => setTimeout(resolve, 100)); // the server is starting
    }
    await page.waitForFunction(() => !/^Starting/.test(document.querySelector("#result")?.textContent ?? "Starting"), {
      timeout: ANSWER_MS,
    });
    const said = await page.$eval("#result", (element) => element.textContent ?? "");
    if (said !== ANSWER) problems.push(`it says: ${said}`);
    return problems;
  } finally {
    await page.close();
  }
}
