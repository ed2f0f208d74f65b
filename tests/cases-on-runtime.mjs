// Runs tests/cases/ on Node, Deno or Bun, with guests in processes of their own.
//   node tests/cases-on-runtime.mjs --runtime node|deno|bun [--program path] [--isolation process|none] [--all] [--only part-of-a-name]
// Leaves out the cases that add nothing there (see e2e/where.js), unless --all or --only is given.
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { Score, root, serve } from "./e2e/harness.mjs";
import { bundle, findRuntime, runScript } from "./e2e/runtimes.mjs";

/** Cases that run at the same time. */
const LANES = 2;

const { values } = parseArgs({
  options: {
    runtime: { type: "string", default: "node" },
    program: { type: "string" },
    isolation: { type: "string" },
    only: { type: "string", default: "" },
    all: { type: "boolean", default: false },
  },
});
const { runtime, only, all, isolation } = values;
const found = findRuntime(runtime);
if (!found) {
  console.error(`there is no ${runtime}: is it one of node, deno and bun, and has scripts/setup run?`);
  process.exit(2);
}
if (values.program) found.program = values.program;

const score = new Score();
const site = await serve(root, { folders: { node_modules: join(root, "node_modules") } });
try {
  const files = readdirSync(join(root, "tests/cases")).filter((file) => file.endsWith(".toml"));
  const options = { only, lanes: LANES, backend: "browser", places: all || only ? [] : [runtime], isolation };
  let isFinished = false;
  const script = await bundle("case-process.js");
  const { code, said } = await runScript(
    found,
    [script, JSON.stringify({ site: site.url, files, options })],
    (line) => {
      if (!line.startsWith("{")) return console.log(line);
      const { name, problems, skipped, ms, finished } = JSON.parse(line);
      if (finished) isFinished = true;
      else if (skipped) score.skip(name, skipped);
      else score.add(name, problems, ms);
      if (process.env.VERBOSE) console.log(`  ${name} ${ms} ms`);
    },
  );
  score.add(
    "all cases ran, and the process ended by itself",
    isFinished && code === 0 ? [] : [`it ended with ${code}`, said],
  );
} catch (error) {
  score.fail("the cases could not be run", [String(/** @type {Error} */ (error).stack ?? error)]);
} finally {
  await site.close();
}
score.end();
