// Compiles WebAssembly's text form to bytes.
import binaryen from "binaryen";
import { readFile } from "node:fs/promises";

/** @param {string} path */
export async function assemble(path) {
  const module = binaryen.parseText(await readFile(path, "utf8"));
  module.setFeatures(binaryen.Features.SIMD128);
  if (!module.validate()) throw new Error(`${path} is no valid module`);
  binaryen.setAlwaysInlineMaxSize(50);
  module.optimize();
  return module.emitBinary();
}
