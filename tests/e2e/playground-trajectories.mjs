// Made-up recordings for tests: a hostile one and a long one.

const usage = { calls: 0, inputTokens: 10, outputTokens: 5, cost: 0 };
/** A PNG of one pixel. */
const PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/** @param {object} fields */
const execution = (fields) => ({
  id: 1,
  code: "",
  stdout: "",
  stderr: "",
  duration: 2,
  guestTime: 1,
  outcome: "ok",
  state: { status: "kept" },
  truncated: { stdout: 0, stderr: 0 },
  hostCalls: 0,
  displays: [],
  ...fields,
});

/** Collects events and gives each a time. */
function writer() {
  /** @type {string[]} */
  const lines = [];
  return {
    /** @param {string} run @param {string} type @param {object} fields */
    add: (run, type, fields) => {
      const depth = run.split(".").length - 1;
      lines.push(`${JSON.stringify({ run, depth, time: lines.length, type, ...fields })}\n`);
    },
    text: () => lines.join(""),
  };
}

/** A recording in which every text is an attack. @param {string} attack */
export function hostileTrajectory(attack) {
  const { add, text } = writer();
  const facts = { name: attack, type: attack, length: 3, unit: attack, peek: attack };
  add("0", "runStarted", {
    version: 1,
    task: attack,
    contexts: [facts],
    maxIterations: 3,
    maxDepth: 1,
    answerSchema: attack,
  });
  add("0", "historyCompacted", { before: 9, after: 8, turns: 1 });
  add("0", "turnStarted", { turn: 1, of: 3, messages: 2, promptTokens: 1, left: { calls: 1e300, time: -1 } });
  add("0", "retry", { attempt: 1, wait: 1, reason: attack });
  add("0", "text", { text: attack });
  add("0", "modelReplied", {
    turn: 1,
    text: `${attack}\n\`\`\`repl\n${attack}\n\`\`\``,
    usage,
    estimated: true,
    cut: true,
    duration: 1,
  });
  add("0", "codeStarted", { turn: 1, block: 1, blocks: 1, code: attack });
  add("0", "output", { stream: "stdout", text: attack });
  add("0", "callStarted", {
    call: 1,
    name: attack,
    prompt: attack,
    promptChars: 1,
    promptHash: attack,
    model: attack,
    child: "0.0",
  });
  add("0", "callEnded", { call: 1, error: attack, duration: 1 });
  add("0", "callEnded", { call: 99, answer: attack, duration: 1 });
  add("0.7.7", "runEnded", { outcome: "failed", error: attack, iterations: 1, usage, duration: 1 });
  const lost = [{ name: attack, reason: attack }];
  const displays = [
    { mime: "image/png", data: PIXEL },
    { mime: "image/png", data: `x" onerror="hacked=1` },
    { mime: "image/svg+xml", data: `<svg onload="hacked=1"/>` },
    { mime: "text/html", data: attack },
  ];
  const fields = {
    stdout: attack,
    stderr: attack,
    error: attack,
    traceback: attack,
    result: attack,
    outcome: "error",
    displays,
  };
  add("0", "executionEnded", {
    turn: 1,
    block: 1,
    declared: true,
    execution: execution({ ...fields, state: { status: "lost", lost } }),
  });
  add("0", "answerRejected", { problems: attack });
  add("0", "runEnded", {
    outcome: "answered",
    answer: { [attack]: attack, __proto__: null },
    iterations: 1,
    usage,
    duration: 1,
  });
  return text();
}

/** A recording of 600 turns with calls, 200 child runs, and a last batch of 500 calls. */
export function longTrajectory() {
  const { add, text } = writer();
  const start = { version: 1, task: "a long one", contexts: [], maxIterations: 600, maxDepth: 1 };
  add("0", "runStarted", start);
  let call = 0;
  for (let turn = 1; turn <= 600; turn++) {
    add("0", "turnStarted", { turn, of: 600, messages: 2 * turn, promptTokens: 50, left: { calls: 5000 } });
    const code = `answers = llm_query_batched(["part ${turn}"] * 3)\nprint(answers)`;
    const reply = `Turn ${turn}: asking about it.\n\`\`\`repl\n${code}\n\`\`\``;
    add("0", "modelReplied", { turn, text: reply, usage, estimated: false, cut: false, duration: 5 });
    add("0", "codeStarted", { turn, block: 1, blocks: 1, code });
    for (let n = 0; n < (turn === 600 ? 500 : 3); n++) {
      const child = turn <= 200 && n === 0 ? `0.${turn - 1}` : undefined;
      const name = child ? "rlm_query" : "llm_query";
      add("0", "callStarted", {
        call: ++call,
        name,
        prompt: `part ${turn}.${n}`,
        promptChars: 8,
        promptHash: "0",
        child,
      });
      if (child) {
        add(child, "runStarted", { ...start, task: `part ${turn}` });
        add(child, "runEnded", { outcome: "answered", answer: "yes", iterations: 0, usage, duration: 3 });
      }
      add("0", "callEnded", { call, answer: "yes", usage, duration: 3 });
    }
    add("0", "executionEnded", {
      turn,
      block: 1,
      declared: turn === 600,
      execution: execution({ code, stdout: "['yes']\n", hostCalls: 3 }),
    });
  }
  add("0", "runEnded", { outcome: "answered", answer: "done", iterations: 600, usage, duration: 9_000 });
  return text();
}
