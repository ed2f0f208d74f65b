"use client";

import { createSandbox } from "sandglass";
import { useEffect, useState } from "react";

export default function Page() {
  const [result, setResult] = useState("Starting Python …");

  useEffect(() => {
    const starting = createSandbox();
    count(starting).then(setResult, (error) => setResult(String(error)));
    return () => {
      starting.then((sandbox) => sandbox.destroy());
    };
  }, []);

  return <p id="result">{result}</p>;
}

async function count(starting) {
  const sandbox = await starting;
  await sandbox.initialize("Sand runs through a glass.");
  const { result, error } = await sandbox.execute("len(context.split())");
  return error ?? `Python counts ${result} words.`;
}
