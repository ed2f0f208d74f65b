// The entry `sandglass/ai`: Python as a tool of agents in JavaScript, and the tools of agents as functions in Python.
// It fits Vercel's AI SDK and clients of MCP, and imports neither.
// Decisions: docs/internals/values-and-calls.md.

import { jsonSchema, readSchema } from "./tool-schemas.js";

/** @import { CodeExecution, Display, HostFunction, Outcome, RunningHostCall, Sandbox, StateReport } from "../pkg/sandglass.js" */
/** @import { ToolSchema } from "./tool-schemas.js" */

/** Characters of each stream in an output while the code still runs. */
const MOST_PRELIMINARY = 10_000;
/** Characters of the arguments of one call, as JSON. */
const MOST_ARGUMENTS = 4_000_000;
/** Names of tools that a prompt lists. Beyond that, models search. */
const MOST_NAMES = 40;
const MOST_NAME_LENGTH = 64;
/** Mime types of pictures that models take. */
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

// --- Python as a tool ------------------------------------------------------------------------------------------------

/**
 * @typedef {object} PythonInput
 * @property {string} code
 *
 * @typedef {object} PythonOutput  the outcome of one call. An output that has no `outcome` is preliminary: the code still runs.
 * @property {string} stdout  printed text; preliminary: the last 10 000 characters so far
 * @property {string} stderr  text written to `sys.stderr`, likewise
 * @property {Outcome} [outcome]  the way in which the execution ended; an error in Python is an output as well
 * @property {string} [text]  the text that the model is given
 * @property {string} [result]  the `repr` of the last expression's value
 * @property {string} [error]  the exception's last line
 * @property {string} [errorType]  the exception's class name
 * @property {StateReport} [state]  the state of the variables after the execution
 * @property {Display[]} [displays]  rich outputs; they come from the guest and are untrusted
 *
 * @typedef {{ type: "text", value: string } | { type: "content", value: ModelContent[] }} ModelOutput
 * @typedef {{ type: "text", text: string } | { type: "file", mediaType: string, data: { type: "data", data: string } }} ModelContent
 *
 * @typedef {{ "~standard": Standard }} InputSchema  a schema of the interface Standard Schema
 *
 * @typedef {object} Standard
 * @property {1} version
 * @property {string} vendor
 * @property {(value: unknown) => { value: PythonInput } | { issues: { message: string }[] }} validate
 * @property {{ input: () => Record<string, unknown>, output: () => Record<string, unknown> }} jsonSchema
 * @property {{ input: PythonInput, output: PythonInput }} [types]
 *
 * @typedef {object} PythonTool  a tool of the AI SDK
 * @property {string} description
 * @property {InputSchema} inputSchema
 * @property {(input: PythonInput, options: { abortSignal?: AbortSignal | undefined }) => AsyncGenerator<PythonOutput, void>} execute
 * @property {(options: { output: PythonOutput }) => ModelOutput} toModelOutput
 */

const DESCRIPTION =
  "Runs Python code and returns what it prints, the value of its last expression, and figures. Variables, imports and " +
  "functions stay from call to call. `await` works at top level. There is no network.";

const JSON_SCHEMA = {
  type: "object",
  properties: { code: { type: "string", description: "Python code" } },
  required: ["code"],
  additionalProperties: false,
};

/** @type {InputSchema} */
const INPUT_SCHEMA = {
  "~standard": {
    version: 1,
    vendor: "sandglass",
    validate: (value) => {
      const code = /** @type {{ code?: unknown } | null | undefined} */ (value)?.code;
      return typeof code === "string" ? { value: { code } } : { issues: [{ message: "`code` must be a string" }] };
    },
    jsonSchema: { input: () => JSON_SCHEMA, output: () => JSON_SCHEMA },
  },
};

/**
 * Makes a tool of the AI SDK that runs Python in a sandbox: `generateText({ tools: { python: pythonTool(sandbox) }, … })`.
 * Outputs are streamed while the code runs. Pictures are given to the model as images. The call's abort signal interrupts
 * the code. The sandbox must be initialized.
 * @param {Sandbox} sandbox
 * @param {{ instructions?: string }} [options]  `instructions` is text that is added to the tool's description, such as that of
 *   `pythonFunctions`, or a word about `context`
 * @returns {PythonTool}
 */
