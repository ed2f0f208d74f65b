// The entry `sandglass/rlm` on Node, Deno and Bun.

import "./node.js";

export * from "./rlm.js";
