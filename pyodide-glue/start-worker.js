// Starts a guest's worker: in the guest's frame, or in the page itself (`isolation: "worker"`).

import { createMailbox, createMailboxWriter } from "./mailbox.js";

/**
 * @typedef {object} BootMessage
 * @property {Record<string, Blob>} assets  Pyodide's files, by name
 * @property {[string, string][]} files  the Python runtime: names and sources
 * @property {Blob} [snapshot]  memory to start from
 * @property {boolean} [proven]  whether a guest has started from it before
 * @property {MessagePort} port  the private way to the host
 * @property {SharedArrayBuffer} [mailbox]  memory shared with whoever started the worker
 */

/**
 * Starts a guest.
 * @param {Blob} script  dist/guest.js
 * @param {BootMessage} message
 * @param {MessagePort} control  takes messages for a blocked worker, and tells when the worker fails
 */
export function startWorker(script, message, control) {
  const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const worker = new Worker(url);
  worker.addEventListener("error", (event) => {
    event.preventDefault();
    control.postMessage(event.message ?? "the worker could not be started");
  });
  const mailbox = createMailbox();
  if (mailbox) {
    const write = createMailboxWriter(mailbox, worker);
    control.onmessage = ({ data }) => write(data);
  }
  worker.postMessage({ ...message, mailbox }, [message.port]);
  // The worker has begun to load by then, or has failed.
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
  return worker;
}