export function pythonTool(sandbox, { instructions } = {}) {
  return {
    description: instructions ? `${DESCRIPTION} ${instructions}` : DESCRIPTION,
    inputSchema: INPUT_SCHEMA,
    execute: ({ code }, { abortSignal }) => run(sandbox, code, abortSignal),
    toModelOutput: ({ output: { text, stdout, displays = [] } }) => {
      const pictures = displays.filter(({ mime }) => PICTURES.includes(mime));
      const value = text ?? stdout;
      if (pictures.length === 0) return { type: "text", value };
      const files = pictures.map(({ mime, data }) => ({
        type: /** @type {const} */ ("file"),
        mediaType: mime,
        data: { type: /** @type {const} */ ("data"), data },
      }));
      return { type: "content", value: [{ type: "text", text: value }, ...files] };
    },
  };
}

/**
 * Runs code and yields outputs: those so far while it runs, as often as somebody takes them, and the whole one last.
 * @param {Sandbox} sandbox
 * @param {string} code
 * @param {AbortSignal} [abortSignal]
 * @returns {AsyncGenerator<PythonOutput, void>}
 */
async function* run(sandbox, code, abortSignal) {
  const left = new AbortController();
  const signal = abortSignal ? AbortSignal.any([abortSignal, left.signal]) : left.signal;
  const soFar = { stdout: "", stderr: "" };
  let hasNews = false;
  let hasEnded = false;
  let wake = () => {};
  const hear = (/** @type {keyof typeof soFar} */ stream) => (/** @type {string} */ text) => {
    soFar[stream] = (soFar[stream] + text).slice(-MOST_PRELIMINARY);
    hasNews = true;
    wake();
  };
  const execution = sandbox.execute(code, { signal, onStdout: hear("stdout"), onStderr: hear("stderr") });
  const end = () => {
    hasEnded = true;
    wake();
  };
  execution.then(end, end);
  try {
    while (!hasEnded) {
      if (hasNews) {
        hasNews = false;
        yield { ...soFar };
      } else {
        await new Promise((resolve) => (wake = () => resolve(undefined)));
      }
    }
    const done = await execution;
    yield { ...outputOf(done), text: sandbox.feedback(done) };
  } finally {
    // Whoever takes no more outputs does not want the code to go on.
    left.abort();
  }
}

/** The fields of an execution that are JSON, without those that are missing. @param {CodeExecution} execution @returns {PythonOutput} */
function outputOf({ stdout, stderr, outcome, result, error, errorType, state, displays }) {
  const all = { stdout, stderr, outcome, result, error, errorType, state, displays };
  return /** @type {typeof all & PythonOutput} */ (
    Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined))
  );
}

// --- tools as functions in Python ------------------------------------------------------------------------------------

/**
 * @typedef {object} AgentTool  the part of a tool of the AI SDK that is used
 * @property {unknown} [type]
 * @property {unknown} [title]
 * @property {unknown} [description]
 * @property {unknown} [inputSchema]
 * @property {unknown} [needsApproval]
 * @property {((input: any, options: any) => unknown) | undefined} [execute]
 *
 * @typedef {object} McpTool  a tool as MCP lists it
 * @property {string} name
 * @property {string | undefined} [title]
 * @property {string | undefined} [description]
 * @property {Record<string, any>} inputSchema
 * @property {Record<string, any> | undefined} [outputSchema]
 *
 * @typedef {object} McpClient  the part of `Client` of `@modelcontextprotocol/sdk` that is used
 * @property {(params?: { cursor?: string }) => Promise<{ tools: McpTool[], nextCursor?: string | undefined }>} listTools
 * @property {(params: { name: string, arguments?: Record<string, unknown> }, schema?: undefined, options?: { signal: AbortSignal }) => Promise<unknown>} callTool
 *
 * @typedef {object} AiMcpClient  the part of a client of `@ai-sdk/mcp` that is used
 * @property {() => Promise<Record<string, AgentTool>>} tools
 *
 * @typedef {McpClient | AiMcpClient | Record<string, AgentTool>} ToolSource
 *
 * @typedef {object} PythonFunctions
 * @property {Record<string, HostFunction>} hostFunctions  for `createSandbox`, maybe with others
 * @property {string} instructions  text for a prompt that tells a model of the functions
 *
 * @typedef {object} Callable  a tool that Python can call
 * @property {string} description
 * @property {ToolSchema} input
 * @property {Record<string, any>} [outputSchema]
 * @property {(input: any) => unknown} needsApproval  returns or resolves to true if somebody must be asked before this call
 * @property {(input: any, signal: AbortSignal) => unknown} call
 */

