// Pyodide ships no types for its Emscripten module; `loadPyodide` takes it as it is.
declare module "pyodide/pyodide.asm.mjs" {
  const createPyodideModule: any;
  export default createPyodideModule;
}

// Modules in WebAssembly's text form, which scripts/build.mjs assembles.
declare module "*.wat" {
  const bytes: Uint8Array<ArrayBuffer>;
  export default bytes;
}

/** The size of the standard library's archive, which scripts/build.mjs puts in. */
declare const STDLIB_BYTES: number;
