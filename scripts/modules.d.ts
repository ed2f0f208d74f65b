// Pyodide ships no types for its Emscripten module, which `loadPyodide` takes as it is.
declare module "pyodide/pyodide.asm.mjs" {
  const createPyodideModule: any;
  export default createPyodideModule;
}

// scripts/build.mjs assembles these.
declare module "*.wat" {
  const bytes: Uint8Array<ArrayBuffer>;
  export default bytes;
}
