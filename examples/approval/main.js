import { createSandbox, deletePersisted } from "sandglass";

const element = (id) => document.querySelector(`#${id}`);

/** Asks the user, for as long as it takes. The call's arguments are Python's choice, so they are shown as text. */
function onApprove({ name, args }) {
  element("result").textContent = "Python waits for you.";
  element("text").textContent = `${name}(${args.join(", ")})?`;
  element("question").hidden = false;
  return new Promise((resolve) => {
    element("yes").onclick = () => resolve(true);
    element("no").onclick = () => resolve("not today");
  }).finally(() => (element("question").hidden = true));
}

const CODE = `
import time
prices = {"tea": 4, "glass": 9, "sand": 1}
begun = time.strftime("%d %B")
receipt = pay(sum(prices.values()))
f"{receipt}. Python began on {begun}."
`;

async function main() {
  const sandbox = await createSandbox({
    persist: { name: "approval", journal: true },
    hostFunctions: { pay: { call: (sum) => `Paid ${sum}`, approve: true } },
    onApprove,
  });
  // If the page was closed while Python waited, Python goes on and the question comes again.
  const isPending = (await sandbox.pending()) !== null;
  if (!isPending) await sandbox.initialize(null);
  const { result, error } = await (isPending ? sandbox.resume() : sandbox.execute(CODE));
  element("result").textContent = error ?? result.slice(1, -1);
  await sandbox.destroy();
  await deletePersisted("approval"); // the next visit begins anew
}

main().catch((error) => (element("result").textContent = error));
