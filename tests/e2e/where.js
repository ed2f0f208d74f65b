// The cases that are left out in some places. Chromium and bubblewrap run every case, and so does the kernel of a notebook, whose
// interpreter is not ours. Elsewhere a case is left out if it touches only code that is the same there. With `--all` none is.

/** Files about Python by itself. */
const PYTHON = ["displays", "errors", "execution", "helpers", "profiles", "settings", "values"];
/** Files with cases in which Python waits or is stopped, and single cases of other files. */
const WAITING = [
  ...["budgets", "execution", "lifecycle", "output", "profiles", "queries", "settings", "stopping"],
  "hostile/signal_handlers_of_a_cell_do_not_disarm_the_timeout",
  "hostile/disabling_signals_within_a_cell_ends_in_a_termination_at_worst",
];
/** Files about Python's stack: in pages with shared memory it is the worker's own, in others one of JSPI's. */
const STACK = ["recursion"];
/** Files about a guest's process: its files, streams, bounds and end. */
const PROCESS = ["execution", "files", "hostile", "lifecycle", "output", "recovery", "settings", "stopping"];

/** Keys of options and steps that make Python wait for the page or stop it, and words of such code. */
const WAITS =
  /"(timeout|abort|interrupt|interrupt_after_ms|together|destroy|\w*Timeout|gracePeriod|budget|max\w*Calls\w*)":|_query|async|await|input|getpass|sleep|signal|while True/;

/** @typedef {{ name: string, host?: object, options?: object, context?: unknown, step: any[] }} Case  `name` begins with the file's name */

/** @param {Case} test @param {string[]} places  files, or cases */
const isOf = ({ name }, places) => places.includes(name.split("/")[0]) || places.includes(name);

/** Returns true if Python may wait or be stopped in a case. @param {Case} test */
const mayWait = (test) => test.host !== undefined || WAITS.test(JSON.stringify([test.options, test.step]));

/** Returns true if a case only runs code and asks nothing but Python. @param {Case} test */
function isPythonAlone(test) {
  const isPlain = (/** @type {any} */ step) =>
    typeof step.execute === "string" && Object.keys(step).every((key) => ["execute", "expect"].includes(key));
  const isPlainSandbox = !test.host && !test.options && test.context === undefined;
  return isOf(test, PYTHON) && isPlainSandbox && test.step.every(isPlain) && !mayWait(test);
}

/**
 * For each place, the cases that it runs, and the reason to leave out the others.
 * @type {Record<string, { runs: (test: Case) => boolean, why: string }>}
 */
const PLACES = {
  firefox: { runs: (test) => !isPythonAlone(test), why: "Python is the same as in Chromium" },
  shared: {
    runs: (test) => isOf(test, STACK) || (isOf(test, WAITING) && mayWait(test)),
    why: "such pages differ in how Python waits, and in its stack",
  },
  node: {
    runs: (test) => isOf(test, [...STACK, "history", "lifecycle", "stopping"]),
    why: "guests in processes differ in how Python waits and ends, in its stack, and in how messages and checkpoints cross",
  },
  deno: { runs: (test) => isOf(test, ["stopping"]), why: "it has the glue of Node.js" },
  bun: { runs: (test) => isOf(test, ["history"]), why: "its guests are those of Node.js" },
  subprocess: {
    runs: (test) => isOf(test, [...PROCESS, "history"]),
    why: "bubblewrap has the same runtime and transport",
  },
  docker: { runs: (test) => isOf(test, PROCESS), why: "bubblewrap has the same runtime and transport" },
};

/**
 * The reason to leave out a case in one of these places, if there is one.
 * @param {Case} test @param {string[]} places  such as `["firefox", "shared"]`
 */
export function leftOut(test, places) {
  return places.map((place) => PLACES[place]).find((place) => place && !place.runs(test))?.why;
}
