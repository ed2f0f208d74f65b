// Packages in sandboxes. This file runs in a page; tests/e2e/packages.mjs serves the packages and reports the problems.

/** @import { Sandbox, SandboxOptions, CodeExecution } from "../../pkg/sandglass.js" */

const page = /** @type {any} */ (globalThis);
const { createSandbox, SandboxError } = /** @type {typeof import("../../pyodide-glue/index.js")} */ (
  await import(/** @type {any} */ ("/pyodide-glue/index.js"))
);
/** @type {{ mirror: string, locks: string, wheelhouse: string, forged: Record<string, string>, tiny2Hash: string }} */
const { mirror, locks, wheelhouse, forged, tiny2Hash } = page;
/** @type {() => Promise<string[]>} what the server was asked for since */
const askedFor = page.askedFor;
/** @type {() => Promise<[string[], string[]]>} what the server of lock files and that of wheels in another place were asked for since */
const askedElsewhere = page.askedElsewhere;

/** Code that hears no interrupt, so that its guest has to be ended: one that comes before the long call is swallowed. */
const STUCK = "while True:\n    try: sum(range(10 ** 11))\n    except BaseException: pass";
const PYDANTIC = ["annotated-types", "pydantic", "pydantic_core", "typing-inspection", "typing_extensions"];

/** @type {string[]} */
let problems = [];
/** @type {Set<Sandbox>} */
const alive = new Set();

/** @param {SandboxOptions} [options] */
async function create(options) {
  const sandbox = await createSandbox({ gracePeriod: 50, lockFileUrl: `${mirror}pyodide-lock.json`, ...options });
  alive.add(sandbox);
  return sandbox;
}

/** @param {SandboxOptions} [options] @param {unknown} [context] */
async function createReady(options, context = null) {
  const sandbox = await create(options);
  await sandbox.initialize(context);
  return sandbox;
}

/** @param {string} what @param {unknown} got @param {unknown} wanted */
function same(what, got, wanted) {
  const [one, other] = [JSON.stringify(got), JSON.stringify(wanted)];
  if (one !== other) problems.push(`${what}: ${one}, wanted ${other}`);
}

/** @param {string} what @param {unknown} text @param {string[]} parts */
function tells(what, text, ...parts) {
  for (const part of parts) if (!String(text).includes(part)) problems.push(`${what}: lacks "${part}": ${text}`);
}

/** Runs code that must succeed. Resolves to its output. @param {Sandbox} sandbox @param {string} code */
async function prints(sandbox, code, state = "kept") {
  const run = await sandbox.execute(code);
  if (run.outcome !== "ok" || run.state.status !== state) {
    problems.push(`${code}: ${run.outcome}, ${JSON.stringify(run.state)}, ${run.error}\n${run.traceback}`);
  }
  return run.stdout.trim();
}

/** Checks that a promise is rejected with this code and these words. @param {Promise<unknown>} promise @param {string} code @param {string[]} parts */
async function refused(promise, code, ...parts) {
  try {
    const got = await promise;
    problems.push(`not refused with ${code}: ${JSON.stringify(got)}`);
  } catch (error) {
    const { code: found, message } = /** @type {any} */ (error);
    if (!(error instanceof SandboxError)) problems.push(`not ours: ${error}`);
    same("the code", found, code);
    tells("the message", message, ...parts);
  }
}

/** Counts of packages fetched ahead, without those of code that ran ahead. @param {Sandbox} sandbox */
function packagesAhead(sandbox) {
  const { fetched, used } = sandbox.stats().ahead;
  return { fetched, used };
}

/** Ends the guest. Resolves to the execution's report about the state. @param {Sandbox} sandbox */
async function kill(sandbox) {
  const run = await sandbox.execute(STUCK, { timeout: 200 });
  same("how the killer ends", run.outcome, "timeout");
  return run.state;
}

/** @param {{ name: string, version: string }[]} loaded */
const names = (loaded) => loaded.map(({ name }) => name).sort();

const MODEL = `
import pydantic
class Point(pydantic.BaseModel):
    x: int
    tags: list[str] = []
point = Point(x="3", tags=["a"])
alias = point.tags
`;

