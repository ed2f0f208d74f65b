// Runs tests/cases/ on guests of a sandglass-host server: in the same page, by the same runner, with the option `backend`.
//   node tests/cases-on-server.mjs --backend subprocess|bubblewrap|docker|jupyter [--browser chromium|firefox] [--all] [--only part-of-a-name]
// Leaves out the cases that add nothing on this backend (see e2e/where.js), unless --all or --only is given.
import { parseArgs } from "node:util";
import { testBackend } from "./e2e/backend.mjs";
import { openBrowser, Score } from "./e2e/harness.mjs";
import { KEY, startHost } from "./e2e/host.mjs";
import { runCases } from "./e2e/run-cases.mjs";

const { values } = parseArgs({
  options: {
    backend: { type: "string" },
    browser: { type: "string", default: "chromium" },
    only: { type: "string", default: "" },
    all: { type: "boolean", default: false },
  },
});
const { backend, browser, only, all } = values;
if (!backend || !["subprocess", "bubblewrap", "docker", "jupyter"].includes(backend)) {
  console.error(
    "usage: cases-on-server.mjs --backend subprocess|bubblewrap|docker|jupyter [--browser B] [--all] [--only part]",
  );
  process.exit(2);
}

/**
 * Checks that the guests came from the pool, because users get such guests.
 * @param {string} url
 */
async function coldGuests(url) {
  const answer = await fetch(`${url}/health/detailed`, { headers: { authorization: `Bearer ${KEY}` } });
  const { pool } = await answer.json();
  return pool?.acquired > 0 && pool.zygotes > 0 && pool.cold === 0 ? [] : [`of the pool: ${JSON.stringify(pool)}`];
}

const score = new Score();
const { site, page: openPage, uncaught, close } = await openBrowser(/** @type {"chromium" | "firefox"} */ (browser));
/** @type {Awaited<ReturnType<typeof startHost>> | undefined} */
let host;
try {
  host = await startHost({ backend, origin: site.url });
  const page = await openPage();
  await runCases(page, score, {
    only,
    backend,
    places: all || only ? [] : [backend],
    server: { url: host.url, apiKey: KEY },
  });
  if (backend === "bubblewrap" && !only) score.add("its guests were forked", await coldGuests(host.url));
  const code = await host.stop();
  score.add("the server ends well when it is asked to", code === 0 ? [] : [`it ended with ${code}`, host.said()]);
  // These tests are about the server. They start guests of their own, which a kernel has not.
  if (backend !== "jupyter") await testBackend({ backend, origin: site.url, page, score, only });
  score.add("nothing is thrown into the page", uncaught);
} catch (error) {
  score.fail("the cases could not be run", [
    String(/** @type {Error} */ (error).stack ?? error),
    host?.said().slice(-2000) ?? "",
  ]);
} finally {
  await host?.stop("SIGKILL");
  await close();
}
score.end();
