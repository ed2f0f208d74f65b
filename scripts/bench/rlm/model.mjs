// A model server that speaks OpenAI's `/chat/completions`, and records every call. Its replies are scripted, or those of a real
// endpoint behind it. Loopback only.
import { createServer } from "node:http";
import { constants, createSecureServer } from "node:http2";
import { listen } from "../../serve.mjs";
import { makeCertificate } from "./certificate.mjs";
import { CONVENTIONS, replyAfter, turnsDone } from "./policies.mjs";
import { Dice, drawn } from "./seeded.mjs";
import { oracle, readPrompt } from "./tasks.mjs";

/** @import { IncomingMessage, ServerResponse } from "node:http" */
/** @import { Task } from "./tasks.mjs" */

/**
 * The behaviour of a model. Times are in milliseconds.
 * @typedef {object} Behaviour
 * @property {number} firstToken  the median time until a reply begins
 * @property {number} readsPerSecond  tokens of prompts
 * @property {number} writesPerSecond  tokens of replies
 * @property {number} errorRate  of the oracle's answers, those that are wrong
 * @property {number} [atOnce]  the most prompts that its code asks about in one batch
 * @property {boolean} [talks]  it goes on in words behind its code
 * @property {number} [brokenRate]  of all turns, those whose first reply has code that ends in the middle
 * @property {{ kind: keyof typeof FAULTS, rate: number }} [fault]  of all calls, those that meet a fault in their first attempt
 *
 * One request, as it was recorded. Times are those of `performance.now()`. `latency` is the model's own time: a late timer of this server is in it.
 * @typedef {object} Call
 * @property {"root" | "sub"} kind
 * @property {number} turn  of the code in whose time it comes, from 0
 * @property {string} prompt  a hash of it
 * @property {string} [question]  of a sub-call, the question without its text
 * @property {boolean} [chain]  each call with this question needs the answer of the one before
 * @property {number} start
 * @property {number} end
 * @property {number} latency
 * @property {number} promptTokens
 * @property {number} replyTokens
 * @property {string} [fault]
 * @property {boolean} [broke]  its code ends in the middle
 * @property {boolean} delivered  the whole reply was sent
 *
 * @typedef {object} Run
 * @property {Task} task
 * @property {keyof typeof CONVENTIONS} convention
 * @property {Behaviour} behaviour
 * @property {Call[]} calls
 * @property {Map<string, number>} attempts  by prompt, or by turn
 * @property {number} turn
 * @property {string} [rootText]  the first text of prompts for code to a real endpoint
 */

/** Time of a slow first token. */
const SLOW_MS = 5000;
/** Replies to code after which a scripted model gives up. */
const MAX_REPLIES = 12;

/** What a fault does instead of an answer; `undefined` when only the time changes. */
export const FAULTS = {
  busy: (/** @type {ServerResponse} */ response) =>
    send(
      response,
      429,
      { error: { message: "Rate limit reached, try again in 1s", code: "rate_limit_exceeded" } },
      { "Retry-After": "1" },
    ),
  failing: (/** @type {ServerResponse} */ response) =>
    send(response, 503, { error: { message: "the server is overloaded" } }),
  cut: (/** @type {ServerResponse} */ response, /** @type {boolean} */ stream) => {
    const type = stream ? "text/event-stream" : "application/json";
    response.writeHead(200, { ...CORS, "Content-Type": type, ...(!stream && { "Content-Length": "5000" }) });
    response.write(
      stream ? event({ choices: [{ index: 0, delta: { content: "I" }, finish_reason: null }] }) : '{"choices": [',
    );
    setImmediate(() => breakOff(response));
  },
  malformed: (/** @type {ServerResponse} */ response, /** @type {boolean} */ stream) => {
    if (!stream) return send(response, 200, '{"choices": [{"message": ');
    response
      .writeHead(200, { ...CORS, "Content-Type": "text/event-stream" })
      .end('data: {"choices": [{\n\ndata: [DONE]\n\n');
  },
  slow: undefined,
};

