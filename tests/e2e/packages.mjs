// Packages: real wheels and forged ones, served from here. The tests themselves are in packages.js.
//   node tests/e2e/packages.mjs --browser chromium|firefox [--shared] [--all] [--only part-of-a-name]
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { join } from "node:path";
import { version } from "pyodide";
import { listen, openBrowser, readArguments, root, Score } from "./harness.mjs";
import { entry, packageOf, realWheels, serveFiles, sha256 } from "./wheels.mjs";

const { browser: name, only, shared, all } = readArguments();
/** Tests of states. They do not depend on the way Python waits, so --shared leaves them out, unless --all is given. */
const STATES = new Set([
  "instances of a package's classes survive the guest",
  "compiled code is at its place in the next guest, whatever was loaded when",
  "functions that ctypes made are named, and all else is exact",
  "with code that no other guest has, variables are saved by value",
  "pure Python packages leave checkpoints exact",
  "packages that come later are in every guest",
  "undo, restore and fork with packages",
]);
const ENDLESS_TEST = "an index that never ends its answer is refused, and hung up on";
const CDN_TEST = "packages of the release come from its CDN, and are checked";
/** Time after which a test counts as hung. */
const TEST_MS = 240_000;

const { files: wheels, packages } = await realWheels();
/** @type {Map<string, Buffer | string>} */
const files = new Map(wheels);
/** Forged wheels by their names in the tests. @type {Record<string, string>} */
const forged = {};
add("tiny", "1.0", { "tiny.py": "VALUE = 1\n" });
add("tiny", "2.0", { "tiny.py": "VALUE = 2\n" }, [], "tiny2");
add("needs-tiny", "1.0", { "needs_tiny.py": "import tiny" }, [
  "tiny>=1",
  'nowhere; python_version < "3.0"',
  'msgpack; extra == "pack"',
  'nothere; sys_platform == "win32"',
]);
add("needs-much", "1.0", { "needs_much.py": "" }, ["pydantic>=99"]);
// A time zone file: the header with its counts, one zone an hour before UTC, and the zone's name.
const zone = `TZif${"\0".repeat(35)}\x01\0\0\0\x04\0\0\x0e\x10\0\0CET\0`;
add("tzdata", "1.0", { "tzdata/__init__.py": "", "tzdata/zoneinfo/Europe/Paris": zone });
add("climbs", "1.0", { "../../../tmp/escaped.py": "" });
add("absolute", "1.0", { "/tmp/escaped.py": "" });
add("windows", "1.0", { "..\\..\\escaped.py": "" });
add("links", "1.0", { "links.py": { text: "/lib", mode: 0o120777 } });
add("usurps", "1.0", { "usurps.py": "", "sandglass/runtime/runtime.py": "raise SystemExit" });
add("sneaks", "1.0", { "sneaks-1.0.data/purelib/sandglass/helpers.py": "" });
add("shadows", "1.0", { "json/__init__.py": "raise SystemExit", "shadows.py": "" });
add("bomb", "1.0", { "bomb.py": { text: "x = 1", size: 3_000_000_000 } });
add("splits", "1.0", { "splits.py": "", "splits-1.0.data/data/etc/x": "", "splits.pth": "import os" });
const good = /** @type {Buffer} */ (files.get(forged.tiny));
const cut = good.subarray(0, good.length - 30);
register("cut", "1.0", cut);
add("damaged", "1.0", { "damaged.py": "" });
files.set(forged.damaged, Buffer.concat([/** @type {Buffer} */ (files.get(forged.damaged)), Buffer.from("?")]));
const linux = "linux_only-1.0-cp314-cp314-manylinux_2_28_x86_64.whl";
files.set(linux, good);
packages["linux-only"] = entry("linux-only", "1.0", linux, good);
files.set("pyodide-lock.json", JSON.stringify({ info: {}, packages }));
files.set("broken-lock.json", "<!doctype html>");
files.set("not_a_zip-1.0-py3-none-any.whl", "<!doctype html>");
files.set("other-1.0-py3-none-any.whl", good); // a file name that contradicts its METADATA, which is tiny's

const score = new Score(only);
const mirror = await serveFiles(files);
// A package index: a real wheel, and one with another hash.
for (const [project, hash] of [
  ["typing-inspection", undefined],
  ["annotated-types", "0".repeat(64)],
]) {
  const [name, bytes] = /** @type {[string, Buffer]} */ (
    [...wheels].find(([name]) => name.startsWith(String(project).replace("-", "_")))
  );
  const release = { filename: name, url: `${mirror.url}${name}`, digests: { sha256: hash ?? sha256(bytes) } };
  const version = name.split("-")[1] ?? "";
  files.set(`index/${project}/json`, JSON.stringify({ releases: { [version]: [release] } }));
}
// The lock file is in one place, its files are in another.
const locks = await serveFiles(
  new Map([["lock/pyodide-lock.json", /** @type {string} */ (files.get("pyodide-lock.json"))]]),
);
const wheelhouse = await serveFiles(new Map([...wheels].map(([name, bytes]) => [`deep/wheels/${name}`, bytes])));
const { page: openPage, uncaught, close } = await openBrowser(name, { shared });
try {
  let page = await open();
  const names = await page.evaluate(() => Object.keys(/** @type {any} */ (window).tests));
  const gone = [...STATES].filter((name) => !names.includes(name));
  if (gone.length > 0) throw new Error(`there are no such tests: ${gone.join("; ")}`);
  for (const test of names.filter((name) => score.wants(name))) {
    if (shared && !all && !only && STATES.has(test)) {
      score.skip(test, "such pages differ in how Python waits");
      continue;
    }
    for (const { asked } of [mirror, locks, wheelhouse]) asked.length = 0;
    const run = () => page.evaluate((name) => /** @type {any} */ (window).run(name), test);
    await score.test(test, run, TEST_MS);
    // The next test gets a new page, which has fetched nothing yet.
    await page.close().catch(() => {});
    page = await open();
  }
  if (score.wants(CDN_TEST) && !shared) await score.test(CDN_TEST, () => fromCdn(), TEST_MS);
  if (score.wants(ENDLESS_TEST) && !shared) await score.test(ENDLESS_TEST, () => endless(), TEST_MS);
  score.add("nothing is thrown into the page", uncaught);
} catch (error) {
  score.fail("the tests could not be run", [String(/** @type {Error} */ (error).stack ?? error)]);
} finally {
  await close();
  await Promise.all([mirror, locks, wheelhouse].map((server) => server.close()));
}
score.end();

