// `npm start`: builds the package and serves the playground until Ctrl-C.
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { root } from "./project.mjs";
import { serve } from "./serve.mjs";

const build = spawnSync(process.execPath, [join(root, "scripts/build.mjs")], { stdio: "inherit" });
if (build.status !== 0) process.exit(1);

const server = await serveFrom(Number(process.env.PORT ?? 8000));
console.log(`\n  The playground is at  ${server.url}/www/\n  Ctrl-C stops it.\n`);

/** Serves on the first free port from `port` on. @param {number} port @returns {ReturnType<typeof serve>} */
async function serveFrom(port, attempts = 20) {
  try {
    return await serve(root, { port });
  } catch (error) {
    const taken = error instanceof Error && "code" in error && error.code === "EADDRINUSE";
    if (!taken || attempts <= 1) throw error;
    return serveFrom(port + 1, attempts - 1);
  }
}
