// A scripted OpenAI-compatible server. Its replies are computed from the messages, and its faults are ordered in advance.
// Loopback only.
import { createServer } from "node:http";
import { listen } from "../../scripts/serve.mjs";

/**
 * @typedef {{ role: string, content: string }} Message
 * @typedef {object} Asked
 * @property {Message[]} messages
 * @property {string} model
 * @property {string} last  the last message
 * @property {number} turn  number of the turn in its run, from 1; 0 for a query
 * @property {string} task  the run's task
 * @typedef {{ kind: string, wait?: number, status?: number, headers?: Record<string, string>, body?: string, times?: number, match?: string }} Fault
 */

/** A reply: text, or the call of a tool, which is not streamed. @typedef {string | { tool: string, input: object }} Reply */

/** The replies of each model. @type {Record<string, (asked: Asked) => Reply>} */
const POLICIES = {
  // Adds up numbers over three levels: each run cuts its context into parts, at line ends, for runs one level deeper.
  tree: ({ turn, task, last }) => {
    const [, level = "0", parts = "0"] = /^level (\d+), parts (\d+)/.exec(task) ?? [];
    if (turn === 0) return String(last.split("\n").filter((line) => / teal /.test(line)).length);
    if (turn === 1) return "First a look.\n```repl\nprint(type(context).__name__, len(context), context[:60])\n```";
    if (level === "2") {
      return [
        "The leaf: exact work in Python, and one question to a sub-model.",
        "```repl",
        "rows = [line.split() for line in context.splitlines()]",
        "total = sum(int(row[3]) for row in rows if row[1] == 'teal')",
        "sample = '\\n'.join(context.splitlines()[:20])",
        "asked = int(llm_query('How many lines say teal? ' + '\\n' + sample))",
        "assert asked == sum(' teal ' in line for line in sample.splitlines()), asked",
        "FINAL(str(total))",
        "```",
      ].join("\n");
    }
    return [
      "```python",
      "lines = context.splitlines(keepends=True)",
      `size = -(-len(lines) // ${parts})`,
      "pieces = [''.join(lines[at:at + size]) for at in range(0, len(lines), size)]",
      `answers = rlm_query_batched(["level ${Number(level) + 1}, parts 2: add up the teal values"] * len(pieces), pieces)`,
      "print(answers)",
      "```",
      "and then",
      "```repl",
      "FINAL(str(sum(int(answer) for answer in answers)))",
      "```",
    ].join("\n");
  },

  // Finds a needle by its wording, and reads it in the output.
  needle: ({ turn, last }) => {
    if (turn === 1) return "```repl\nprint(len(context), 'characters')\n```";
    if (turn === 2)
      return "```repl\nfor hit in search_context('secret code of', window=40):\n    print(hit['context'])\n```";
    const code = /secret code of the harbour is (\d+)/.exec(last)?.[1];
    return code ? `I have seen it.\n\nFINAL(${code})` : "```repl\nprint('not found')\n```";
  },

  // Counts with sub-models over all lines.
  aggregate: ({ turn, messages, last }) => {
    if (turn === 0) {
      const [question, ...lines] = last.split("\n");
      const wanted = /about (\w+)\?/.exec(question ?? "")?.[1];
      return `There are ${lines.filter((line) => line.includes(` ${wanted} `)).length}.`;
    }
    const wanted = /about (\w+)/.exec(messages[1]?.content ?? "")?.[1];
    if (turn === 1) return "```repl\nlines = context.splitlines()\nprint(len(lines), lines[0])\n```";
    return [
      "```repl",
      "import re",
      "pieces = ['\\n'.join(lines[at:at + 2000]) for at in range(0, len(lines), 2000)]",
      `answers = llm_query_batched(["How many of these lines are about ${wanted}?\\n" + piece for piece in pieces])`,
      "counts = [int(re.search(r'(\\d+)', answer)[1]) for answer in answers]",
      "print(counts)",
      "FINAL(sum(counts))",
      "```",
    ].join("\n");
  },

  // Gives an answer of the wrong type first.
  typed: ({ turn, last }) => {
    if (turn === 1) return "```repl\nFINAL({'name': 5})\n```";
    if (!/not accepted/.test(last)) return "```repl\nprint('nobody complained')\n```";
    return "```repl\nSUBMIT(name='sand', grains=[1, 2, 3])\n```";
  },

  // Replies from the task, turn by turn: the task is a JSON list of replies.
  script: ({ turn, task, last }) =>
    turn === 0 ? `echo: ${last.slice(0, 100)}` : (JSON.parse(task)[turn - 1] ?? "I do not know."),

  // Never declares an answer.
  endless: ({ turn, last }) => (turn === 0 ? `echo: ${last.slice(0, 20)}` : "```repl\nprint(llm_query('again'))\n```"),
};