/** Ends an answer in the middle: the connection, or over HTTP/2 its stream, with an error. @param {ServerResponse} response */
function breakOff(response) {
  const { stream } = /** @type {{ stream?: import("node:http2").ServerHttp2Stream }} */ (
    /** @type {unknown} */ (response)
  );
  if (stream) stream.close(constants.NGHTTP2_INTERNAL_ERROR);
  else response.destroy();
}

const CORS = {
  "Access-Control-Allow-Origin": "*",
  "Access-Control-Allow-Headers": "authorization, content-type",
  "Access-Control-Expose-Headers": "retry-after",
  "Access-Control-Max-Age": "600", // or a page asks for leave before every call
  "Cross-Origin-Resource-Policy": "cross-origin",
};

/**
 * A real endpoint.
 * @typedef {{ url: string, key: string }} Endpoint
 * @typedef {(text: string) => Promise<string>} SubModel  answers the question about a text
 */

/**
 * Starts the server.
 * @param {{ endpoint?: Endpoint, subModel?: SubModel }} [options]  `endpoint`: a real one, which answers all; `subModel`: a real model, which
 * answers sub-calls
 */
export async function startModel({ endpoint, subModel } = {}) {
  /** @type {Map<string, Run>} */
  const runs = new Map();
  let made = 0;
  /** @param {IncomingMessage} request @param {ServerResponse} response */
  const handle = (request, response) => {
    if (request.method === "OPTIONS") return void response.writeHead(204, CORS).end();
    const run = runs.get(/^\/run\/(\d+)\/v1\/chat\/completions$/.exec(request.url ?? "")?.[1] ?? "");
    if (!run) return send(response, 404, { error: { message: "there is no such run" } });
    (endpoint ? forward(run, endpoint, request, response) : answer(run, subModel, request, response)).catch((error) => {
      if (!response.headersSent) send(response, 500, { error: { message: String(error) } });
      else breakOff(response);
    });
  };
  const { url, close } = await listen(createServer(handle));
  const certificate = makeCertificate();
  // The answers of HTTP/2 have the methods of HTTP/1.1's that are used here.
  const secure = certificate && (await listen(createSecureServer(certificate, /** @type {any} */ (handle))));
  return {
    /** False without `openssl`: pages get HTTP/1.1 then. */
    hasHttp2: secure !== undefined,
    async close() {
      await secure?.close();
      await close();
    },
    /** Begins a run. Its address is its own, so that calls after its end are known as such. @param {Pick<Run, "task" | "convention" | "behaviour">} of */
    begin(of) {
      made += 1;
      const id = String(made);
      /** @type {Run} */
      const run = { ...of, calls: [], attempts: new Map(), turn: 0 };
      runs.set(id, run);
      return {
        url: `${url}/run/${id}/v1`,
        /** For pages, which hold six connections to a server at most, but may have many requests in one of HTTP/2. */
        pageUrl: `${secure?.url.replace("http:", "https:") ?? url}/run/${id}/v1`,
        calls: run.calls,
        end: () => void runs.delete(id),
      };
    },
  };
}

/**
 * Answers by script, or a sub-call by a real model.
 * @param {Run} run @param {SubModel | undefined} subModel @param {IncomingMessage} request @param {ServerResponse} response
 */
