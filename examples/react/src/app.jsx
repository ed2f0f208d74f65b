import { useEffect, useState } from "react";
import { useSandbox } from "./use-sandbox.js";

const CONTEXT = "Sand runs through a glass.";
const CODE = `import time
words = context.split()
for word in words:
    print(word)
    time.sleep(0.2)
FINAL(f"Python counts {len(words)} words.")`;

/** A cell, and a button that takes it away and brings it back. */
export function App() {
  const [shown, setShown] = useState(true);
  return (
    <main>
      <h1>Sandglass in React</h1>
      {shown && <Cell />}
      <p>
        <button id="toggle" onClick={() => setShown(!shown)}>
          {shown ? "Take the cell away" : "Bring the cell back"}
        </button>
      </p>
    </main>
  );
}

function Cell() {
  const [code, setCode] = useState(CODE);
  const { status, output, run, error, execute, interrupt } = useSandbox(CONTEXT);
  const ready = status === "ready";
  const result = run?.final?.value ?? run?.result ?? run?.error ?? error?.message ?? "Starting Python …";

  // The code runs once by itself, so that the page shows something.
  useEffect(() => {
    if (ready && !run) execute(CODE);
  }, [ready, run, execute]);

  return (
    <section>
      <textarea aria-label="Python" rows="8" cols="60" value={code} onChange={(event) => setCode(event.target.value)} />
      <p>
        <button id="run" disabled={!ready} onClick={() => execute(code)}>
          Run
        </button>{" "}
        <button id="stop" disabled={status !== "running"} onClick={interrupt}>
          Stop
        </button>{" "}
        <span id="status">{status}</span>
      </p>
      <pre id="output">{output}</pre>
      <p>
        {run?.outcome} <output id="result">{result}</output>
      </p>
    </section>
  );
}