/** Answers for the public CDN, which no test may ask: first with nothing, then with a file of another release. */
async function fromCdn() {
  const page = await openPage();
  await page.setRequestInterception(true);
  /** @type {string[]} */
  const asked = [];
  page.on("request", (request) => {
    const url = request.url();
    if (new URL(url).hostname === "127.0.0.1") return void request.continue();
    if (url.startsWith("blob:") || url.startsWith("data:") || url.startsWith("about:")) return void request.continue();
    asked.push(url);
    const answer = asked.length === 1 ? { status: 404 } : { status: 200, body: "another file" };
    return void request.respond({ ...answer, headers: { "Access-Control-Allow-Origin": "*" } });
  });
  const told = await page.evaluate(async () => {
    const { createSandbox } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
    const sandbox = await createSandbox();
    const failed = () => sandbox.loadPackages(["six"]).catch((/** @type {any} */ error) => `${error.code}: ${error}`);
    return [await failed(), await failed()];
  });
  await page.close();
  const { packages: locked } = JSON.parse(await readFile(join(root, "dist/pyodide-lock.txt"), "utf8"));
  const wanted = `https://cdn.jsdelivr.net/pyodide/v${version}/full/${locked.six.file_name}`;
  const problems = asked.filter((url) => url !== wanted).map((url) => `asked for ${url}`);
  if (asked.length !== 2) problems.push(`asked ${asked.length} times`);
  if (!/^asset_failed: .*six.*404/.test(told[0])) problems.push(`a missing file: ${told[0]}`);
  if (!/^integrity: .*SHA-256/.test(told[1])) problems.push(`another file: ${told[1]}`);
  return problems;
}

async function endless() {
  const spaces = Buffer.alloc(1 << 20, " ");
  const server = createServer((_, response) => {
    response.writeHead(200, { "Access-Control-Allow-Origin": "*", "Content-Type": "application/json" });
    const write = () => {
      while (!response.destroyed && response.write(spaces));
    };
    response.on("drain", write);
    write();
  });
  const hungUp = new Promise((resolve) => server.on("request", (_, response) => response.on("close", resolve)));
  const { url, close } = await listen(server);
  const page = await openPage();
  const told = await page.evaluate(async (packageIndexUrl) => {
    const { createSandbox } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
    const sandbox = await createSandbox({ packageIndexUrl });
    return sandbox.loadPackages(["pypi:six"]).catch((/** @type {any} */ error) => `${error.code}: ${error.message}`);
  }, url);
  await hungUp;
  await page.close();
  await close();
  return /^asset_failed: .*six.*longer than \d+ bytes; nothing was installed/.test(told) ? [] : [`told ${told}`];
}

async function open() {
  const page = await openPage();
  await page.exposeFunction("askedFor", () => mirror.asked.splice(0));
  await page.exposeFunction("askedElsewhere", () => [locks.asked.splice(0), wheelhouse.asked.splice(0)]);
  await page.exposeFunction("hold", (/** @type {"answers" | "halves" | undefined} */ what) => {
    mirror.holding = what;
    if (what === undefined) for (const release of mirror.held.splice(0)) release();
  });
  /** Files that a test has removed for a while. @type {Map<string, Buffer | string>} */
  const taken = new Map();
  await page.exposeFunction("unplug", (/** @type {boolean} */ out) => {
    const [from, to] = out ? [files, taken] : [taken, files];
    for (const [name, body] of from) to.set(name, body);
    from.clear();
  });
  const hash = sha256(/** @type {Buffer} */ (files.get(forged.tiny2)));
  await page.evaluate(
    (known) => {
      Object.assign(window, known);
      return import(/** @type {any} */ ("/tests/e2e/packages.js"));
    },
    { mirror: mirror.url, locks: locks.url, wheelhouse: wheelhouse.url, forged, tiny2Hash: hash },
  );
  return page;
}

/** @param {string} name @param {string} version @param {Record<string, any>} modules @param {string[]} [requires] @param {string} [key] */
function add(name, version, modules, requires, key = name) {
  register(name, version, packageOf(name.replaceAll("-", "_"), version, modules, requires), key);
}

/** @param {string} name @param {string} version @param {Buffer} bytes @param {string} [key] */
function register(name, version, bytes, key = name) {
  const file = `${name.replaceAll("-", "_")}-${version}-py3-none-any.whl`;
  files.set(file, bytes);
  forged[key] = file;
  if (key === name && !name.startsWith("needs"))
    packages[name] = entry(name.replaceAll("-", "_"), version, file, bytes);
}
