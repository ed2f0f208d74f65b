// Models of `sandglass/models` in a real browser: engines by objects with their interfaces, and real servers on this machine.
// The tests are in models.js. A real engine with a real model is in local-model.mjs.
//   node tests/e2e/models.mjs --browser chromium|firefox [--only part-of-a-name|another]
import { createServer } from "node:http";
import { listen, NOBODY, openBrowser, readArguments, Score } from "./harness.mjs";
import { startModelServer } from "./rlm-server.mjs";

const { browser: name, only } = readArguments();
const score = new Score(only);
const answering = await startModelServer({
  small: ({ turn, last }) => (turn === 0 ? `small read ${last}` : "```repl\nFINAL(llm_query('the context'))\n```"),
});
/** Requests that the server without CORS has seen, by their methods. @type {Record<string, number>} */
const seen = {};
// As Ollama answers pages that OLLAMA_ORIGINS does not name.
const forbidding = await listen(
  createServer((request, response) => {
    seen[request.method ?? ""] = (seen[request.method ?? ""] ?? 0) + 1;
    const isRoot = request.method === "GET";
    response.writeHead(isRoot ? 200 : 403, { "Content-Type": "text/plain" }).end(isRoot ? "running" : "");
  }),
);
const servers = { answering: answering.url, forbidding: forbidding.url, gone: NOBODY };

try {
  for (const shared of [false, true]) {
    const host = await openBrowser(name, { shared });
    try {
      const page = await host.page();
      const names = await page.evaluate(async (servers) => {
        const models = await import(/** @type {any} */ ("/tests/e2e/models.js"));
        Object.assign(window, { models: models.connect(servers) });
        return Object.keys(models.TESTS);
      }, servers);
      for (const test of names) {
        // Only the reach of servers depends on the page's isolation.
        if (shared && !test.startsWith("server")) continue;
        const run = () => page.evaluate((test) => /** @type {any} */ (window).models.TESTS[test](), test);
        await score.test(shared ? `${test}, isolated page` : test, run, 120_000);
      }
      if (!shared) score.add("a page without permission sends no question", seen.POST ? [`${seen.POST} came`] : []);
      score.add("nothing is thrown into the page", host.uncaught);
    } finally {
      await host.close();
    }
  }
} catch (error) {
  score.fail("the tests could not be run", [String(/** @type {Error} */ (error).stack ?? error)]);
} finally {
  await answering.close();
  await forbidding.close();
}
score.end();