/** @type {Record<string, () => Promise<void>>} */
const TESTS = {
  async "a package comes by name, with what it requires, and with its own compiled code"() {
    const sandbox = await createReady();
    same("loaded", names(await sandbox.loadPackages(["pydantic"])), PYDANTIC);
    same("asked for", (await askedFor()).length, 6);
    same("works", await prints(sandbox, `${MODEL}print(point.x, pydantic.VERSION)`), "3 2.14.3");
    const code = "from importlib.metadata import version\nprint(version('pydantic-core'), version('Pydantic'))";
    same("metadata", await prints(sandbox, code), "2.50.4 2.14.3");
    same("again", await sandbox.loadPackages(["pydantic"]), []);
    const loaded = await sandbox.loadPackages(["msgpack", "attrs"]);
    same("more", loaded, [
      { name: "msgpack", version: "1.2.4" },
      { name: "attrs", version: "26.1.0" },
    ]);
    const use = "import msgpack, attr\nprint(msgpack.unpackb(msgpack.packb({'a': [1]})), msgpack.Packer.__module__)";
    same("msgpack", await prints(sandbox, use), "{'a': [1]} msgpack._cmsgpack");
  },

  async "packages that were loaded after a checkpoint are not the user's files"() {
    const sandbox = await createReady({ maxFileBytes: 500_000 });
    await sandbox.execute("x = 1");
    await sandbox.checkpoint();
    await sandbox.loadPackages(["pydantic"]);
    await kill(sandbox);
    const write = "open('large', 'w').write('x' * 400_000)";
    same("written", await prints(sandbox, `print(${write}, x)`), "400000 1");
  },

  async "packages of the options are there before the first execution"() {
    const sandbox = await create({ packages: ["msgpack>=1,<2"] });
    await sandbox.initialize("context");
    same("works", await prints(sandbox, "import msgpack\nprint(len(msgpack.packb(context)))"), "8");
  },

  async "the wheels of a lock file may be in another place"() {
    const lockFileUrl = `${locks}lock/pyodide-lock.json`;
    const packageBaseUrl = `${wheelhouse}deep/wheels/`;
    await forget();
    const beside = await createReady({ lockFileUrl });
    // Only one file: further files might be requested only after the first has failed.
    await refused(beside.loadPackages(["attrs"]), "asset_failed", `${locks}lock/attrs`, "404", "packageBaseUrl");
    same("nobody asks the other place unasked", (await askedElsewhere())[1], []);
    const sandbox = await createReady({ lockFileUrl, packageBaseUrl, packages: ["pydantic"] });
    same("works", await prints(sandbox, `${MODEL}print(point.x, pydantic.VERSION)`), "3 2.14.3");
    same("later ones", names(await sandbox.loadPackages(["attrs"])), ["attrs"]);
    const [asked, wheels] = await askedElsewhere();
    same("the lock file's place", asked, ["lock/pyodide-lock.json"]);
    const folders = new Set(wheels.map((name) => name.slice(0, name.lastIndexOf("/"))));
    same("the wheels' place", [wheels.length, [...folders]], [6, ["deep/wheels"]]);
    const other = await createReady({ lockFileUrl, packageBaseUrl: `${wheelhouse}deep/wheels` });
    same("without a slash", names(await other.loadPackages(["idna"])), ["idna"]);
    const own = await createReady({ lockFileUrl: undefined, packageBaseUrl });
    await refused(own.loadPackages(["msgpack"]), "asset_failed", `${packageBaseUrl}msgpack`, "404");
    same("the place that is not named", await askedFor(), []);
  },

  async "versions and extras"() {
    const sandbox = await createReady();
    await refused(sandbox.loadPackages(["pydantic>=3"]), "package_not_found", "pydantic", ">=3", "2.14.3");
    await refused(sandbox.loadPackages(["pydantic==2.0", "attrs"]), "package_not_found", "2.14.3");
    const loaded = await sandbox.loadPackages(["pydantic[email] ~= 2.14", "Annotated_Types>=0.6"]);
    same("with extras", names(loaded), [...PYDANTIC, "dnspython", "email-validator", "idna"].sort());
    const code = `import pydantic
class A(pydantic.BaseModel):
    to: pydantic.EmailStr
print(A(to="someone@example.com").to)`;
    same("works", await prints(sandbox, code), "someone@example.com");
    await refused(sandbox.loadPackages(["msgpack", "attrs<1"]), "package_not_found", "attrs", "<1", "26.1.0");
    const tried = await sandbox.execute("import msgpack");
    same("nothing was installed", tried.errorType, "ModuleNotFoundError");
  },

  async "a wheel comes by its address, and brings what its METADATA says"() {
    const sandbox = await createReady();
    const url = mirror + forged["needs-tiny"];
    same("loaded", names(await sandbox.loadPackages([`needs-tiny[pack] @ ${url}`])), ["msgpack", "needs_tiny", "tiny"]);
    same("works", await prints(sandbox, "import needs_tiny, tiny\nprint(tiny.VALUE)"), "1");
    same("the same again", await sandbox.loadPackages([url]), []);
    const second = mirror + forged.tiny2;
    await refused(sandbox.loadPackages([second]), "package_not_found", "tiny", "1.0", "create another sandbox");
    const other = await createReady();
    const loaded = await other.loadPackages([`${second}#sha256=${tiny2Hash}`, url]);
    same("the address wins over the lock file", loaded[0], { name: "tiny", version: "2.0" });
    same("its module", await prints(other, "import tiny\nprint(tiny.VALUE)"), "2");
    const wrong = `${second}#sha256=${tiny2Hash.replace(/./g, "0")}`;
    await refused(create({ packages: [wrong] }), "integrity", forged.tiny2, tiny2Hash, "0000");
    await refused(
      other.loadPackages([mirror + forged["needs-much"]]),
      "package_not_found",
      "pydantic",
      ">=99",
      "2.14.3",
    );
  },

  async "what cannot be had is named"() {
    const sandbox = await createReady();
    await refused(sandbox.loadPackages(["nowhere>=2"]), "package_not_found", "nowhere", "pyodide-lock.json");
    await refused(sandbox.loadPackages(["linux-only"]), "package_not_found", "manylinux_2_28_x86_64", "pyemscripten");
    await refused(sandbox.loadPackages(["damaged"]), "integrity", forged.damaged, "SHA-256");
    await refused(sandbox.loadPackages([`${mirror}gone-1.0-py3-none-any.whl`]), "asset_failed", "gone-1.0", "404");
    await refused(sandbox.loadPackages([`${mirror}not_a_zip-1.0-py3-none-any.whl`]), "integrity", "no zip");
    await refused(sandbox.loadPackages([`${mirror}other-1.0-py3-none-any.whl`]), "integrity", "METADATA", "other");
    await refused(sandbox.loadPackages(["not a requirement"]), "invalid_option", "not a requirement");
    await refused(sandbox.loadPackages(/** @type {any} */ ("pydantic")), "invalid_option", "array");
    await refused(
      createSandbox({ packages: ["nowhere"], lockFileUrl: `${mirror}broken-lock.json` }),
      "asset_failed",
      "lock",
    );
    await refused(createSandbox({ packages: ["nowhere"] }), "package_not_found", "nowhere");
    const offline = await createReady({ lockFileUrl: undefined, packageBaseUrl: null, autoImport: true });
    await refused(offline.loadPackages(["attrs"]), "package_not_found", "attrs", "packageBaseUrl");
    same("no import is looked for", (await offline.execute("import attrs")).errorType, "ModuleNotFoundError");
    await refused(createSandbox(/** @type {any} */ ({ packageBaseUrl: 5 })), "invalid_option", "packageBaseUrl");
    await refused(createSandbox(/** @type {any} */ ({ autoImport: "yes" })), "invalid_option", "autoImport");
    same("the sandbox works", await prints(sandbox, "print(1 + 1)"), "2");
  },

  async "packages of an index are checked, and bring what they require"() {
    await forget();
    const sandbox = await createReady({ packageIndexUrl: `${mirror}index/` });
    const loaded = await sandbox.loadPackages(["pypi:typing-inspection>=0.4"]);
    same("it and what it requires", names(loaded), ["typing_extensions", "typing_inspection"]);
    const code = "import typing_inspection.typing_objects as t\nimport typing\nprint(t.is_any(typing.Any))";
    same("works", await prints(sandbox, code), "True");
    await refused(sandbox.loadPackages(["pypi:annotated-types"]), "integrity", "annotated", "SHA-256");
    await refused(sandbox.loadPackages(["pypi:nowhere"]), "package_not_found", "nowhere", "index");
    await refused(sandbox.loadPackages(["pypi:typing-inspection<0.4"]), "package_not_found", "0.4");
    const without = await createReady();
    await refused(without.loadPackages(["pypi:typing-inspection"]), "invalid_option", "packageIndexUrl");
  },

  async "a hostile wheel is refused whole"() {
    const sandbox = await createReady();
    const cases = { climbs: "leads out", absolute: "leads out", windows: "leads out", links: "is a link" };
    const more = { usurps: "part of the sandbox", sneaks: "part of the sandbox", bomb: "more than", cut: "no zip" };
    for (const [name, words] of Object.entries({ ...cases, ...more })) {
      await refused(sandbox.loadPackages(["tiny", name]), "integrity", forged[name], words);
    }
    const found = await prints(
      sandbox,
      `import os, sandglass.runtime
print([path for path in ("/tmp/escaped.py", "/escaped.py") if os.path.exists(path)], sandglass.runtime.__name__)
try:
    import tiny
except ModuleNotFoundError:
    print("nothing is left")`,
    );
    same("left behind", found, "[] sandglass.runtime\nnothing is left");
    same("harmless", names(await sandbox.loadPackages(["shadows", "splits"])), ["shadows", "splits"]);
    const code = "import json, shadows, splits, os\nprint(json.loads('[1]'), os.path.exists('/etc/x'))";
    same("the standard library comes first", await prints(sandbox, code), "[1] False");
    same("a later one", names(await sandbox.loadPackages(["tiny"])), ["tiny"]);
    await sandbox.checkpoint();
    same("the sandbox survives its guest", (await kill(sandbox)).status, "restored");
    same("works", await prints(sandbox, "import tiny\nprint(tiny.VALUE)"), "1");
  },

  async "what was loaded after the last checkpoint is there in the next guest"() {
    const sandbox = await createReady();
    await sandbox.loadPackages(["shadows"]);
    same("the folder was looked at", await prints(sandbox, "import shadows\nprint('yes')"), "yes");
    await sandbox.checkpoint();
    await sandbox.loadPackages(["tiny"]);
    same("the sandbox survives its guest", (await kill(sandbox)).status, "restored");
    same("works", await prints(sandbox, "import tiny\nprint(tiny.VALUE)"), "1");
  },

  async "two sandboxes fetch a wheel once"() {
    await forget();
    await askedFor();
    await Promise.all([createReady({ packages: ["pydantic"] }), createReady({ packages: ["pydantic-core"] })]);
    const wheels = (await askedFor()).filter((name) => name.endsWith(".whl"));
    same("asked for", wheels.length, new Set(wheels).size);
  },

  async "offline, what was fetched before works, and the rest says why not"() {
    await createReady({ packages: ["typing-inspection"] });
    await forget("idna");
    await page.unplug(true);
    try {
      const sandbox = await createReady({ packages: ["typing-inspection"] });
      same("works", await prints(sandbox, "import typing_inspection\nprint('here')"), "here");
      const { lockFileUrl, ...rest } = { lockFileUrl: `${mirror}pyodide-lock.json?fresh`, packages: ["attrs"] };
      await refused(create({ ...rest, lockFileUrl }), "asset_failed", "lock file", "404");
    } finally {
      await page.unplug(false);
    }
  },

  async "a hint fetches what code imports, and shows nothing of it"() {
    await forget();
    const sandbox = await createReady({ autoImport: true });
    await askedFor();
    await sandbox.hint("import msgpack, json, nowhere_at_all\n'import attr'");
    same("asked for", (await askedFor()).filter((name) => name.endsWith(".whl")).length, 1);
    const code = "import sys, importlib.util as u\nprint(u.find_spec('msgpack'), 'msgpack' in sys.modules)";
    same("nothing is there", await prints(sandbox, code), "None False");
    same("fetched", packagesAhead(sandbox), { fetched: 1, used: 0 });
    await page.unplug(true);
    try {
      same("works", await prints(sandbox, "import msgpack\nprint(len(msgpack.packb([1])))"), "2");
    } finally {
      await page.unplug(false);
    }
    same("used", packagesAhead(sandbox), { fetched: 1, used: 1 });
    await sandbox.hint("import msgpack");
    same("no second time", [await askedFor(), packagesAhead(sandbox)], [[], { fetched: 1, used: 1 }]);
    const plain = await createReady();
    await plain.hint("import attr");
    same("not without autoImport", [await askedFor(), plain.stats().ahead.fetched], [[], 0]);
    await refused(sandbox.hint(/** @type {any} */ (5)), "invalid_option", "code");
    await sandbox.destroy();
    await refused(sandbox.hint("1"), "destroyed");
  },

  async "a hint starts a guest where there is none, and fails with nobody"() {
    const sandbox = await create({ autoImport: true, lockFileUrl: `${mirror}broken-lock.json` });
    await sandbox.hint("import attr");
    await sandbox.initialize(null);
    same("works", await prints(sandbox, "print(1)"), "1");
  },

  async "what a model writes is prepared while it writes"() {
    await forget();
    const sandbox = await createReady({ autoImport: true });
    await askedFor();
    const wheels = async () =>
      (await askedFor()).filter((name) => name.endsWith(".whl")).map((name) => name.split("-")[0]);
    const written = "I need two.\n```repl\nimport msgpack\nimport idna\nprint(idna.__name__)\n```\nimport attr\n";
    const question = /** @type {const} */ ({ role: "user", content: "```repl\nimport attr\n```" });
    /** @type {string[][]} */
    const seen = [];
    for (let end = 0; end <= written.length; end += 6) {
      await sandbox.updateConversation([question, { role: "assistant", content: written.slice(0, end) }]);
      seen.push(await wheels());
    }
    same(
      "each once, as soon as its line is there",
      seen.filter(({ length }) => length),
      [["msgpack"], ["idna"]],
    );
    const line = seen.findIndex(([name]) => name === "msgpack");
    same("before the next line is", line * 6 < written.indexOf("\nprint"), true);
    await sandbox.updateConversation([]);
    for (const wrong of [7, [5], [{ role: "assistant" }]]) {
      await refused(sandbox.updateConversation(/** @type {any} */ (wrong)), "invalid_option", "messages");
    }
  },

  async "code that comes in pieces is one execution, and what it imports is fetched meanwhile"() {
    await forget();
    const sandbox = await createReady({ autoImport: true });
    await askedFor();
    /** @type {() => void} */
    let goOn = () => {};
    const halfWay = new Promise((resolve) => (goOn = () => resolve(undefined)));
    async function* pieces() {
      yield "import msg";
      yield "pack\nprint('\ud83c";
      yield "\udf89', ";
      await halfWay;
      yield "msgpack.unpackb(b'\\x01'))";
    }
    const running = sandbox.executeStream(pieces());
    for (let tries = 0; sandbox.stats().ahead.fetched < 1 && tries < 500; tries += 1) {
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    same("fetched meanwhile", packagesAhead(sandbox), { fetched: 1, used: 0 });
    same("others go first", await prints(sandbox, "print('first')"), "first");
    goOn();
    const run = await running;
    same("one execution", [run.outcome, run.id, run.stdout], ["ok", 2, "🎉 1\n"]);
    same("its code", run.code.split("\n")[0], "import msgpack");
    same("used", packagesAhead(sandbox), { fetched: 1, used: 1 });
    // Statements run as they come, once the packages that they import are there.
    const statements = () => sandbox.stats().ahead.code.stream;
    async function* again() {
      yield "import msgpack\nx = msgpack.packb(1)\nx\n";
      for (let tries = 0; !statements()?.finished && tries < 500; tries += 1) {
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
      yield "try:\n    import attr\nexcept ImportError:\n    attr = None\ny = 1\n";
      yield "(x, attr is None)";
    }
    const { result } = await sandbox.executeStream(again());
    same("what came to it", result, "(b'\\x01', False)");
    const { started, finished, used } = { started: 0, finished: 0, used: 0, ...statements() };
    same("run as it came, until a package was missing", [started, finished, used], [1, 1, 0]);
  },

  async "code that imports a package has it, with autoImport"() {
    const sandbox = await createReady({ autoImport: true });
    same("no import, no request", [await prints(sandbox, "print(1)"), await askedFor()], ["1", []]);
    await prints(sandbox, "import json, nowhere_at_all" + "".padEnd(0) + " if False else None").catch(() => {});
    problems = problems.filter((problem) => !problem.includes("nowhere_at_all"));
    const first = sandbox.execute("import tiny as t\nprint(t.VALUE)");
    const second = sandbox.execute("print(t.VALUE + 1)"); // must keep its place in the queue
    same("in order", [(await first).stdout, (await second).stdout], ["1\n", "2\n"]);
    same(
      "inside",
      await prints(sandbox, "def f():\n    from msgpack import packb\n    return packb(1)\nprint(f())"),
      "b'\\x01'",
    );
    const zoned =
      "import datetime as d, zoneinfo as z\nprint(d.datetime(2024, 1, 1, tzinfo=z.ZoneInfo('Europe/Paris')))";
    same("time zones", await prints(sandbox, zoned), "2024-01-01 00:00:00+01:00");
    const text = await prints(sandbox, "print('import attr')");
    same("in a string", [text, (await askedFor()).some((name) => name.startsWith("attrs"))], ["import attr", false]);
    const broken = await sandbox.execute("try:\n    import damaged\nexcept ImportError:\n    print('gone on')");
    same("goes on without", [broken.outcome, broken.stdout], ["ok", "gone on\n"]);
    tells("and says why", broken.stderr, "damaged", "SHA-256");
    const plain = await createReady();
    const run = await plain.execute("import tiny");
    same(
      "not unasked",
      [run.errorType, run.error],
      ["ModuleNotFoundError", "ModuleNotFoundError: No module named 'tiny'"],
    );
    tells("a hint", run.traceback, "loadPackages", "tiny");
  },

  async "waiting for a package is nobody's time, and can be stopped"() {
    const sandbox = await createReady({ timeout: 4000, autoImport: true });
    await forget();
    await page.hold("answers");
    try {
      const controller = new AbortController();
      const load = sandbox.loadPackages([mirror + forged.tiny], { signal: controller.signal });
      setTimeout(() => controller.abort(), 50);
      await refused(load, "timeout", "nothing was changed");
      await refused(sandbox.loadPackages(["attrs"], { signal: AbortSignal.abort() }), "timeout", "nothing");
      const waiting = sandbox.execute("import attr");
      setTimeout(() => sandbox.interrupt(), 100);
      same("interrupted", (await waiting).outcome, "interrupted");
      const late = sandbox.execute("import attr\nprint('late')");
      setTimeout(() => page.hold(), 6000);
      same("not its time", [(await late).outcome, (await late).stdout], ["ok", "late\n"]);
      same("it works", await prints(sandbox, "print(1 + 1)"), "2");
      const ended = createReady();
      await page.hold("answers");
      const doomed = (await ended).loadPackages([`${mirror}${forged.splits}`]);
      (await ended).destroy();
      await refused(doomed, "destroyed");
    } finally {
      await page.hold();
    }
  },

  async progress() {
    await forget();
    /** @type {any[]} */
    const [all, own] = [[], []];
    const sandbox = await createReady({ onProgress: (progress) => all.push(progress) });
    // The second half comes only after the progress of the first is reported.
    await page.hold("halves");
    const onProgress = (/** @type {any} */ progress) => {
      own.push(progress);
      if (progress.package === "pydantic_core") page.hold();
    };
    await sandbox.loadPackages(["pydantic-core"], { onProgress });
    const core = own.filter(({ package: name }) => name === "pydantic_core");
    same("ends", core.at(-1), { stage: "packages", package: "pydantic_core", loaded: 1496509, total: 1496509 });
    same("begins", [core[0].loaded <= 748_254, core[0].total], [true, 1496509]);
    const sorted = core.every(({ loaded }, index) => index === 0 || loaded >= core[index - 1].loaded);
    same("grows", sorted, true);
    same("the sandbox's own", all.filter(({ stage }) => stage === "packages").length, own.length);
  },

  async "instances of a package's classes survive the guest"() {
    const sandbox = await createReady({ packages: ["pydantic", "msgpack", "attrs"] });
    await prints(
      sandbox,
      `${MODEL}
import attr, msgpack
@attr.s(auto_attribs=True)
class Pair:
    a: int
    b: object = None
pair = Pair(1, point)
packer = msgpack.packb
def numbers():
    for n in range(10):
        yield Point(x=n)
half = numbers(); next(half); next(half)`,
    );
    await sandbox.checkpoint();
    const state = await kill(sandbox);
    same("restored", [state.status, state.lost], ["restored", undefined]);
    const code =
      "print(point, pair.b is point, alias is point.tags, packer([1]), next(half))\nprint(Point(x='9').x, attr.__name__)";
    same("works", await prints(sandbox, code), "x=3 tags=['a'] True True b'\\x91\\x01' x=2 tags=[]\n9 attr");
    await sandbox.execute("point.x = 4");
    await sandbox.checkpoint();
    // Executions of the restored state that took a number. A pause of the machine may have had one saved.
    /** @type {number[]} */
    let took = [];
    for (let round = 0; round < 3; round++) {
      const { status, restoredTo = NaN } = await kill(sandbox);
      same("again", status, "restored");
      took = took.filter((id) => id <= restoredTo);
      const run = await sandbox.execute("print(point.x, next(half).x)");
      same("as it was", [run.outcome, run.stdout], ["ok", `4 ${3 + took.length}\n`]);
      took.push(run.id);
    }
    const failed = await sandbox.execute("Point(x='no')");
    same("errors of compiled code", failed.errorType, "ValidationError");
  },

  async "compiled code is at its place in the next guest, whatever was loaded when"() {
    const use = {
      msgpack:
        "import msgpack\nunpacker = msgpack.Unpacker(); unpacker.feed(msgpack.packb(1) + msgpack.packb(2)); unpacker.unpack()",
      pydantic: `${MODEL}\nlines = (Point(x=n) for n in range(9)); next(lines)\ncore = pydantic.TypeAdapter(list[Point])`,
    };
    const proof = {
      msgpack: ["print(unpacker.unpack(), msgpack.packb('a'))", "2 b'\\xa1a'"],
      pydantic: [
        "print(next(lines).x, point, core.validate_json('[{\"x\": 7}]')[0].x, alias is point.tags)",
        "1 x=3 tags=['a'] 7 True",
      ],
    };
    for (const order of /** @type {("msgpack" | "pydantic")[][]} */ ([
      ["msgpack", "pydantic"],
      ["pydantic", "msgpack"],
    ])) {
      const sandbox = await createReady({ packages: ["pydantic", "msgpack"] });
      await prints(sandbox, "import ctypes, json\nhistory = [0] * 100_000");
      for (const name of order) {
        await prints(sandbox, use[name]);
        await sandbox.checkpoint();
        const state = await kill(sandbox);
        same(`restored with ${name}`, [state.status, state.lost], ["restored", undefined]);
      }
      const fork = await sandbox.fork();
      alive.add(fork);
      for (const copy of [fork, sandbox]) {
        for (const name of order) same(name, await prints(copy, proof[name][0]), proof[name][1]);
        if (order[0] === "pydantic") continue; // what fills the heap does not depend on the order
        await prints(copy, "points = [Point(x=n, tags=[str(n)] * 5) for n in range(20_000)]\nhistory = None");
        await copy.checkpoint();
        same("a full heap", (await kill(copy)).status, "restored");
        same(
          "of instances",
          await prints(copy, "print(sum(p.x for p in points), points[7].model_dump_json())"),
          '199990000 {"x":7,"tags":["7","7","7","7","7"]}',
        );
      }
      await sandbox.restore(2);
      same("an earlier one", await prints(sandbox, proof[order[0]][0]), proof[order[0]][1]);
      same("without what came later", (await sandbox.execute(proof[order[1]][0])).errorType, "NameError");
      for (const one of [fork, sandbox]) await one.destroy();
    }
  },

  async "functions that ctypes made are named, and all else is exact"() {
    const sandbox = await createReady({ packages: ["pydantic"] });
    await prints(
      sandbox,
      "import ctypes\nmake = ctypes.CFUNCTYPE(ctypes.c_int)\ncallback = make(lambda: 1)\nfor n in range(9): make(lambda: n)",
    );
    await prints(sandbox, `${MODEL}\nhalf = (n for n in range(9)); next(half)`);
    await sandbox.checkpoint();
    const { status, lost = [] } = await kill(sandbox);
    same("restored", [status, names(/** @type {any} */ (lost))], ["restored", ["callback"]]);
    same(
      "goes on",
      await prints(sandbox, "print(point, next(half), alias is point.tags, make(lambda: 5)())"),
      "x=3 tags=['a'] 1 True 5",
    );
  },

  async "with code that no other guest has, variables are saved by value"() {
    const sandbox = await createReady({ packages: ["pydantic", "msgpack"] });
    await prints(
      sandbox,
      `${MODEL}\nhalf = (n for n in range(9))
import ctypes, glob, shutil, msgpack
shutil.copy(msgpack._cmsgpack.__file__, "/tmp/own.so")
library = ctypes.CDLL("/tmp/own.so")
del library`,
    );
    await sandbox.checkpoint();
    const { status, lost = [] } = await kill(sandbox);
    same("restored", [status, names(/** @type {any} */ (lost))], ["restored", ["half"]]);
    same(
      "by reference",
      await prints(sandbox, "print(point, Point(x=1).x, alias is point.tags)"),
      "x=3 tags=['a'] 1 True",
    );
  },

  async "a guest can have nothing fetched"() {
    const sandbox = await createReady({ autoImport: true, packages: ["tiny"] });
    await askedFor();
    const url = `${mirror}${forged.splits}`;
    for (const code of [
      `import pyodide_js\nawait pyodide_js.loadPackage("${url}")`,
      `import pyodide_js\nawait pyodide_js.loadPackage("attrs")`,
      `import micropip\nawait micropip.install("${url}")`,
      `import js\nawait js.fetch("${url}")`,
      `from pyodide.http import pyfetch\nawait pyfetch("${url}")`,
      `from os import "${url}"`,
      `import importlib\nimportlib.import_module("attr")`,
    ]) {
      const run = await sandbox.execute(code);
      if (run.outcome === "ok") problems.push(`${code}: ${run.stdout}`);
    }
    same("asked for", await askedFor(), []);
    same("it works", await prints(sandbox, "import tiny\nprint(tiny.VALUE)"), "1");
  },

  async "pure Python packages leave checkpoints exact"() {
    const sandbox = await createReady({ packages: ["attrs"] });
    await prints(sandbox, "import attr\ndef numbers():\n    yield from range(9)\nhalf = numbers(); next(half)");
    await sandbox.checkpoint();
    same("restored", (await kill(sandbox)).status, "restored");
    same("a generator goes on", await prints(sandbox, "print(next(half), attr.asdict.__name__)"), "1 asdict");
  },

  async "packages that come later are in every guest"() {
    const sandbox = await createReady();
    await prints(sandbox, "x = 1");
    await sandbox.checkpoint();
    await sandbox.loadPackages(["tiny", "msgpack"]);
    same("before it was saved", (await kill(sandbox)).status, "restored");
    same(
      "works",
      await prints(sandbox, "import tiny, msgpack\nprint(x, tiny.VALUE, msgpack.packb(1))"),
      "1 1 b'\\x01'",
    );
    await sandbox.checkpoint();
    same("once more", (await kill(sandbox)).status, "restored");
    same("works on", await prints(sandbox, "print(x, tiny.VALUE, msgpack.packb(2))"), "1 1 b'\\x02'");
  },

  async "undo, restore and fork with packages"() {
    const sandbox = await createReady();
    await prints(sandbox, "x = 1");
    await sandbox.checkpoint();
    await sandbox.loadPackages(["pydantic"]);
    await prints(sandbox, MODEL);
    await sandbox.checkpoint();
    await prints(sandbox, "point.x = 100");
    await sandbox.undo();
    same("undone", await prints(sandbox, "print(point.x)"), "3");
    const fork = await sandbox.fork();
    alive.add(fork);
    same("forked", await prints(fork, "point.x += 1\nprint(point.x, Point(x='5').x)"), "4 5");
    same("not the same", await prints(sandbox, "print(point.x)"), "3");
    same("nothing new", await fork.loadPackages(["pydantic"]), []);
    await sandbox.restore(1);
    same("before the package", (await sandbox.execute("point")).errorType, "NameError");
    same("which stays", await prints(sandbox, `${MODEL}print(point.x)`), "3");
  },

  async "in a worker of the page's own"() {
    const sandbox = await createReady({ isolation: "worker", packages: ["pydantic"] });
    same("works", await prints(sandbox, `${MODEL}print(point.x)`), "3");
    await sandbox.checkpoint();
    same("restored", (await kill(sandbox)).status, "restored");
    same("still", await prints(sandbox, "print(point)"), "x=3 tags=['a']");
  },

  async "without checkpoints, later guests have the packages"() {
    const sandbox = await createReady({ packages: ["msgpack"], checkpoints: "off" });
    same("lost", (await kill(sandbox)).status, "lost");
    same("works", await prints(sandbox, "import msgpack\nprint(msgpack.packb(1))"), "b'\\x01'");
  },
};

/** Removes this test's wheels from the page's and the browser's caches. @param {string} [_name] */
async function forget(_name) {
  await caches.delete("sandglass-packages");
}

page.tests = TESTS;
page.run = async (/** @type {string} */ name) => {
  problems = [];
  try {
    await TESTS[name]();
  } catch (error) {
    problems.push(String(/** @type {any} */ (error)?.stack ?? error) + ` ${/** @type {any} */ (error)?.code ?? ""}`);
  }
  for (const sandbox of alive) await sandbox.destroy();
  alive.clear();
  return problems;
};
