// Runs the README's samples as a stranger would, and compares what they print with the comments behind `→`.
//   node tests/e2e/readme.mjs --browser chromium|firefox
import { execFileSync } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { transform } from "esbuild";
import { environment } from "../../scripts/project.mjs";
import { openBrowser, readArguments, root, Score } from "./harness.mjs";
import { startModelServer } from "./rlm-server.mjs";
import { differences, promised, runInPage, runInPython, runInShell } from "./samples.mjs";

const readme = await readFile(join(root, "README.md"), "utf8");
/** The first sample in a language that has these words. @param {string} language */
function sample(language, words = "") {
  const samples = [...readme.matchAll(new RegExp(`\`\`\`${language}\\n(.*?)\`\`\``, "gs"))].map(
    ([, source = ""]) => source,
  );
  const found = samples.find((source) => source.includes(words));
  if (!found) throw new Error(`the README has no sample in ${language} with "${words}"`);
  return found;
}

/** Names that a reader has from elsewhere. */
const GIVEN = "declare const input: { files: FileList };\ndeclare const apiKey: string;\n";

const { browser, only } = readArguments();
const score = new Score(only);
const models = await startModelServer({
  answering: () => "```repl\nanswer['content'] = context.splitlines()[-1]\nanswer['ready'] = True\n```",
  large: ({ turn }) => `\`\`\`repl\n${turn === 1 ? "print(len(context))" : "FINAL(context.splitlines()[-1])"}\n\`\`\``,
});
const { page: openPage, close } = await openBrowser(browser);
try {
  const page = await openPage();
  await score.test("JavaScript: it logs what it says", async () => {
    const source = sample("js");
    return differences(await runInPage(page, source), promised(source));
  });

  await score.test("Python: it prints what it says", async () => {
    const source = sample("python");
    return differences(await runInPython(source), promised(source));
  });

  await score.test("Python: an RLM answers a question about a text", async () => {
    const source = sample("python", "RLM(").replace('"large"', '"answering"'); // a model with the package's prompts
    const env = { OPENAI_BASE_URL: `${models.url}/v1`, OPENAI_API_KEY: "a key" };
    const printed = await runInPython(source, { python: ".setup/adapters/bin/python", env });
    return printed.join() === "it rains." ? [] : [`it printed ${printed.join()}`];
  });

  await score.test("JSON: an agent's settings start a server of MCP", async () => {
    const { command, args } = JSON.parse(sample("json")).mcpServers.sandglass;
    const hello = { protocolVersion: "2025-11-25", capabilities: {}, clientInfo: { name: "me", version: "1" } };
    const asked = [
      { id: 1, method: "initialize", params: hello },
      { method: "notifications/initialized" },
      { id: 2, method: "tools/call", params: { name: "execute_python", arguments: { code: "6 * 7" } } },
    ];
    const lines = asked.map((message) => JSON.stringify({ jsonrpc: "2.0", ...message })).join("\n");
    const printed = await runInShell(`${[command, ...args].join(" ")} <<'END'\n${lines}\nEND`, { server: "" });
    const [content] = JSON.parse(printed.at(-1) ?? "{}").result?.content ?? [];
    return content?.text === "42" ? [] : [`it printed ${printed.join()}`];
  });

  await score.test("TypeScript: it answers a question about a file", async () => {
    const source = sample("ts").replaceAll("https://api.example.com", models.url);
    await page.evaluate(() => {
      const files = new DataTransfer();
      files.items.add(new File(["Dear Sir,\nit rains."], "letters.txt"));
      const input = Object.assign(document.createElement("input"), { type: "file", files: files.files });
      Object.assign(globalThis, { input, apiKey: "a key" });
    });
    const { code } = await transform(source, { loader: "ts", tsconfigRaw: {} });
    const printed = await runInPage(page, code);
    return printed.join() === "it rains." ? [] : [`it printed ${printed.join()}`];
  });

  await score.test("TypeScript: its types are right", async () => typeErrors(`${GIVEN}${sample("ts")}`));

  await score.test("shell: the server runs code", async () => {
    const source = shellSample("cargo build");
    const [, name = ""] = /^cargo build .*-p (\S+)$/m.exec(source) ?? [];
    if (!programsOf(name).includes("sandglass-host")) return [`there is no crate ${name} with the program`];
    // What it installs and builds is there. A reader types the next command when the server has said that it listens.
    const ready = "curl -s --retry 20 --retry-connrefused --retry-delay 1 http://127.0.0.1:8788/health >/dev/null";
    const script = source
      .replace(/^(sudo|cargo) .*\n/gm, "")
      .replaceAll("target/release/sandglass-host", "sandglass-host")
      .replace(/^(sandglass-host serve &).*$/m, `$1\n${ready}`);
    const printed = await runInShell(script, { server: "" });
    const run = JSON.parse(printed.join("\n"));
    return run.stdout === "42\n" ? [] : [`it printed ${printed.join()}`];
  });
} catch (error) {
  score.fail("the samples run", [String(/** @type {Error} */ (error).stack)]);
} finally {
  await Promise.allSettled([close(), models.close()]);
  score.end();
}

/** The sample in a shell that has these words. @param {string} words */
function shellSample(words) {
  const samples = [...readme.matchAll(/```sh\n(.*?)```/gs)].map(([, source = ""]) => source);
  const found = samples.find((source) => source.includes(words));
  if (!found) throw new Error(`the README has no sample with "${words}"`);
  return found;
}

/** The programs of a crate of this repository. @param {string} name @returns {string[]} */
function programsOf(name) {
  const command = ["metadata", "--no-deps", "--format-version", "1", "--offline"];
  const { packages } = JSON.parse(execFileSync("cargo", command, { cwd: root, env: environment, encoding: "utf8" }));
  const crate = packages.find((/** @type {{ name: string }} */ found) => found.name === name);
  return (crate?.targets ?? [])
    .filter((/** @type {{ kind: string[] }} */ { kind }) => kind.includes("bin"))
    .map((/** @type {{ name: string }} */ target) => target.name);
}

/** The errors that TypeScript finds in a module. @param {string} source @returns {Promise<string[]>} */
async function typeErrors(source) {
  const folder = await mkdtemp(join(tmpdir(), "sandglass-types-"));
  const { compilerOptions } = JSON.parse(
    (await readFile(join(root, "tsconfig.json"), "utf8")).replace(/^\s*\/\/.*$/gm, ""),
  );
  const paths = { sandglass: [join(root, "dist/index.d.ts")], "sandglass/*": [join(root, "dist/*.d.ts")] };
  try {
    await writeFile(join(folder, "sample.ts"), source);
    const settings = { compilerOptions: { ...compilerOptions, paths }, include: ["sample.ts"] };
    await writeFile(join(folder, "tsconfig.json"), JSON.stringify(settings));
    execFileSync("tsc", ["-p", folder], { env: environment, encoding: "utf8" });
    return [];
  } catch (error) {
    return [String(/** @type {{ stdout?: string }} */ (error).stdout || error)];
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
