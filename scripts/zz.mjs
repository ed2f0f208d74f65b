import { movedSessions } from "./bench/moves.mjs";
import { startHost } from "../tests/e2e/host.mjs";
const r = await movedSessions(async (args) => {
  const origin = args[args.indexOf("--allow-origin")+1];
  const host = await startHost({ backend: process.argv[2] ?? "bubblewrap", origin, keys: "" });
  return { url: host.url, end: () => host.stop() };
}, [], 2).catch(e => e);
console.log(r);
