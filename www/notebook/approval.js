// Approval of host calls: a dialog shows each call before its function runs. One call is asked about at a time.

import { byId } from "../dom.js";
import { clip, preview } from "../format.js";

/** @import { HostCall } from "../../pkg/sandglass.js" */

const MAX_CHARS = 3_000;

/** Shows characters that would hide or reorder others. @param {string} text */
const plain = (text) => text.replace(/\p{Cf}/gu, (char) => `\\u{${char.codePointAt(0)?.toString(16)}}`);

/** A call as Python code would write it, roughly. It is the guest's word. @param {HostCall} call */
export function textOf({ name, args, kwargs }) {
  const show = (/** @type {unknown} */ value) => (typeof value === "string" ? JSON.stringify(value) : preview(value));
  const named = Object.entries(kwargs).map(([key, value]) => `${key}=${show(value)}`);
  return clip(plain(`${name}(${[...args.map(show), ...named].join(", ")})`), MAX_CHARS);
}

/** Makes a function that asks the visitor about a call. It resolves to true if the visitor allows the call. */
export function approvals() {
  const dialog = /** @type {HTMLDialogElement} */ (byId("approval"));
  /** @param {HostCall} call */
  const ask = async (call) => {
    const { line, signal } = call;
    if (signal.aborted) return false;
    byId("approval-call").textContent = textOf(call);
    byId("approval-line").textContent =
      line?.text === undefined ? "" : `Line ${line.number}: ${plain(line.text.trim())}`;
    const close = () => dialog.close("");
    signal.addEventListener("abort", close);
    dialog.returnValue = "";
    dialog.showModal();
    await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
    signal.removeEventListener("abort", close);
    return dialog.returnValue === "allow";
  };
  /** @type {Promise<unknown>} */
  let before = Promise.resolve();
  return (/** @type {HostCall} */ call) => {
    const answer = before.then(() => ask(call));
    before = answer;
    return answer;
  };
}