/**
 * Makes tools callable from Python: as functions of the object `tools`, which has `tools.search` and `tools.describe`. Takes
 * clients of MCP (the official one, and that of `@ai-sdk/mcp`), and records of tools of the AI SDK.
 *
 * `createSandbox({ hostFunctions: (await pythonFunctions(client, { weather })).hostFunctions })`
 *
 * Arguments that Python sends are checked against the tool's schema before it is called. For a tool that needs approval, the
 * sandbox's `onApprove` is asked. Rejects for a tool that has no `execute`.
 * @param {...ToolSource} sources
 * @returns {Promise<PythonFunctions>}
 */
export async function pythonFunctions(...sources) {
  /** @type {Map<string, Callable>} */
  const tools = new Map();
  for (const source of sources)
    for (const [name, tool] of await toolsOf(source)) {
      let unique = name;
      for (let number = 2; tools.has(unique); number++) unique = `${name}_${number}`;
      tools.set(unique, tool);
    }
  const listed = JSON.stringify(
    [...tools].map(([name, { description, input, outputSchema }]) => ({
      ...{ name, description, inputSchema: input.json },
      ...(outputSchema && { outputSchema }),
    })),
  );
  // Python calls this one, and guest code may call it with anything: see python/sandglass/runtime/tools.py.
  /** @this {RunningHostCall} @param {unknown} which @param {unknown} name @param {unknown} json */
  function answer(which, name, json) {
    if (which === "list") return listed;
    const tool = tools.get(String(name));
    if (which !== "call" || !tool || typeof json !== "string") throw new Error("there is no such tool");
    return call(String(name), tool, json, this);
  }
  return { hostFunctions: { _tools: { call: answer } }, instructions: instructionsFor([...tools.keys()]) };
}

/** @param {string[]} names */
function instructionsFor(names) {
  // As in Python. A server's names may not bring other words into a prompt.
  const safe = names.map((name) => `\`${name.replace(/\W/g, "_").slice(0, MOST_NAME_LENGTH)}\``);
  const some = names.length > MOST_NAMES ? "" : `: ${safe.join(", ")}`;
  return (
    `The Python object \`tools\` has functions of the host (${names.length})${some}. ` +
    '`tools.search("words")` finds them, `tools.describe("name")` prints how one is called, and `tools.name(…)` calls it and ' +
    "returns its result. Prefer code that calls several and prints only what matters."
  );
}

/** @param {ToolSource} source @returns {Promise<[string, Callable][]>} */
async function toolsOf(source) {
  /** @type {any} */
  const given = source;
  // The AI SDK's client has both methods, and its own idea of a cursor.
  const own = typeof given.tools === "function" ? await given.tools() : given;
  if (typeof own.listTools === "function") return toolsOfClient(own);
  return Promise.all(
    Object.entries(/** @type {Record<string, AgentTool>} */ (own)).map(async ([name, tool]) => {
      try {
        return /** @type {[string, Callable]} */ ([name, await callable(tool)]);
      } catch (error) {
        throw new Error(`the tool "${name}" cannot be called from Python: ${messageOf(error)}`, { cause: error });
      }
    }),
  );
}

