// Tests of `npm run bench:rlm` that need no contestant: its tasks, its model server and its figures.
//   node tests/bench-rlm.mjs
import { deepStrictEqual, ok, rejects, throws } from "node:assert";
import { spawn } from "node:child_process";
import { connect, constants } from "node:http2";
import { criticalPath } from "../scripts/bench/rlm/measure.mjs";
import { startModel } from "../scripts/bench/rlm/model.mjs";
import { CONVENTIONS, codeOf, turnsDone } from "../scripts/bench/rlm/policies.mjs";
import { between, pageTables } from "../scripts/bench/rlm/page.mjs";
import { drawn } from "../scripts/bench/rlm/seeded.mjs";
import { mainTable } from "../scripts/bench/rlm/report.mjs";
import { readmeLine, standing } from "../scripts/bench/rlm/standing.mjs";
import { picture } from "../scripts/bench/rlm/spread.mjs";
import { BEGIN, END, KINDS, SMALL, makeTask, oracle, readPrompt } from "../scripts/bench/rlm/tasks.mjs";
import { countAnswer } from "../scripts/bench/rlm/tasks/count.mjs";
import { Score } from "./e2e/harness.mjs";

/** @import { Behaviour, Call } from "../scripts/bench/rlm/model.mjs" */

/** A model that takes no time. @type {Behaviour} */
const QUICK = { firstToken: 0, readsPerSecond: 1e9, writesPerSecond: 1e9, errorRate: 0 };
/** Runs code that the model would write, with the standard library of Python. Arguments: the address of the model. */
const RUNNER = `
import json, sys, urllib.request
def query(prompt):
    body = {"model": "sub", "messages": [{"role": "user", "content": prompt}]}
    request = urllib.request.Request(sys.argv[1] + "/chat/completions", json.dumps(body).encode())
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
order, answers = json.load(sys.stdin), []
space = {"context": order["context"], "FINAL": answers.append, "print": lambda *words: None, "llm_query": query,
         "llm_query_batched": lambda prompts: [query(prompt) for prompt in prompts]}
for code in order["code"]:
    exec(code, space)
sys.stdout.write(answers[0])
`;
/** A prompt that the oracle knows. */
const PROMPT = `${countAnswer.question}\n\n${BEGIN}Ada Abel (Lyon): My receipt of May shows the wrong price.${END}`;

const score = new Score();
const model = await startModel();
const task = makeTask("count", 1, 2 ** 13);

await test("the code for each task finds the right answer when the oracle never errs", async () => {
  for (const kind of [...KINDS, SMALL]) {
    for (const [seed, tokens, atOnce] of /** @type {const} */ ([
      [1, 2 ** 13, 8],
      [2, 2 ** 15, undefined],
    ])) {
      const made = makeTask(kind, seed, tokens);
      const run = model.begin({ task: made, convention: "sandglass", behaviour: QUICK });
      const code = codeOf(made.turns, CONVENTIONS.sandglass, atOnce);
      const answer = await python(run.url, { context: made.context, code });
      deepStrictEqual([kind, seed, made.score(answer)], [kind, seed, 1], answer);
      ok(run.calls.length <= 33, `${kind}: ${run.calls.length} calls`);
      ok(run.calls.every(({ delivered, kind }) => delivered && kind === "sub"));
      ok(made.score("") < 0.1 && made.score("nobody") < 0.1);
      deepStrictEqual(makeTask(kind, seed, tokens).context, made.context);
      ok(Math.abs(made.context.length / 4 / tokens - 1) < 0.1, `${made.context.length} characters`);
      run.end();
    }
  }
});

await test("the code for each task ends without an error when the oracle always errs", async () => {
  for (const kind of [...KINDS, SMALL]) {
    const made = makeTask(kind, 3, 2 ** 13);
    const run = model.begin({ task: made, convention: "sandglass", behaviour: { ...QUICK, errorRate: 1 } });
    await python(run.url, { context: made.context, code: codeOf(made.turns, CONVENTIONS.sandglass) });
    run.end();
  }
});

