// Patches of Pyodide's Emscripten script. They are there so that guests start sooner, names of files stay what they
// are, and pyodide-glue/libraries.js can do its work.
// Decisions: docs/internals/guest-in-a-browser.md.
import { readFile, readdir } from "node:fs/promises";
import { join } from "node:path";
import { root } from "./project.mjs";

/** @typedef {[old: string, now: string]} Change */

const PLACE = "alignMemory(getMemory(metadata.memorySize+memAlign),memAlign)";
/**
 * Hooks for libraries.js: one chooses the address of a library in memory, and one tells when its variables must not be set.
 * @type {Change[]}
 */
const PLACED = [
  [
    `var memoryBase=metadata.memorySize?${PLACE}:0;`,
    `var memoryBase=Module.placeLibrary(libName,metadata.memorySize,()=>metadata.memorySize?${PLACE}:0);`,
  ],
  ["if(freeTableIndexes.length){", "if(freeTableIndexes.length&&!Module.isLoading){"],
  [
    "var rtn=getFunctionAddress(func);if(rtn){",
    "var rtn=getFunctionAddress(func);if(rtn&&!(Module.isLoading&&Module.isStray(rtn))){",
  ],
  ["if(applyRelocs){", "if(applyRelocs&&!Module.isReplaying){"],
  ['["__wasm_call_ctors"];if(init){', '["__wasm_call_ctors"];if(init&&!Module.isReplaying){'],
];

/**
 * File names by pyodide-glue/file-names.js, in all system calls that take or return one.
 * @type {Change[]}
 */
const NAMED = [
  ["getStr(ptr){var ret=UTF8ToString(ptr);return ret}", "getStr(ptr){return Module.fileNames.read(HEAPU8,ptr>>>0)}"],
  ["stringToUTF8(name,dirp+pos+19,256);", "Module.fileNames.write(name,HEAPU8,dirp+pos+19,256);"],
  ["var cwdLengthInBytes=lengthBytesUTF8(cwd)+1;", "var cwdLengthInBytes=Module.fileNames.size(cwd)+1;"],
  ["stringToUTF8(cwd,buf,size);", "Module.fileNames.write(cwd,HEAPU8,buf,size);"],
  ["var len=Math.min(bufsize,lengthBytesUTF8(ret));", "var len=Math.min(bufsize,Module.fileNames.size(ret));"],
  ["stringToUTF8(ret,buf,bufsize+1);", "Module.fileNames.write(ret,HEAPU8,buf,bufsize+1);"],
];

/**
 * Errors that leave `Error.stackTraceLimit` alone, because lockdown.js fixes it: nothing can change the limit from then on.
 * @type {Change[]}
 */
const SETTLED = [
  [
    "let o=Error.stackTraceLimit;Error.stackTraceLimit=1/0,super(r),Error.stackTraceLimit=o,this.type=e,",
    "super(r);this.type=e,",
  ],
];

/**
 * Faster set-up of the 5000 functions of wasm, and of 260 of JavaScript's that C calls. The mirror of the table holds the
 * function that was set. The presence of `sig` replaces a try that throws. Wrappers of the same signature share a module.
 * @type {Change[]}
 */
const QUICK = [
  ["var isInternalSym=symName=>[", "var internalSyms=new Set(["],
  [
    '"__stop_em_js"].includes(symName)||symName.startsWith("__em_js__");',
    '"__stop_em_js"]);var isInternalSym=symName=>internalSyms.has(symName)||symName.startsWith("__em_js__");',
  ],
  [
    "wasmTable.set(idx,func);wasmTableMirror[idx]=wasmTable.get(idx)",
    "wasmTable.set(idx,func);wasmTableMirror[idx]=func",
  ],
  [
    "try{setWasmTableEntry(ret,func)}catch(err){if(!(err instanceof TypeError)){throw err}var wrapped",
    "if(!func.sig){setWasmTableEntry(ret,func)}else{var wrapped",
  ],
  [
    "var convertJsFunctionToWasm=(func,sig)=>{var bytes=",
    "var wrappers={};var convertJsFunctionToWasm=(func,sig)=>{var bytes=()=>",
  ],
  ["var module=new WebAssembly.Module(bytes);", "var module=wrappers[sig]??=new WebAssembly.Module(bytes());"],
];

/**
 * Reads Emscripten's script and patches it. Half of the script is left out: one statement for each of 5000 functions of
 * wasm, most of which no JavaScript names. A loop sets those properties of the module that some script names.
 * @param {string} path
 */
export async function readEmscripten(path) {
  let text = await readFile(path, "utf8");
  const found = /var ([\w$,]+);function assignWasmExports\(wasmExports\)\{([^{}]*)\}/.exec(text);
  if (!found) throw new Error(`${path} has no assignWasmExports as that of Pyodide 314.0.7: is it another release?`);
  const [all, names, statements] = found;
  const used = new Set(text.replace(all, "").match(/[\w$]+/g));
  const kept = statements.split(";").filter((statement) => used.has(statement.slice(0, statement.indexOf("="))));
  const asked = new Set([
    ...used,
    ...(await namesIn(join(path, "../pyodide.mjs"))),
    ...(await namesIn(join(root, "pyodide-glue"))),
  ]);
  const properties = [...new Set(statements.match(/Module\["\w+"\]/g))]
    .map((property) => property.slice('Module["_'.length, -2))
    .filter((name) => asked.has(`_${name}`));
  text = text.replace(
    all,
    () => `var ${names.split(",").filter((name) => used.has(name))};
    function assignWasmExports(wasmExports) {
      for (const name of ${JSON.stringify(properties)}) {
        const value = wasmExports[name];
        Module["_" + name] = value instanceof WebAssembly.Global ? value.value >>> 0 : value;
      }
      ${kept.join(";")}
    }`,
  );
  return [...PLACED, ...NAMED, ...SETTLED, ...QUICK].reduce((text, [old, now]) => {
    const [before, after, ...more] = text.split(old);
    if (after === undefined || more.length > 0) {
      throw new Error(`${path} is not as that of Pyodide 314.0.7, which has "${old}" once: is it another release?`);
    }
    return before + now + after;
  }, text);
}

/** All names in a file, or in the scripts of a folder. @param {string} path @returns {Promise<string[]>} */
async function namesIn(path) {
  if (path.endsWith("js")) return (await readFile(path, "utf8")).match(/[\w$]+/g) ?? [];
  const files = (await readdir(path)).filter((file) => file.endsWith(".js"));
  return (await Promise.all(files.map((file) => namesIn(join(path, file))))).flat();
}
