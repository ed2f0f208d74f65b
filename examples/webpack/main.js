import { createSandbox } from "sandglass";

async function main() {
  const sandbox = await createSandbox();
  await sandbox.initialize("Sand runs through a glass.");
  const { result, error } = await sandbox.execute("len(context.split())");
  document.querySelector("#result").textContent = error ?? `Python counts ${result} words.`;
}

main().catch((error) => (document.querySelector("#result").textContent = error));