await test("a page speaks HTTP/2, and what was given up or broken off was not delivered", async () => {
  ok(model.hasHttp2, "openssl is missing");
  const cut = { kind: /** @type {const} */ ("cut"), rate: 1 };
  const run = model.begin({ task, convention: "sandglass", behaviour: { ...QUICK, firstToken: 200, fault: cut } });
  const session = connect(run.pageUrl, { rejectUnauthorized: false });
  /** @param {boolean} [givesUp] @returns {Promise<string>} */
  const ask = (givesUp) =>
    new Promise((resolve, reject) => {
      const stream = session.request({
        ":method": "POST",
        ":path": `${new URL(run.pageUrl).pathname}/chat/completions`,
      });
      let text = "";
      stream.setEncoding("utf8").on("data", (piece) => (text += piece));
      stream.on("error", reject).on("end", () => resolve(text));
      stream.end(JSON.stringify({ model: "sub", messages: [{ role: "user", content: PROMPT }] }));
      if (givesUp) setTimeout(() => stream.close(constants.NGHTTP2_CANCEL), 20);
    });
  await rejects(ask(), /INTERNAL_ERROR/);
  ok((await ask()).includes("billing=1"));
  await ask(true).catch(() => undefined);
  session.close();
  await new Promise((resolve) => session.once("close", resolve));
  deepStrictEqual(
    run.calls.map(({ delivered }) => delivered),
    [false, true, false],
  );
  run.end();
});

await test("the oracle errs as often as it shall, and always on the same prompts", () => {
  const prompts = Array.from({ length: 300 }, (_, at) => readPrompt(PROMPT.replace("Lyon", `City${at}`)));
  const wrong = (/** @type {number} */ rate) =>
    prompts.map((prompt) => prompt && oracle(prompt, rate) !== oracle(prompt, 0));
  deepStrictEqual(wrong(0.2), wrong(0.2));
  const times = wrong(0.2).filter(Boolean).length;
  ok(times > 30 && times < 90, `${times} of 300`);
  deepStrictEqual(readPrompt(`Please: ${PROMPT}`), undefined);
});

await test("a model that writes code goes on after the turns that went well", async () => {
  deepStrictEqual(turnsDone(["print('step', 1, 'done')", "Output:\nstep 1 done\n"]), 1);
  for (const convention of /** @type {(keyof typeof CONVENTIONS)[]} */ (Object.keys(CONVENTIONS))) {
    const run = model.begin({ task, convention, behaviour: QUICK });
    const first = await reply(run.url, "a task");
    const last = await reply(run.url, "step 1 done\nstep 2 done");
    ok(first.includes("def ask(") && first.includes(`${CONVENTIONS[convention].context}.splitlines()`), first);
    ok(
      CONVENTIONS[convention].answer.every((line) => last.includes(line)),
      last,
    );
    const { inOneReply } = /** @type {{ inOneReply?: boolean }} */ (CONVENTIONS[convention]);
    deepStrictEqual(
      run.calls.map(({ kind, turn }) => [kind, turn]),
      [
        ["root", 0],
        ["root", inOneReply ? 0 : 2],
      ],
    );
    if (inOneReply) deepStrictEqual(first, last);
    run.end();
    await rejects(reply(run.url, "too late"), /404/);
  }
});

await test("each fault comes once, and the second attempt is answered", async () => {
  const faults = /** @type {const} */ ({ busy: /429/, failing: /503/, cut: /terminated/, malformed: /JSON/ });
  for (const [kind, problem] of Object.entries(faults)) {
    const fault = { kind: /** @type {keyof typeof faults} */ (kind), rate: 1 };
    const run = model.begin({ task, convention: "sandglass", behaviour: { ...QUICK, fault } });
    await rejects(reply(run.url, PROMPT), problem);
    deepStrictEqual(await reply(run.url, PROMPT), "billing=1 delivery=0 account=0 repair=0");
    deepStrictEqual(
      run.calls.map(({ fault, delivered }) => [fault, delivered]),
      [
        [kind, false],
        [undefined, true],
      ],
    );
    run.end();
  }
});

