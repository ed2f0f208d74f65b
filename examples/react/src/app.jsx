import { useEffect, useState } from "react";
import { useSandbox } from "./use-sandbox.js";

const CODE = `import time
for number in range(1, 4):
    print(number, "of 3")
    time.sleep(0.3)
sum(range(10))`;

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
  const { status, output, run, error, execute, interrupt } = useSandbox();
  const ready = status === "ready";

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
        {run?.outcome} <output id="result">{run?.result ?? run?.error ?? error?.message}</output>
      </p>
    </section>
  );
}