/** Starts the server. @param {typeof POLICIES} [policies]  the replies of each model */
export async function startModelServer(policies = POLICIES) {
  /** @type {Fault[]} */
  let faults = [];
  /** Counts of requests so far, and of connections by their end. */
  const log = { requests: 0, faults: 0, closed: 0, open: 0, longest: 0, keys: /** @type {Set<string>} */ (new Set()) };
  /** @type {Set<NodeJS.Timeout>} */
  const timers = new Set();
  const pause = (/** @type {number} */ ms) =>
    new Promise((resolve) => {
      const timer = setTimeout(() => (timers.delete(timer), resolve(undefined)), ms);
      timers.add(timer);
    });

  const server = createServer(async (request, response) => {
    const cors = {
      "Access-Control-Allow-Origin": "*",
      "Access-Control-Allow-Headers": "authorization, content-type, x-test",
      "Access-Control-Expose-Headers": "retry-after, retry-after-ms",
      "Cross-Origin-Resource-Policy": "cross-origin",
    };
    if (request.method === "OPTIONS") return void response.writeHead(204, cors).end();
    if (request.url === "/log") {
      const { keys, ...counts } = log;
      return void response.writeHead(200, cors).end(JSON.stringify({ ...counts, keys: [...keys] }));
    }
    let text = "";
    request.setEncoding("utf8");
    for await (const piece of request) text += piece;
    if (request.url === "/faults") {
      faults = JSON.parse(text);
      Object.assign(log, { requests: 0, faults: 0, closed: 0, longest: 0 });
      return void response.writeHead(200, cors).end();
    }
    log.requests += 1;
    log.open += 1;
    log.longest = Math.max(log.longest, text.length);
    log.keys.add(String(request.headers.authorization));
    response.on("close", () => {
      log.open -= 1;
      if (!response.writableFinished) log.closed += 1;
    });
    const send = (/** @type {number} */ status, /** @type {unknown} */ body, headers = {}) =>
      response
        .writeHead(status, { ...cors, "Content-Type": "application/json", ...headers })
        .end(typeof body === "string" ? body : JSON.stringify(body));
    if (request.url !== "/v1/chat/completions") return void send(404, { error: { message: "no such place" } });

    const asked = read(text);
    const policy = policies[asked.model];
    if (!policy) return void send(404, { error: { message: `no model ${asked.model}`, code: "model_not_found" } });
    const fault = faults.find((fault) => (fault.times ?? 1) > 0 && (!fault.match || text.includes(fault.match)));
    if (fault) {
      fault.times = (fault.times ?? 1) - 1;
      log.faults += 1;
      if (fault.wait) await pause(fault.wait);
      if (fault.kind === "status") {
        return void send(fault.status ?? 500, fault.body ?? { error: { message: "ordered" } }, fault.headers);
      }
      if (fault.kind === "hang") return;
    }
    const replied = policy(asked);
    const reply = typeof replied === "string" ? replied : "";
    const [given, written] = [text, reply].map(({ length }) => Math.ceil(length / 4));
    const usage = { prompt_tokens: given, completion_tokens: written, total_tokens: given + written };
    if (!asked.stream) {
      if (fault?.kind === "empty choices") return void send(200, { choices: [], usage });
      if (fault?.kind === "invalid JSON") return void send(200, `{"choices": [`);
      /** @type {object} */
      let message = { role: "assistant", content: reply };
      if (typeof replied !== "string") {
        const { tool: name, input } = replied;
        const call = { id: `call-${asked.messages.length}`, type: "function" };
        message = { ...message, tool_calls: [{ ...call, function: { name, arguments: JSON.stringify(input) } }] };
      }
      const choices = [{ index: 0, finish_reason: reply ? "stop" : "tool_calls", message }];
      return void send(200, { choices, usage });
    }

    response.writeHead(200, { ...cors, "Content-Type": "text/event-stream; charset=utf-8" });
    const event = (/** @type {unknown} */ value) => `data: ${JSON.stringify(value)}\n\n`;
    const chunk = (/** @type {object} */ delta, finish_reason = /** @type {string | null} */ (null)) =>
      event({ choices: [{ index: 0, delta, finish_reason }], usage: null });
    response.write(`: a comment\n\n${chunk({ role: "assistant", content: "" })}`);
    if (fault?.kind === "empty choices") return void response.end(`${event({ choices: [], usage })}data: [DONE]\n\n`);
    const half = Math.ceil(reply.length / 2);
    // The pieces split characters and lines.
    const bytes = Buffer.from(chunk({ content: reply.slice(0, half) }));
    response.write(bytes.subarray(0, 15));
    await new Promise(setImmediate);
    response.write(bytes.subarray(15));
    if (fault?.kind === "cut") return void response.end();
    if (fault?.kind === "reset") return void response.destroy();
    if (fault?.kind === "invalid JSON") return void response.end("data: {oh no\n\n");
    if (fault?.kind === "error event") return void response.end(event({ error: { message: "overloaded" } }));
    if (fault?.kind === "slow") await pause(fault.wait ?? 300);
    response.write(chunk({ content: reply.slice(half) }));
    response.write(chunk({}, "stop"));
    if (asked.usage) response.write(event({ choices: [], usage }));
    response.end("data: [DONE]\n\n");
  });
  const { url, close } = await listen(server);
  return { url, close: () => (timers.forEach(clearTimeout), close()) };
}

/** @param {string} text @returns {Asked & { stream: boolean, usage: boolean }} */
function read(text) {
  const { messages, model, stream, stream_options } = JSON.parse(text);
  const isRun = messages[0]?.role === "system";
  const opening = messages[1]?.content ?? "";
  return {
    messages,
    model,
    stream,
    usage: Boolean(stream_options?.include_usage),
    last: messages.at(-1).content,
    turn: isRun ? messages.filter((/** @type {Message} */ { role }) => role === "assistant").length + 1 : 0,
    task: /^Task:\n(.*?)\n(\n|$)/s.exec(opening)?.[1] ?? "",
  };
}
