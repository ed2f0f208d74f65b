// Sessions that move between a page and servers, and copies of sandboxes at a server. The steps in the page are in move.js.
//   node tests/e2e/move.mjs [--browser chromium|firefox] [--only part-of-a-name]
import assert from "node:assert/strict";
import { join } from "node:path";
import { NOBODY, openBrowser, readArguments, root, Score } from "./harness.mjs";
import { KEY, startHost } from "./host.mjs";
import { realWheels, serveFiles } from "./wheels.mjs";

/** The Python of servers in these tests. It has numpy and pandas. */
const PYTHON = join(root, ".venv/bin/python");
/** Time in which a server must notice that a session has ended. It is less than the minute for which the session of a lost client stays. */
const IN_TIME_MS = 40_000;
/** The same where a server may be too busy to take a close message. Firefox gives that up after ten seconds, and its client counts as lost. */
const IF_NOT_TOLD_MS = 100_000;
/** Names that no other guest can have: a half-run generator, and an open file. */
const LOST = ["handle", "lines"];

const { browser, only } = readArguments();
const score = new Score(only);
const { site, page: openPage, uncaught, close } = await openBrowser(browser);
const page = await openPage();
/** Calls a function of move.js. @param {string} name @param {unknown[]} args @returns {Promise<any>} */
const inPage = (name, ...args) =>
  page.evaluate(
    async (name, args) => {
      const steps = await import(/** @type {any} */ ("/tests/e2e/move.js"));
      return steps[name](...args);
    },
    name,
    args,
  );

/** @param {string[]} settings */
const start = (...settings) =>
  startHost({
    backend: "subprocess",
    origin: site.url,
    settings: ["--python", PYTHON, ...settings],
  });
/** @typedef {Awaited<ReturnType<typeof start>>} Host */
const at = (/** @type {{ url: string }} */ host) => ({ url: host.url, apiKey: KEY });

