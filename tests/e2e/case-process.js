// Runs cases in a process of Node, Deno or Bun, and prints a line of JSON for each. `cases-on-runtime.mjs` starts it.
import process from "node:process";
import { run } from "./case-runner.js";

const { site, files, options } = JSON.parse(process.argv[2]);
// The runner's addresses are a page's.
Object.assign(globalThis, { location: { href: `${site}/` } });
const { fetch } = globalThis;
globalThis.fetch = (address, init) => fetch(typeof address === "string" ? new URL(address, site) : address, init);

await run(files, options, (line) => console.log(JSON.stringify(line)));
console.log(JSON.stringify({ finished: true }));
