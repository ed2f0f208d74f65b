// Right and wrong uses of the public types. `tsc` is the test.

import { displayFrame, sanitizeHtml } from "../../dist/display.js";
import { createSandbox, SandboxError } from "../../pyodide-glue/index.js";
import type { RunningHostCall } from "../../pkg/sandglass.js";

export async function rightly(): Promise<void> {
  const sandbox = await createSandbox({
    timeout: 1_000,
    onLLMQuery: async (prompt, { model, signal }) => `${prompt.length} ${model ?? "default"} ${signal.aborted}`,
    onRLMQuery: (task, context) => `${task} ${typeof context}`,
    hostFunctions: {
      add: (a: number, b: number) => a + b,
      look: { call: async (url: string) => url },
      pay: {
        async call(this: RunningHostCall, amount: number) {
          const { args } = amount > 100 ? await this.approve({ name: "pay much" }) : this;
          return this.signal.aborted ? undefined : args.length;
        },
        approve: true,
      },
    },
    onApprove: async ({ name, args, kwargs, line, signal }) => {
      if (signal.aborted || line?.text === undefined) return "nobody is here";
      return name === "pay" ? { args: args.slice(0, 1), kwargs } : line.number + line.execution > 2;
    },
    isolation: "worker",
    profile: "rlm-legacy",
    predictions: "auto",
    maxAheadShare: 0.1,
    maxShadows: 2,
    onProgress: (progress) => {
      progress.stage satisfies
        "assets" | "backend" | "python" | "ready" | "cold" | "calls" | "packages" | "kept" | "unkept";
      if (progress.stage === "calls") progress.total satisfies number;
    },
    budget: { maxCalls: 10, maxTokens: 1e6, maxCost: 1.5, maxTime: 60_000, maxDepth: 1 },
  });
  await sandbox.initialize({ any: ["value", 1n, new Map()] });
  const run = await sandbox.execute("1+1", { timeout: 10, signal: new AbortController().signal });
  run.outcome satisfies "ok" | "error" | "timeout" | "interrupted" | "crashed" | "limit";
  run.error satisfies string | undefined;
  run.final satisfies { value: unknown } | undefined;
  run.state.lost satisfies { name: string; reason: string }[] | undefined;
  run.truncated.stdout satisfies number;
  run.displays satisfies { mime: string; data: string }[];
  run.files satisfies { path: string; change: "created" | "modified" | "deleted"; size: number }[];
  await sandbox.execute("1", {
    onDisplay: ({ mime, data }) => console.log(mime satisfies string, data satisfies string),
  });
  sanitizeHtml("<b>7</b>") satisfies string;
  displayFrame("<b>7</b>") satisfies HTMLIFrameElement;
  await sandbox.writeFile("a.txt", "text");
  await sandbox.writeFile("a.bin", new Blob([new Uint8Array(3)]));
  (await sandbox.readFile("a.bin")) satisfies Uint8Array;
  const moved = await sandbox.moveTo({ url: "https://python.example.com", apiKey: "key" });
  moved.lost satisfies { name: string; reason: string }[];
  await sandbox.moveTo("browser", { packages: ["numpy"] });
  // @ts-expect-error: the page is called "browser"
  await sandbox.moveTo("page");
  (await sandbox.readFile("a.txt", { encoding: "utf-8" })) satisfies string;
  (await sandbox.listFiles()) satisfies {
    path: string;
    size: number;
    modified: number;
    type: "file" | "directory";
  }[];
  await sandbox.removeFile("a.txt");
  (await sandbox.getVariable("x")) satisfies unknown;
  (await sandbox.listVariables()) satisfies { name: string; type: string; length: number | null }[];
  const variables = ["x", ...(await sandbox.listVariables())];
  sandbox.feedback(run, { format: "rlm-minimal", block: 1, variables, maxLength: 10 }) satisfies string;
  sandbox.budget.left.calls satisfies number | undefined;
  await createSandbox({ budget: sandbox.budget, onLLMQuery: () => ({ text: "", usage: { inputTokens: 1 } }) });
  await createSandbox({ backend: { url: "https://example.com/sandglass", apiKey: "…" } });
  await createSandbox({ backend: { url: new URL("http://127.0.0.1:8788") } });
  await createSandbox({
    packages: ["pydantic>=2"],
    autoImport: true,
    lockFileUrl: "lock.json",
    packageBaseUrl: null,
  });
  const loaded = await sandbox.loadPackages(["attrs"], {
    onProgress: ({ loaded, total }) => total !== null && loaded / total,
  });
  loaded satisfies { name: string; version: string }[];
  async function* pieces() {
    yield "1 +";
    yield " 1";
  }
  (await sandbox.executeStream(pieces(), { timeout: 10 })).result satisfies string | undefined;
  await sandbox.executeStream(new ReadableStream<string>());
  sandbox.stats().ahead.code.explicit?.timeSaved satisfies number | undefined;
  await sandbox.hint("import numpy");
  await sandbox.updateConversation([{ role: "assistant", content: "```repl\nimport numpy\n" }]);
  await sandbox.updateConversation("Let me describe the table.");
  for (const guess of sandbox.predictions()) {
    guess satisfies {
      code: string;
      description: string;
      source: string;
      probability: number;
      dependencies: string[];
    };
    guess.estimatedTime satisfies number | undefined;
  }
  const { executions, guestTime, ahead } = sandbox.stats();
  (executions.ok + guestTime + ahead.used) satisfies number;
  sandbox.feedback(run, { turn: 1, turns: 20 }) satisfies string;
  sandbox.capabilities.softInterrupt satisfies boolean;
  sandbox.capabilities.isolation satisfies
    "frame" | "worker" | "bubblewrap" | "deno" | "none" | "docker" | "jupyter" | "subprocess";
  sandbox.interrupt();
  await sandbox.destroy();
  new SandboxError("destroyed", "…").code satisfies string;
}