await test("a real endpoint behind the server is recorded as well", async () => {
  const inner = model.begin({ task, convention: "sandglass", behaviour: QUICK });
  const outer = await startModel({ endpoint: { url: inner.url, key: "a key" } });
  const run = outer.begin({ task, convention: "sandglass", behaviour: QUICK });
  deepStrictEqual(await reply(run.url, PROMPT), "billing=1 delivery=0 account=0 repair=0");
  const [call] = run.calls;
  deepStrictEqual([call?.kind, call?.delivered, call?.replyTokens], ["sub", true, inner.calls[0]?.replyTokens]);
  // One model may both write code and answer.
  for (const texts of [
    ["You write code.", "a task"],
    ["You answer.", "a question"],
    ["You write code.", "a task", "an output"],
  ])
    await reply(run.url, ...texts);
  deepStrictEqual(
    run.calls.slice(1).map(({ kind, turn }) => [kind, turn]),
    [
      ["root", 0],
      ["sub", 0],
      ["root", 1],
    ],
  );
  await outer.close();
  inner.end();
});

await test("the critical path has each reply, and the longest call of each batch", () => {
  /** @param {Partial<Call>} call @returns {Call} */
  const call = (call) => ({
    ...{
      kind: "sub",
      turn: 0,
      prompt: String(call.latency),
      start: 0,
      end: 0,
      latency: 0,
      promptTokens: 1,
      replyTokens: 1,
    },
    ...{ delivered: true, ...call },
  });
  const replies = [call({ kind: "root", latency: 100 }), call({ kind: "root", turn: 1, latency: 50 })];
  const batch = [call({ latency: 7 }), call({ latency: 9 }), call({ latency: 500, delivered: false })];
  const again = call({ turn: 1, latency: 3, question: "q", prompt: "same" });
  deepStrictEqual(criticalPath([...replies, ...batch, again, again]), 162);
  const chain = [call({ latency: 7, chain: true }), call({ latency: 9, chain: true })];
  deepStrictEqual(criticalPath([...replies, ...chain]), 166);
  const cut = [1, 2, 4, 8, 16].map((latency, start) => call({ latency, start, question: "q" }));
  deepStrictEqual(
    [2, 5, Infinity].map((atOnce) => criticalPath(cut, atOnce)),
    [2 + 8 + 16, 16, 16],
  );
});

await test("among the seeds of calls ahead are replies whose code ends in the middle, behind calls", () => {
  const seeds = Array.from({ length: 20 }, (_, index) => 301 + index);
  const broken = ["needles", "count"].flatMap((kind) => seeds.filter((seed) => drawn("broken", kind, seed, 1) < 0.1));
  ok(broken.length > 0, "or nothing could be in vain");
});