async function answer(run, subModel, request, response) {
  const { texts, text, stream, usage: wantsUsage, length } = await read(request);
  const start = performance.now(); // the time that a prompt takes on its way is the contestant's
  const { behaviour } = run;
  const last = texts.at(-1) ?? "";
  const prompt = readPrompt(last);
  const name = drawn(prompt ? `${prompt.answer.question}\n${prompt.text}` : text).toString(36);
  const root = prompt
    ? undefined
    : replyAfter(run.task.turns, CONVENTIONS[run.convention], turnsDone(texts), run.behaviour.atOnce);
  if (root) run.turn = root.turn;
  const isBroken = root && drawn("broken", run.task.kind, run.task.seed, root.turn) < (behaviour.brokenRate ?? 0);
  // Prompts for code differ from controller to controller, and yet all shall meet the same luck.
  const chance = root ? `turn ${root.turn}` : name;
  const attempt = (run.attempts.get(chance) ?? 0) + 1;
  run.attempts.set(chance, attempt);

  const kind = prompt ? "sub" : "root";
  const replies = run.calls.filter((call) => call.kind === "root" && call.delivered).length;
  const reply = prompt
    ? ((await subModel?.(prompt.text)) ?? oracle(prompt, behaviour.errorRate))
    : replies >= MAX_REPLIES
      ? "I give up."
      : written(root?.text ?? "", behaviour.talks, isBroken && attempt === 1);
  const usage = { prompt_tokens: tokens(length), completion_tokens: tokens(reply.length), total_tokens: 0 };
  usage.total_tokens = usage.prompt_tokens + usage.completion_tokens;

  const dice = new Dice("latency", run.task.seed, chance, attempt);
  const { fault } = behaviour;
  const meets = fault && attempt === 1 && dice.next() < fault.rate ? fault.kind : undefined;
  const first = behaviour.firstToken * (0.5 + dice.next()) + (usage.prompt_tokens / behaviour.readsPerSecond) * 1000;
  const latency = first + (usage.completion_tokens / behaviour.writesPerSecond) * 1000;
  /** @type {Call} */
  const call = {
    ...{ kind, turn: run.turn, prompt: name, start, end: NaN, latency, delivered: false },
    ...{ promptTokens: usage.prompt_tokens, replyTokens: usage.completion_tokens, fault: meets },
    ...{ question: prompt?.answer.question, chain: prompt?.answer.chain },
    ...(isBroken && attempt === 1 && { broke: true }),
  };
  run.calls.push(call);
  watch(response, call, start);
  const due = start + (meets === "slow" ? SLOW_MS : 0);
  const broken = meets && FAULTS[meets];
  if (broken) {
    await until(start + behaviour.firstToken / 2);
    return void broken(response, stream);
  }
  if (!stream) {
    await until(due + latency);
    const choices = [{ index: 0, finish_reason: "stop", message: { role: "assistant", content: reply } }];
    call.delivered = Number.isNaN(call.end); // or it was given up before
    return send(response, 200, {
      id: `chat-${name}`,
      object: "chat.completion",
      created: 1,
      model: "scripted",
      choices,
      usage,
    });
  }
  response.writeHead(200, { ...CORS, "Content-Type": "text/event-stream" });
  const chunk = (/** @type {object} */ delta, /** @type {string | null} */ finish_reason) =>
    event({
      id: name,
      object: "chat.completion.chunk",
      created: 1,
      model: "scripted",
      choices: [{ index: 0, delta, finish_reason }],
    });
  for (let at = 0; at < reply.length; at += 16) {
    await until(due + first + ((at + 16) / 4 / behaviour.writesPerSecond) * 1000);
    if (!Number.isNaN(call.end)) return; // nobody hears it any more
    response.write(chunk({ role: "assistant", content: reply.slice(at, at + 16) }, null));
  }
  await until(due + latency);
  response.write(chunk({}, "stop"));
  if (wantsUsage) response.write(event({ id: name, object: "chat.completion.chunk", choices: [], usage }));
  call.delivered = Number.isNaN(call.end);
  response.end("data: [DONE]\n\n");
}

/**
 * Records the end of an answer. `delivered` is set just before the answer ends; HTTP/2 reports the end of answers that were given up, too, and
 * browsers reset streams of which they have had all.
 * @param {ServerResponse} response @param {Call} call @param {number} start
 */
function watch(response, call, start) {
  response.once("finish", () => (call.latency = performance.now() - start));
  response.once("close", () => {
    call.end = performance.now();
    const { stream } = /** @type {{ stream?: import("node:http2").ServerHttp2Stream }} */ (
      /** @type {unknown} */ (response)
    );
    if (!(stream ?? response).writableFinished) call.delivered = false;
  });
}

