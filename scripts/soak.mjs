// npm run soak: ten minutes of random good and hostile cells in each browser (`-- --seconds 60 --seed 7` for other values).
import { parseArgs } from "node:util";
import { root, run } from "./project.mjs";

const { values } = parseArgs({
  options: {
    seconds: { type: "string", default: "600" },
    seed: { type: "string", default: `${Date.now() % 1_000_000}` },
  },
});
const { seconds, seed } = values;
const built = await run(["node", "scripts/build.mjs"], { log: `${root}/.setup/logs/build.log` });
process.stdout.write(built.output);
if (!built.ok) process.exit(1);
for (const browser of ["chromium", "firefox"]) {
  console.log(`soaking ${seconds} s in ${browser} with seed ${seed} …`);
  const soak = ["node", "tests/e2e/soak.mjs", "--browser", browser, "--seconds", seconds, "--seed", seed];
  const { ok, output } = await run(soak, { log: `${root}/.setup/logs/soak-${browser}.log` });
  process.stdout.write(output);
  if (!ok) process.exitCode = 1;
}