await test("tables and picture name all contestants", () => {
  const row = { scenario: "standard", kind: "count", seed: 1, tokens: 1, score: 1, wall: 2, model: 1.5, turns: 2 };
  const counts = {
    rootCalls: 2,
    subCalls: 3,
    rootTokens: 4,
    subTokens: 5,
    lost: 0,
    doubled: 1,
    late: 0,
    memory: 7,
    begun: 0,
    first: 0.2,
    wasted: 0,
    broke: 0,
  };
  const rows = ["a", "b"].map((contestant) => ({ ...row, ...counts, contestant }));
  const facts = rows.map(({ contestant: name }) => ({
    ...{
      name,
      title: `the ${name}`,
      plain: true,
      faults: true,
      version: "1",
      isolation: "",
      start: 1,
      left: "nothing",
    },
  }));
  ok(/\| a \| 100 % \| 2.0 ± 0.0|\| a \| 100 % \| 2.0 \|/.test(mainTable(rows, facts)));
  ok(/\| b .*\| 0.50; 0.50 \| 250 \| 4 \| 5 \| 0; 1; 0 \|/.test(mainTable(rows, facts)), mainTable(rows, facts));
  const svg = picture(rows, facts);
  deepStrictEqual(svg.match(/<circle/g)?.length, 2);
  ok(svg.includes(">the a</text>") && svg.includes(">0.50 s</text>"), svg);
  const faulty = { ...rows[0], scenario: "fault busy", wall: 3, contestant: "a" };
  const run = {
    date: new Date(Date.UTC(2026, 0, 2)),
    machine: "m",
    load: 0.5,
    spent: 3,
    revision: "abc1234",
    notes: ["A note."],
  };
  const has = (/** @type {string} */ name) => (name === "a" ? { seconds: true, allTokens: true } : {});
  const equal = rows.map((one) => ({ ...one, scenario: "equal", wall: 3 }));
  const spent = { ...rows[0], scenario: "limit of tokens", rootTokens: 1200, subTokens: 34, contestant: "a" };
  const limits = { calls: 10, seconds: 2, allTokens: 1000 };
  const page = pageTables([...rows, ...equal, faulty, spent], facts, limits, has, run);
  for (const part of [
    ...["2 January 2026", "abc1234", "A note.", "Left processes or files behind: nobody."],
    "1 runs of each",
    "| the b | 3.0 | 1.5 | 1.50 | 1 |",
    "| the b 1 | 100 % | 2.0 | 1.5 | 0.50 (0.50) |",
    "| the b | 2 | 250 | 0.20 | 4 | 5 |",
    "| 0 | 1 | – | 7 |",
    "| the a | 100 %, 1.5 s |",
    "tokens, of 1,000",
    "| the a | no such limit | 1,234; a right answer | – |",
  ])
    ok(page.includes(part), `${part} is not in\n${page}`);
  const named = [
    ...rows,
    { ...rows[0], contestant: "sandglass-host", wall: 4 },
    { ...rows[0], contestant: "sandglass-browser" },
  ];
  const all = named.map(({ contestant: name }) => ({
    ...facts[0],
    name,
    title: name,
    isolation: name === "a" ? "none" : "",
  }));
  const told = standing(/** @type {any} */ (named), /** @type {any} */ (all));
  ok(told.includes("| added, all tasks | sandglass-host 2.50 s | a 0.50 s, b 0.50 s | its code runs in"), told);
  ok(!told.includes("sandglass-browser"), "what is level is not behind");
  ok(
    readmeLine(/** @type {any} */ (named), /** @type {any} */ (all)).includes(
      "takes 0.50 s beyond the model's own time in a tab, and 2.5 s on a server",
    ),
  );
  const marks = ["<!-- npm run bench:rlm -- --write -->", "<!-- end of it -->"];
  deepStrictEqual(
    between(`before ${marks[0]} old ${marks[1]} after`, "new\n"),
    `before ${marks[0]}\n\nnew\n\n${marks[1]} after`,
  );
  throws(() => between("no marks", "new"));
});

await model.close();
score.end();

/** @param {string} name @param {() => void | Promise<void>} body */
async function test(name, body) {
  await score.test(name, async () => (await body(), []));
}

/** @param {string} url @param {string[]} texts @returns {Promise<string>} */
async function reply(url, ...texts) {
  const body = JSON.stringify({ model: "any", messages: texts.map((content) => ({ role: "user", content })) });
  const response = await fetch(`${url}/chat/completions`, { method: "POST", body });
  if (!response.ok) throw new Error(`${response.status}`);
  return (await response.json()).choices[0].message.content;
}

/** @param {string} url @param {object} order @returns {Promise<string>} */
async function python(url, order) {
  const child = spawn("python3", ["-c", RUNNER, url], { stdio: ["pipe", "pipe", "inherit"] });
  child.stdin.end(JSON.stringify(order));
  let answer = "";
  for await (const piece of child.stdout.setEncoding("utf8")) answer += piece;
  return answer;
}