/** @param {McpClient} client @returns {Promise<[string, Callable][]>} */
async function toolsOfClient(client) {
  /** @type {[string, Callable][]} */
  const found = [];
  let cursor;
  do {
    const { tools, nextCursor } = await client.listTools(cursor === undefined ? undefined : { cursor });
    for (const { name, title, description, inputSchema, outputSchema } of tools) {
      const call = (/** @type {Record<string, unknown>} */ input, /** @type {AbortSignal} */ signal) =>
        client.callTool({ name, arguments: input }, undefined, { signal });
      const tool = {
        description: description ?? title ?? "",
        input: jsonSchema(inputSchema),
        needsApproval: () => false,
        call: async (/** @type {any} */ input, /** @type {AbortSignal} */ signal) =>
          contentOf(await call(input, signal)),
      };
      found.push([name, outputSchema ? { ...tool, outputSchema } : tool]);
    }
    cursor = nextCursor;
  } while (cursor !== undefined);
  return found;
}

/** @param {AgentTool} tool @returns {Promise<Callable>} */
async function callable({ type, title, description, inputSchema, needsApproval, execute, ...others }) {
  if (!execute) throw new Error("it has no `execute`, so leave it to the model");
  // Tools that the AI SDK's MCP client makes.
  const isOfMcp = type === "dynamic" || "_meta" in others;
  let calls = 0;
  const options = () => ({ toolCallId: `python-${++calls}`, messages: [] });
  return {
    description: String(typeof description === "string" ? description : (title ?? "")),
    input: await readSchema(inputSchema),
    needsApproval: (input) => (typeof needsApproval === "function" ? needsApproval(input, options()) : needsApproval),
    call: async (input, abortSignal) => {
      const result = await lastOf(execute(input, { ...options(), abortSignal }));
      return isOfMcp ? contentOf(result) : result;
    },
  };
}

/** The last of several outputs, or the only one. @param {any} outputs */
async function lastOf(outputs) {
  if (typeof outputs?.[Symbol.asyncIterator] !== "function") return outputs;
  let last;
  for await (const output of outputs) last = output;
  return last;
}

/**
 * The content of a tool's result in MCP: its structured content, its text, or else its parts. Throws when the tool has failed.
 * @param {any} result
 */
function contentOf(result) {
  if (!Array.isArray(result?.content)) return result;
  const { content, structuredContent, isError } = result;
  const texts = content.filter((/** @type {any} */ part) => part?.type === "text");
  const text = texts.map((/** @type {any} */ part) => part.text).join("\n");
  if (isError) throw new Error(text || "the tool has failed and does not say why");
  if (structuredContent !== undefined) return structuredContent;
  return texts.length === content.length ? text : content;
}

/**
 * Calls a tool with arguments that a guest sent.
 * @param {string} name
 * @param {Callable} tool
 * @param {string} json
 * @param {RunningHostCall} running
 */
async function call(name, tool, json, running) {
  /** Names the tool in errors. @param {() => unknown} work */
  const named = async (work) => {
    try {
      return /** @type {any} */ (await work());
    } catch (error) {
      throw new Error(`${name}: ${messageOf(error)}`, { cause: error });
    }
  };
  const checked = async (/** @type {unknown} */ given) => {
    const checked = await tool.input.check(given);
    if (!checked.success) throw new Error(`wrong arguments: ${messageOf(checked.error)}`);
    return checked.value;
  };
  let given = await named(() => readArguments(json));
  let input = await named(() => checked(given));
  if (await named(() => tool.needsApproval(input))) {
    const approved = await running.approve({ name: `tools.${name}`, args: [], kwargs: given });
    if (approved.args.length > 0)
      throw new Error(`${name}: the approval has positional arguments, but tools have names`);
    given = approved.kwargs;
    input = await named(() => checked(given));
  }
  return named(() => tool.call(input, running.signal));
}

/** @param {string} json @returns {unknown} */
function readArguments(json) {
  if (json.length > MOST_ARGUMENTS)
    throw new Error(`the arguments have more than ${MOST_ARGUMENTS.toLocaleString("en")} characters`);
  if (!/__proto__|\\u005f/i.test(json)) return JSON.parse(json);
  // A tool that copies its input by a loop would change prototypes.
  return JSON.parse(json, (key, value) => {
    if (key === "__proto__") throw new Error("no argument may be called __proto__");
    return value;
  });
}

/** @param {unknown} error */
function messageOf(error) {
  return error instanceof Error ? error.message : String(error);
}
