// The script of the guest's frame, a document of an opaque origin. It starts the worker, and does nothing else. In any other
// document it does nothing at all: frame.js puts it into the page to find out if the page's policy allows it.

import { startWorker } from "./start-worker.js";

if ("sandglass" in document.documentElement.dataset) {
  self.onmessage = ({ data, ports: [port, control] }) => {
    self.onmessage = null;
    control.postMessage(null); // the script runs; see guest_frame.rs
    startWorker(data, port, control);
  };
}
