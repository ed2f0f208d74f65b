// A newcomer's first minute with the wheel of the Python package: a new environment outside of the repository, `pip install`, and the
// README's example, whose function answers `llm_query`. Each step's seconds are returned.
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { differences, promised } from "../tests/e2e/samples.mjs";
import { root, run } from "./project.mjs";

/**
 * @param {string[]} wheel  arguments of `pip install`
 * @param {string} [page]  the document with the example, the first in Python
 * @returns {Promise<[string, number][]>} each step, and its seconds
 */
export async function firstMinute(wheel, page = "README.md") {
  const [, example] = /^```python\n(.*?)^```/ms.exec(readFileSync(join(root, page), "utf8")) ?? [];
  if (!example) throw new Error(`${page} has no example in Python`);
  const folder = mkdtempSync(join(tmpdir(), "sandglass-first-minute-"));
  const python = join(folder, "venv/bin/python");
  const pip = [python, "-m", "pip", "install", "--no-index", "--disable-pip-version-check"];
  /** @type {[string, string[]][]} */
  const steps = [
    ["python3 -m venv", ["python3", "-m", "venv", join(folder, "venv")]],
    ["pip install", [...pip, ...wheel]],
    [`example of ${page}`, [python, "-I", "-c", example]],
  ];
  /** @type {[string, number][]} */
  const took = [];
  let printed = "";
  try {
    for (const [name, command] of steps) {
      const begin = performance.now();
      // The wheel's own program is meant, whatever this machine has.
      const env = { SANDGLASS_HOST: "" };
      const log = join(root, ".setup/logs/first-minute.log");
      const { ok, output } = await run(command, { log, cwd: folder, env });
      if (!ok) throw new Error(`${name} failed:\n${output.slice(-3000)}`);
      took.push([name, (performance.now() - begin) / 1000]);
      printed = output;
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  const wrong = differences(printed.trim().split("\n"), promised(example));
  if (wrong.length > 0) throw new Error(`the example of ${page}: ${wrong.join("; ")}`);
  return took;
}