export async function wrongly(): Promise<void> {
  // @ts-expect-error: there is no such option
  await createSandbox({ tiemout: 1 });
  // @ts-expect-error: milliseconds are a number
  await createSandbox({ timeout: "1" });
  // @ts-expect-error: an answer is a string
  await createSandbox({ onLLMQuery: async () => 42 });
  // @ts-expect-error: a host function has no such setting
  await createSandbox({ hostFunctions: { pay: { call: () => 1, aprove: true } } });
  // @ts-expect-error: an approval is a boolean, a text or other arguments
  await createSandbox({ onApprove: () => 1 });
  // @ts-expect-error: a profile is one of four
  await createSandbox({ profile: "smolagents" });
  // @ts-expect-error: a server has an address
  await createSandbox({ backend: { apiKey: "…" } });
  // @ts-expect-error: the server chooses its backend
  await createSandbox({ backend: { url: "/", isolation: "docker" } });
  // @ts-expect-error: the isolation is frame, worker, process or none
  await createSandbox({ isolation: "iframe" });
  const sandbox = await createSandbox();
  // @ts-expect-error: code is text
  await sandbox.execute(1);
  // @ts-expect-error: pieces are text
  await sandbox.executeStream(new ReadableStream<Uint8Array>());
  // @ts-expect-error: code that is complete is for execute
  await sandbox.executeStream("1");
  // @ts-expect-error: predictions are auto or off
  await createSandbox({ predictions: true });
  // @ts-expect-error: a message has a role
  await sandbox.updateConversation([{ content: "" }]);
  // @ts-expect-error: execute has no such option
  await sandbox.execute("1", { maxOutputLength: 1 });
  // @ts-expect-error: data are text, bytes or a Blob
  await sandbox.writeFile("a", { a: 1 });
  // @ts-expect-error: without an encoding they are bytes
  (await sandbox.readFile("a")) satisfies string;
  // @ts-expect-error: there is no such encoding
  await sandbox.readFile("a", { encoding: "latin-1" });
  // @ts-expect-error: feedback is about an execution
  sandbox.feedback("printed");
  // @ts-expect-error: a value is unknown until it is looked at
  (await sandbox.getVariable("x")).length;
  // @ts-expect-error: capabilities cannot be changed
  sandbox.capabilities = {};
}