/** Hands a request on to a real endpoint. @param {Run} run @param {Endpoint} endpoint @param {IncomingMessage} request @param {ServerResponse} response */
async function forward(run, endpoint, request, response) {
  const { body, text, texts, stream, length } = await read(request);
  const start = performance.now();
  const prompt = readPrompt(texts.at(-1) ?? "");
  // The first call asks for code, and all others that do begin with the same text. minrlm asks one model for both.
  if (texts.length > 1) run.rootText ??= texts[0];
  const kind = !prompt && texts.length > 1 && texts[0] === run.rootText ? "root" : "sub";
  if (kind === "root") run.turn = run.calls.filter((call) => call.kind === "root" && call.delivered).length;
  /** @type {Call} */
  const call = {
    ...{ kind, turn: run.turn, prompt: drawn(text).toString(36), start, end: NaN, latency: NaN, delivered: false },
    ...{ promptTokens: tokens(length), replyTokens: 0, question: prompt?.answer.question, chain: prompt?.answer.chain },
  };
  run.calls.push(call);
  const stop = new AbortController();
  watch(response, call, start);
  response.once("close", () => stop.abort());
  const answered = await fetch(`${endpoint.url.replace(/\/$/, "")}/chat/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${endpoint.key}` },
    body,
    signal: stop.signal,
  });
  const type = answered.headers.get("content-type") ?? "application/json";
  const after = answered.headers.get("retry-after");
  response.writeHead(answered.status, { ...CORS, "Content-Type": type, ...(after && { "Retry-After": after }) });
  let said = "";
  const decoder = new TextDecoder();
  for await (const bytes of answered.body ?? []) {
    said += decoder.decode(bytes, { stream: true });
    response.write(bytes);
  }
  call.delivered = answered.status < 300;
  response.end();
  const counted = [...said.matchAll(/"(prompt|completion)_tokens"\s*:\s*(\d+)/g)];
  for (const [, which, number] of counted) call[which === "prompt" ? "promptTokens" : "replyTokens"] = Number(number);
  if (counted.length === 0) call.replyTokens = tokens(stream ? said.length / 10 : said.length);
}

/** Words behind the code of a reply. @type {string} */
const TALK =
  "\n\nThe code above does the next step of the plan. When its output is there, I check whether the answers fit together, " +
  "and decide whether another look at the data is needed before I give the result. ".repeat(3);

/** A reply as the model writes it: with words behind its code, or with code that ends in the middle. @param {string} text @param {boolean} [talks] @param {boolean} [isBroken] */
function written(text, talks, isBroken) {
  const whole = isBroken ? text.replace(/\n```$/, "\nprint('the end',\n```") : text;
  return talks ? `${whole}${TALK}` : whole;
}

/** @param {IncomingMessage} request */
async function read(request) {
  let body = "";
  request.setEncoding("utf8");
  for await (const piece of request) body += piece;
  const { messages, stream, stream_options } = JSON.parse(body);
  /** @type {string[]} */
  const texts = messages.map((/** @type {{ content?: string | { text?: string }[] }} */ { content }) =>
    typeof content === "string" ? content : (content ?? []).map(({ text = "" }) => text).join(""),
  );
  const text = texts.join("\n\n");
  return {
    body,
    texts,
    text,
    length: text.length,
    stream: Boolean(stream),
    usage: Boolean(stream_options?.include_usage),
  };
}

/** @param {ServerResponse} response @param {number} status @param {unknown} body @param {Record<string, string>} [headers] */
function send(response, status, body, headers = {}) {
  response.writeHead(status, { ...CORS, "Content-Type": "application/json", ...headers });
  response.end(typeof body === "string" ? body : JSON.stringify(body));
}

/** @param {unknown} value */
const event = (value) => `data: ${JSON.stringify(value)}\n\n`;
/** @param {number} characters */
const tokens = (characters) => Math.ceil(characters / 4);
/** @param {number} time */
const until = (time) => new Promise((resolve) => setTimeout(resolve, time - performance.now()));
