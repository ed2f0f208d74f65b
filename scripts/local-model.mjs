// The small model of `npm run demo -- --local-model` and of tests/e2e/local-model.mjs. Its file comes from a wheel.
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { environment, root } from "./project.mjs";

/** @type {import("../demo/model.mjs").Model} */
export const LOCAL_MODEL = {
  label:
    "SmolLM2-135M-Instruct (98 MB, Apache-2.0) by wllama, in this tab and offline. So small a model copies a phrase out of one " +
    "sentence, and often errs. It cannot read pages, compare, count or write code: here code does that, and checks its answers",
  ask: () => Promise.reject(new Error("this model runs in the page")),
};

/** Downloads the model unless it is here. Returns its folder, and the name of its file there. */
export function localModel() {
  const { status } = spawnSync(join(root, "scripts/setup"), ["--local-model"], { env: environment, stdio: "inherit" });
  if (status !== 0) throw new Error("the model could not be downloaded");
  const folder = join(root, ".setup/local-model");
  const file = readdirSync(folder).find((name) => name.endsWith(".gguf"));
  if (!file) throw new Error(`there is no GGUF file in ${folder}: delete the folder, and try again`);
  return { folder, file };
}
