// The official TypeScript client of the Model Context Protocol with `sandglass-host mcp`, over both transports.
//   node tests/mcp/typescript.mjs
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CreateMessageRequestSchema, ResourceUpdatedNotificationSchema } from "@modelcontextprotocol/sdk/types.js";
import { Score } from "../e2e/harness.mjs";
import { program } from "../e2e/host.mjs";

const BACKEND = process.env.SANDGLASS_BACKEND ?? "bubblewrap";
const KEY = "a-key-for-tests-0123456789";
const score = new Score();

/** @typedef {{ transport: "stdio" | "http", client: Client, call: (tool: string, args: object, options?: object) => Promise<Called> }} Connected */
/** @typedef {{ content: { type: string, text?: string, data?: string, mimeType?: string }[], structuredContent?: any, isError?: boolean }} Called */

/** Runs a test with a client over each transport. @param {string} name @param {(connected: Connected) => Promise<void>} body */
async function onBoth(name, body) {
  await score.test(`${name}, stdio`, async () => {
    const transport = new StdioClientTransport({ command: program, args: ["mcp", "--backend", BACKEND] });
    await connected("stdio", transport, body);
    return [];
  });
  await score.test(`${name}, http`, async () => {
    const { url, stop } = await startHttp();
    try {
      const requestInit = { headers: { authorization: `Bearer ${KEY}` } };
      await connected("http", new StreamableHTTPClientTransport(new URL(url), { requestInit }), body);
    } finally {
      assert.equal(await stop(), 0);
    }
    return [];
  });
}

async function startHttp() {
  const child = spawn(program, ["mcp", "--backend", BACKEND, "--listen", "127.0.0.1:0"], {
    env: { ...process.env, SANDGLASS_KEYS: `tester ${KEY}` },
    stdio: ["ignore", "pipe", "inherit"],
  });
  const [line] = await once(createInterface(child.stdout), "line");
  return {
    url: line.replace("listening on ", ""),
    stop: async () => {
      child.kill("SIGTERM");
      return (await once(child, "exit"))[0];
    },
  };
}

/**
 * @param {"stdio" | "http"} kind
 * @param {StdioClientTransport | StreamableHTTPClientTransport} transport
 * @param {(connected: Connected) => Promise<void>} body
 */
async function connected(kind, transport, body) {
  const client = new Client({ name: "test", version: "1" }, { capabilities: { sampling: {} } });
  client.setRequestHandler(CreateMessageRequestSchema, async ({ params }) => {
    const { content } = params.messages[0];
    const text = !Array.isArray(content) && content.type === "text" ? content.text.toUpperCase() : "?";
    return { role: "assistant", model: "test", content: { type: "text", text } };
  });
  await client.connect(/** @type {any} */ (transport));
  try {
    await body({
      transport: kind,
      client,
      call: async (name, args, options) =>
        /** @type {any} */ (await client.callTool({ name, arguments: { ...args } }, undefined, options)),
    });
  } finally {
    await client.close();
  }
}

await onBoth("tools run, and their results match their schemas", async ({ client, call }) => {
  // From here on the client checks each structured result against the tool's schema.
  const { tools } = await client.listTools();
  assert(tools.every(({ description, annotations }) => description && annotations?.title));
  // Names of Rust's numbers, which vendors of models refuse.
  assert.doesNotMatch(JSON.stringify(tools), /"format"/);
  assert.match(client.getInstructions() ?? "", /load_context/);
  const run = await call("execute_python", { code: "x = 1\nprint('hi')\nx + 1" });
  assert.deepEqual(run.content, [{ type: "text", text: "hi\n2" }]);
  assert.deepEqual([run.structuredContent.outcome, run.structuredContent.result], ["ok", "2"]);
  const failed = await call("execute_python", { code: "x / 0" });
  assert(failed.isError && failed.structuredContent.state === "kept");
  await call("load_context", { text: "a needle in it ".repeat(1000) });
  const found = await call("search_context", { pattern: "needle", max_results: 2 });
  assert.deepEqual([found.structuredContent.count, found.structuredContent.matches[1].start], [2, 17]);
  assert.equal((await call("read_context", { start: 2, length: 6 })).structuredContent.text, "needle");
  assert.equal((await call("get_variable", { name: "x" })).structuredContent.text, "1");
  const names = (await call("list_variables", {})).structuredContent.variables.map(
    (/** @type {{ name: string }} */ { name }) => name,
  );
  assert(names.includes("x") && names.includes("context"));
  assert((await call("get_variable", { name: "nothing" })).isError);
  await call("reset", {});
  assert((await call("get_variable", { name: "x" })).isError);
});

await onBoth("output comes early, and an aborted call keeps the state", async ({ call }) => {
  const aborting = new AbortController();
  const onprogress = (/** @type {{ message?: string }} */ { message }) => {
    if (message?.includes("begun")) aborting.abort("enough");
  };
  const code = "kept = 'kept'\nprint('begun')\nimport time\nwhile True: time.sleep(0.01)";
  const calling = call("execute_python", { code, timeout_seconds: 600 }, { signal: aborting.signal, onprogress });
  await assert.rejects(calling, /enough/);
  const run = await call("execute_python", { code: "kept" });
  assert.equal(run.content[0].text, "'kept'");
});

await onBoth("the client's model answers llm_query", async ({ call }) => {
  const run = await call("execute_python", { code: "llm_query('one'), llm_query_batched(['a', 'b'])" });
  assert.equal(run.content[0].text, "('ONE', ['A', 'B'])");
});

await onBoth("files go in and out, and changes are told", async ({ client, call }) => {
  /** @type {(uri: string) => void} */
  let tell = () => {};
  const told = new Promise((/** @type {(uri: string) => void} */ resolve) => (tell = resolve));
  client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => tell(params.uri));
  const bytes = Buffer.from([0xff, 0, 1]).toString("base64");
  const written = await call("write_file", { path: "in.bin", base64: bytes });
  assert.deepEqual(written.structuredContent, { uri: "workspace:///in.bin", bytes: 3 });
  await client.subscribeResource({ uri: "workspace:///out.txt" });
  await call("execute_python", { code: "open('out.txt', 'w').write(str(list(open('in.bin', 'rb').read())))" });
  assert.equal(await told, "workspace:///out.txt");
  const { resources } = await client.listResources();
  assert.deepEqual(resources.map(({ uri }) => uri).sort(), ["workspace:///in.bin", "workspace:///out.txt"]);
  const read = await client.readResource({ uri: "workspace:///out.txt" });
  assert.deepEqual(read.contents[0].text, "[255, 0, 1]");
  const blob = await client.readResource({ uri: "workspace:///in.bin" });
  assert.deepEqual(blob.contents[0].blob, bytes);
  await assert.rejects(client.readResource({ uri: "workspace:///../etc/passwd" }));
});

score.end();
