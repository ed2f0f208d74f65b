// The script of the guest's frame, a document of an opaque origin. It starts the worker, and does nothing else.

import { startWorker } from "./start-worker.js";

self.onmessage = ({ data, ports: [port, control] }) => {
  self.onmessage = null;
  control.postMessage(null); // the script runs; see guest_frame.rs
  startWorker(data, port, control);
};