/** Waits until a server has no session. @param {Host} host @param {number} [most]  milliseconds */
async function isEmpty({ url }, most = IN_TIME_MS) {
  for (const begun = Date.now(); ;) {
    const answer = await fetch(`${url}/health/detailed`, { headers: { authorization: `Bearer ${KEY}` } });
    const { sessions } = await answer.json();
    if (sessions.now === 0) return;
    if (Date.now() - begun > most) assert.fail(`left at the server: ${JSON.stringify(sessions)}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

const host = await start();
try {
  await score.test("a session goes from the tab to a server and comes back", async () => {
    const told = await inPage("thereAndBack", at(host));
    assert.deepEqual(told.there, LOST);
    assert.deepEqual(told.at, { stdout: "linux\n", id: 3, state: "kept", lost: LOST });
    assert.deepEqual(told.next, { lost: [], result: "False" });
    assert.deepEqual(told.back, ["array", "frame", "np", "pd"]);
    assert.ok(
      told.reasons.every((/** @type {string} */ reason) => /numpy|pandas/.test(reason)),
      told.reasons,
    );
    assert.deepEqual(told.again, {
      stdout: "emscripten [1, 2] False\n",
      id: 6,
      state: "kept",
      lost: ["array", "frame", "np", "pd"],
    });
    assert.deepEqual([told.quiet, told.undone, told.after], [[], 6, "44"]);
    assert.deepEqual(told.history, [0, 0]);
    const [here, there, end] = told.places;
    assert.deepEqual(here, end);
    assert.equal(there.isolation, "subprocess");
    assert.notEqual(there.python, here.python);
    await isEmpty(host);
    return [];
  });
  await score.test("arrays and frames go from one server to another", async () => {
    const other = await start();
    try {
      const told = await inPage("betweenServers", at(host), at(other));
      assert.deepEqual(told, { lost: [], result: "['the', {'context': 1}]" });
      await isEmpty(host);
      await isEmpty(other);
    } finally {
      await other.stop();
    }
    return [];
  });
  await score.test("calls before a move are carried out first, and calls during it wait", async () => {
    const told = await inPage("inOrder", at(host));
    assert.deepEqual(told.order, ["before", "move", "during", "set", "back", "after", "get"]);
    assert.deepEqual(told.platforms, ["1 'emscripten'", "2 'linux'", "3 'emscripten'"]);
    assert.deepEqual(told.x, [1, 2, 5]);
    assert.deepEqual(told.last, [1, 2, 5]);
    assert.match(told.never, /./);
    await isEmpty(host);
    return [];
  });
  await score.test("arguments that are no place are refused, and sandboxes that cannot move", async () => {
    const { errors, stays, value } = await inPage("refused", at(host));
    const wanted = ["target", "backend", "backend.key", "speed", "packages", "executeStream", "persist"];
    assert.deepEqual(
      errors.map((/** @type {string} */ error, /** @type {number} */ index) => error.includes(wanted[index])),
      wanted.map(() => true),
      errors.join("\n"),
    );
    assert.ok(
      errors.every((/** @type {string} */ error) => error.includes("invalid_option")),
      errors.join("\n"),
    );
    assert.deepEqual([stays, value], [{ lost: [] }, 1]);
    return [];
  });

  await score.test("a sandbox stays when no server answers, or the key is wrong", async () => {
    const cases = [
      [{ url: NOBODY }, "no sandglass-host server answers"],
      [{ url: host.url }, "pass backend.apiKey"],
      [{ url: host.url, apiKey: "x".repeat(20) }, "does not accept backend.apiKey"],
    ];
    for (const [target, why] of cases) stays(await inPage("failing", target), "backend_unavailable", String(why));
    await isEmpty(host);
    return [];
  });
  await score.test("a sandbox stays when its state is too large", async () => {
    const options = { maxValueSize: 1 << 20 };
    const large = await inPage("failing", at(host), options, "large = bytes(1 << 20)");
    stays(large, "not_serializable", "take");
    const files = "for number in range(2001): open(f'{number}', 'w').close()";
    stays(await inPage("failing", at(host), {}, files), "not_serializable", "2001 files and folders");
    await isEmpty(host);
    return [];
  });
  await score.test("a sandbox stays when the server cannot hold its state", async () => {
    const small = await start("--max-memory-mib", "128");
    try {
      const large = await inPage("failing", at(small), {}, "large = bytes(100_000_000)");
      stays(large, "", "");
      assert.match(large.error, /MemoryError|guest_lost|not_serializable|invalid_option/);
      await isEmpty(small, IF_NOT_TOLD_MS);
      const limited = await inPage("failing", at(small), { memoryLimit: 1e9 });
      stays(limited, "backend_unavailable", "these limits");
    } finally {
      await small.stop();
    }
    return [];
  });
  await score.test("a sandbox stays when the server stands still, or ends meanwhile", async () => {
    for (const end of ["pause", "kill"]) {
      const frail = await start();
      try {
        await frail.pause();
        await inPage("leave", at(frail), { bootTimeout: 30_000 });
        if (end === "kill") await frail.stop("SIGKILL");
        const { error, result } = await inPage("found");
        assert.match(error, /backend_unavailable|boot_failed/);
        assert.match(error, /the sandbox has not moved/);
        assert.equal(result, "(1, 8)");
      } finally {
        frail.goOn();
        await frail.stop("SIGKILL");
      }
    }
    return [];
  });
  await score.test("a sandbox that is destroyed while it moves leaves nothing", async () => {
    const errors = await inPage("destroyed", at(host));
    const ends = errors.filter((/** @type {string} */ error) => error.includes(" destroyed: "));
    const rest = errors.filter((/** @type {string} */ error) => !error.includes(" destroyed: "));
    assert.ok(ends.length >= 10, errors.join("\n"));
    assert.ok(
      rest.every((/** @type {string} */ error) => error === "no error"),
      rest.join("\n"),
    );
    await isEmpty(host);
    return [];
  });

  await score.test("packages of the page come back, and the state's own with autoImport", async () => {
    const { files, packages } = await realWheels();
    files.set("pyodide-lock.json", /** @type {any} */ (JSON.stringify({ info: {}, packages })));
    const mirror = await serveFiles(files);
    try {
      const told = await page.evaluate(
        async (server, lock) => {
          const { withPackages } = await import(/** @type {any} */ ("/tests/e2e/move.js"));
          const { back } = await withPackages(server, lock);
          return back();
        },
        at(host),
        `${mirror.url}pyodide-lock.json`,
      );
      assert.equal(told.result, "(2, 'attrs', 'typing_extensions')");
      const wheels = mirror.asked.filter((name) => name.endsWith(".whl"));
      assert.deepEqual(wheels.toSorted(), [...new Set(wheels)].toSorted(), "each is fetched once");
    } finally {
      await mirror.close();
    }
    return [];
  });
  await score.test("a session that began at a server moves into the tab", async () => {
    const told = await inPage("toLoadedPackages", at(host));
    assert.match(told.error, /package_not_found.*the sandbox has not moved/);
    assert.deepEqual([told.lost, told.result, told.history], [[], "(1, 4)", 2]);
    await isEmpty(host);
    return [];
  });

  for (const [name, options] of /** @type {[string, object][]} */ ([
    ["a sandbox at a server is copied by value", {}],
    ["a sandbox with checkpoints at a server is copied by value", { checkpoints: 2 }],
  ])) {
    await score.test(name, async () => {
      const told = await inPage("copies", at(host), options);
      assert.deepEqual(told.ids, [3, 3, 5]);
      assert.deepEqual(told.lost, [LOST, LOST, [], []]);
      assert.deepEqual(told.states, ["kept", "kept"]);
      assert.deepEqual(told.results, ["False", "('b', False)", "(1, 43)", "43"]);
      assert.deepEqual([told.isApart, told.isBudgetShared], [true, true]);
      await isEmpty(host);
      return [];
    });
  }
  await score.test("a copy for which the server has no room is told, and the original goes on", async () => {
    const full = await start("--max-sessions", "1");
    try {
      const { error, result } = await inPage("noRoom", at(full));
      assert.match(error, /backend_unavailable.*no room for another.*there is no copy/s);
      assert.equal(result, "1");
      await isEmpty(full);
    } finally {
      await full.stop();
    }
    return [];
  });
  score.add("nothing is thrown into the page", uncaught);
} catch (error) {
  score.fail("the tests could not be run", [String(/** @type {Error} */ (error).stack ?? error)]);
} finally {
  await host.stop();
  await close();
}
score.end();

/**
 * Checks that a sandbox has not moved, and goes on exactly as it was.
 * @param {{ error: string, result: string, lost: string[], place: string }} told @param {string} code @param {string} why
 */
function stays({ error, result, lost, place }, code, why) {
  assert.ok(error.includes(code) && error.includes(why), error);
  assert.match(error, /the sandbox has not moved and goes on where it was/);
  assert.deepEqual([result, lost, place], ["(1, 'the', 8, 'answer to z')", [], "frame"]);
}
