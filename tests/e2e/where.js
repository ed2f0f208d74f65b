// Which cases add something where. Chromium and bubblewrap run every case. So does the kernel of a notebook, whose interpreter is not
// ours. Elsewhere a case is left out that touches only what is the same there: by these rules, or with `--all` never.

/** Files about what Python does by itself. */
const PYTHON = ["displays", "errors", "execution", "helpers", "profiles", "settings", "values"];
/** Files with cases in which Python waits, or is stopped; and such cases of others. */
const WAITING = [
  ...["budgets", "execution", "lifecycle", "output", "profiles", "queries", "settings", "stopping"],
  "hostile/signal_handlers_of_a_cell_do_not_disarm_the_timeout",
  "hostile/disabling_signals_within_a_cell_ends_in_a_termination_at_worst",
];
/** Files about the stack that Python has: there it is the worker's own, elsewhere one of JSPI's. */
const STACK = ["recursion"];
/** Files about the process that a guest is: its files, streams, bounds and end. */
const PROCESS = ["execution", "files", "hostile", "lifecycle", "output", "recovery", "settings", "stopping"];

/** Keys of options and steps with which Python waits for the page, or is stopped by it; and words of such code. */
const WAITS =
  /"(timeout|abort|interrupt|interrupt_after_ms|together|destroy|\w*Timeout|gracePeriod|budget|max\w*Calls\w*)":|_query|async|await|input|getpass|sleep|signal|while True/;

/** @typedef {{ name: string, host?: object, options?: object, context?: unknown, step: any[] }} Case  its name begins with its file's */

/** @param {Case} test @param {string[]} places  files, or cases */
const isOf = ({ name }, places) => places.includes(name.split("/")[0]) || places.includes(name);

/** Returns true when Python may wait in it, or be stopped. @param {Case} test */
const mayWait = (test) => test.host !== undefined || WAITS.test(JSON.stringify([test.options, test.step]));

/** Returns true when a case only runs code, and nothing but Python is asked. @param {Case} test */
function isPythonAlone(test) {
  const isPlain = (/** @type {any} */ step) =>
    typeof step.execute === "string" && Object.keys(step).every((key) => ["execute", "expect"].includes(key));
  const isPlainSandbox = !test.host && !test.options && test.context === undefined;
  return isOf(test, PYTHON) && isPlainSandbox && test.step.every(isPlain) && !mayWait(test);
}

/**
 * By the name of a place: which cases it runs, and why it leaves out the others.
 * @type {Record<string, { runs: (test: Case) => boolean, why: string }>}
 */
const PLACES = {
  firefox: { runs: (test) => !isPythonAlone(test), why: "Python is the same as in Chromium" },
  shared: {
    runs: (test) => isOf(test, STACK) || (isOf(test, WAITING) && mayWait(test)),
    why: "such pages differ in how Python waits, and in its stack",
  },
  subprocess: { runs: (test) => isOf(test, PROCESS), why: "bubblewrap has the same runtime and transport" },
  docker: { runs: (test) => !isPythonAlone(test), why: "Python is the same as in bubblewrap" },
};

/**
 * Why a case is left out in one of these places, if it is.
 * @param {Case} test @param {string[]} places  such as `["firefox", "shared"]`
 */
export function leftOut(test, places) {
  return places.map((place) => PLACES[place]).find((place) => place && !place.runs(test))?.why;
}
