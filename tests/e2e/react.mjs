// Builds examples/react from the packed package, as a stranger would, and uses it.
//   node tests/e2e/react.mjs --browser chromium|firefox
import { cp, mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { mustRun } from "../../scripts/project.mjs";
import { openBrowser, readArguments, root, Score, serve } from "./harness.mjs";

/** The result of the code that the example runs by itself. */
const ANSWER = "Python counts 5 words.";
const WAIT = { timeout: 120_000, polling: 50 };

const { browser, only } = readArguments();
const score = new Score(only);
const folder = await mkdtemp(join(tmpdir(), "sandglass-react-"));
/** What ends when the test does. @type {(() => Promise<unknown>)[]} */
const ends = [() => rm(folder, { recursive: true, force: true })];
try {
  await cp(join(root, "examples/react"), folder, {
    recursive: true,
    filter: (source) => !/node_modules|\bdist$/.test(source.slice(join(root, "examples").length)),
  });
  const step = (/** @type {string} */ name, /** @type {string[]} */ command, cwd = folder, env = {}) =>
    mustRun(command, { log: join(root, `.setup/logs/react-${name}.log`), cwd, env });
  await step("pack", ["npm", "pack", "--ignore-scripts", "--pack-destination", folder], root);
  const tarball = (await readdir(folder)).find((file) => file.endsWith(".tgz"));
  await step("install", ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", `./${tarball}`]);
  // Strict mode mounts components twice in React's build for development only.
  await step("build", ["npm", "run", "build"], folder, { NODE_ENV: "development" });

  const site = await serve(join(folder, "dist"));
  const { page: openPage, uncaught, close } = await openBrowser(browser);
  ends.push(close, site.close);
  const page = await openPage(`${site.url}/index.html`);
  /** Waits for the text of an element. @param {string} id @param {string} text */
  const shows = (id, text) =>
    page.waitForFunction((id, text) => document.getElementById(id)?.textContent === text, WAIT, id, text);
  const textOf = (/** @type {string} */ id) => page.$eval(`#${id}`, (element) => element.textContent ?? "");
  const frames = () => page.evaluate(() => document.querySelectorAll("iframe").length);
  /** Clicks the button, wherever the page has moved it by now. */
  const toggle = () => page.$eval("#toggle", (button) => /** @type {HTMLElement} */ (button).click());
  const typeCode = async (/** @type {string} */ code) => {
    await page.click("textarea");
    await page.keyboard.down("Control");
    await page.keyboard.press("a");
    await page.keyboard.up("Control");
    await page.type("textarea", code);
  };

  await score.test("the code runs by itself, and shows its output and its result", async () => {
    await shows("result", ANSWER);
    await shows("status", "ready");
    const output = await textOf("output");
    return output === "Sand\nruns\nthrough\na\nglass.\n" ? [] : [`the output is ${output}`];
  });

  await score.test("output comes while code runs; Stop ends an endless loop, and variables are kept", async () => {
    await typeCode("x = 7\nprint('on')\nwhile True: pass");
    await page.click("#run");
    await shows("output", "on\n");
    const status = await textOf("status");
    await page.click("#stop");
    await shows("status", "ready");
    const stopped = await textOf("result");
    await typeCode("x + 1");
    await page.click("#run");
    await shows("result", "8");
    return [
      ...(status === "running" ? [] : [`it was ${status}`]),
      ...(stopped.startsWith("KeyboardInterrupt") ? [] : [`it says ${stopped}`]),
    ];
  });

  await score.test(
    "taking the component away ends all of its guests, also of a first mount in strict mode",
    async () => {
      await toggle();
      await page.waitForFunction(() => !document.querySelector("iframe"), WAIT);
      return (await frames()) === 0 ? [] : ["frames are left"];
    },
  );

  await score.test("taking it away while Python starts leaves nothing behind", async () => {
    await toggle();
    await page.waitForSelector("iframe");
    await toggle();
    await page.waitForFunction(() => !document.querySelector("iframe"), WAIT);
    return (await page.$("#status")) ? ["the component is still there"] : [];
  });

  await score.test("brought back, it is mounted twice by strict mode, and starts afresh", async () => {
    // Guests whose frames were added before Python was ready. Spares start later.
    await page.evaluate(() => {
      const count = Object.assign(globalThis, { started: 0 });
      const observer = new MutationObserver((changes) => {
        const added = changes.flatMap(({ addedNodes }) => [...addedNodes]);
        count.started += added.filter(({ nodeName }) => nodeName === "IFRAME").length;
        if (document.getElementById("status")?.textContent === "ready") observer.disconnect();
      });
      observer.observe(document.body, { childList: true, characterData: true, subtree: true });
    });
    await toggle();
    await shows("result", ANSWER);
    await shows("status", "ready");
    await typeCode("x");
    await page.click("#run");
    await page.waitForFunction(() => document.getElementById("result")?.textContent?.startsWith("NameError"), WAIT);
    const started = await page.evaluate(() => /** @type {any} */ (globalThis).started);
    return started >= 2 ? [] : [`${started} guests were started`];
  });

  await score.test("nothing went wrong unseen", () => uncaught);
} catch (error) {
  score.fail("the example can be built and used", [String(/** @type {Error} */ (error).stack ?? error)]);
} finally {
  await Promise.allSettled(ends.reverse().map((end) => end()));
  score.end();
}
