// Logs of Chromium's IndexedDB that a killed browser left damaged, and what becomes of kept sessions. persist.mjs runs these tests.
import { appendFileSync, mkdtempSync, readdirSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { launch } from "../../scripts/browsers.mjs";
import { root, serve } from "./harness.mjs";

/** LevelDB's blocks, and the head of a record: its checksum, its length and its type. */
const BLOCK = 32768;
const HEAD = 7;
/** The type of a record that is whole. */
const FULL = 1;

/** A record with a wrong checksum, of which only `present` bytes of `length` are there. @param {number} length @param {number} present */
function record(length, present) {
  const bytes = Buffer.alloc(HEAD + present, 1);
  bytes.writeUInt16LE(length, 4);
  bytes[6] = FULL;
  return bytes;
}

/** Appends to the newest log of the profile's only database. @param {string} profile @param {(left: number) => Buffer} make  gets the bytes that are left of a block */
function append(profile, make) {
  const databases = join(profile, "Default", "IndexedDB");
  const folder = readdirSync(databases).find((name) => name.endsWith(".leveldb"));
  if (!folder) throw new Error(`no database in ${databases}`);
  const logs = readdirSync(join(databases, folder)).filter((name) => name.endsWith(".log"));
  const log = join(databases, folder, /** @type {string} */ (logs.sort().at(-1)));
  let left = BLOCK - (statSync(log).size % BLOCK);
  if (left < 200) {
    appendFileSync(log, Buffer.alloc(left)); // readers skip zeros
    left = BLOCK;
  }
  appendFileSync(log, make(left));
}

/** Code that answers once, in a page: a sandbox with the kept session "log" runs it. The error's code, if the session cannot be opened. @param {string} profile @param {string} url @param {string} code @param {boolean} begins */
async function visit(profile, url, code, begins) {
  const browser = await launch("chromium", { profile });
  try {
    const page = await browser.newPage();
    page.setDefaultTimeout(0);
    await page.goto(`${url}/tests/e2e/page.html`);
    return await page.evaluate(
      async (code, begins) => {
        const { createSandbox } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
        try {
          const sandbox = await createSandbox({ persist: "log" });
          if (begins) await sandbox.initialize(null);
          const { result, error } = await sandbox.execute(code);
          await sandbox.checkpoint();
          await sandbox.destroy();
          return result ?? error;
        } catch (error) {
          return /** @type {any} */ (error).code;
        }
      },
      code,
      begins,
    );
  } finally {
    await browser.close();
  }
}

/** @param {import("./harness.mjs").Score} score @param {(problems: string[], what: string, got: unknown, expected: unknown) => void} expect */
export async function keptLogs(score, expect) {
  await score.test("a browser that was killed in the middle of a write loses no session", async () => {
    const problems = /** @type {string[]} */ ([]);
    await inProfile(async (profile, url) => {
      expect(problems, "the first visit", await visit(profile, url, "x = 1; x", true), "1");
      append(profile, (left) => record(left - HEAD, 100));
      expect(problems, "after the kill", await visit(profile, url, "x += 1; x", false), "2");
      expect(problems, "the visit after that", await visit(profile, url, "x", false), "2");
    });
    return problems;
  });

  await score.test("a browser that removes its databases is told once", async () => {
    const problems = /** @type {string[]} */ ([]);
    await inProfile(async (profile, url) => {
      expect(problems, "the first visit", await visit(profile, url, "x = 1; x", true), "1");
      append(profile, () => record(10, 10));
      expect(problems, "after the damage", await visit(profile, url, "x", false), "persist_lost");
      expect(problems, "the visit after that", await visit(profile, url, "'x' in globals()", true), "False");
    });
    return problems;
  });
}

/** @param {(profile: string, url: string) => Promise<void>} body */
async function inProfile(body) {
  const site = await serve(root, {});
  const profile = mkdtempSync(join(tmpdir(), "sandglass-logs-"));
  try {
    await body(profile, site.url);
  } finally {
    await site.close();
    rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
  }
}
