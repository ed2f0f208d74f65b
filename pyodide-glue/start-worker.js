// Starts a guest's worker: in the guest's frame, or in the page itself (`isolation: "worker"`).

import { createMailbox, createMailboxWriter } from "./mailbox.js";

/**
 * Starts a guest's worker.
 * @param {Blob} script  dist/guest.js
 * @param {MessagePort} port  the private way between worker and host
 * @param {MessagePort} control  takes messages for a blocked worker, and tells when the worker fails
 */
export function startWorker(script, port, control) {
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
  worker.postMessage({ port, mailbox }, [port]);
  worker.addEventListener("message", () => URL.revokeObjectURL(url), { once: true }); // it runs
  return worker;
}
