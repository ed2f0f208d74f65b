import { useCallback, useEffect, useState } from "react";
import { createSandbox } from "sandglass";

/** A sandbox that lives as long as the component. A new `context` starts a new one. */
export function useSandbox(context = null) {
  const [sandbox, setSandbox] = useState(null);
  const [status, setStatus] = useState("starting"); // then "ready", "running" or "failed"
  const [output, setOutput] = useState("");
  const [run, setRun] = useState(null); // the report of the last execution
  const [error, setError] = useState(null);

  useEffect(() => {
    let mounted = true;
    const starting = createSandbox();
    const start = async () => {
      const started = await starting;
      await started.initialize(context);
      if (!mounted) return;
      setSandbox(started);
      setStatus("ready");
    };
    const fail = (error) => {
      if (!mounted) return; // the sandbox was destroyed while it started
      setError(error);
      setStatus("failed");
    };
    start().catch(fail);
    return () => {
      mounted = false;
      setSandbox(null);
      setStatus("starting");
      setOutput("");
      setRun(null);
      setError(null);
      starting.then((started) => started.destroy()).catch(() => {});
    };
  }, [context]);

  const execute = useCallback(
    async (code) => {
      if (!sandbox) return; // it is still starting
      setStatus("running");
      setOutput("");
      const add = (text) => setOutput((before) => before + text);
      try {
        setRun(await sandbox.execute(code, { onStdout: add, onStderr: add }));
        setStatus("ready");
      } catch (error) {
        if (error.code === "destroyed") return; // the component is gone
        setError(error);
        setStatus("failed");
      }
    },
    [sandbox],
  );
  const interrupt = useCallback(() => sandbox?.interrupt(), [sandbox]);

  return { status, output, run, error, execute, interrupt };
}
