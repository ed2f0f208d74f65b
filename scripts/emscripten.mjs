// Patches of Pyodide's Emscripten script. They are there so that guests start sooner, names of files stay what they
// are, and pyodide-glue/libraries.js can do its work.
// Decisions: docs/internals/guest-in-a-browser.md.
import { readFile, readdir } from "node:fs/promises";
import { join } from "node:path";
import { root } from "./project.mjs";
import { SYMBOLS } from "./symbols.mjs";
import { leaveOutUnused } from "./unused.mjs";

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
 * Sound that nobody hears (unused.mjs).
 * @type {Change[]}
 */
const SILENT = [["registerPostMainLoop(()=>SDL.audio?.queueNewAudioData?.());", ""]];

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
    "var functionsInTableMap;var getFunctionAddress=func=>{if(!functionsInTableMap){functionsInTableMap=new WeakMap;",
    "var functionsInTableMap=new WeakMap;var isMapped=false;var getFunctionAddress=func=>{" +
      "if(!isMapped&&!func.sig&&!functionsInTableMap.has(func)){isMapped=true;",
  ],
  [
    "return addFunction(trampolineInstance.exports.trampoline_call)}",
    "var call=trampolineInstance.exports.trampoline_call,slot=getEmptyTableSlot();setWasmTableEntry(slot,call);" +
      "functionsInTableMap.set(call,slot);return slot}",
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
 * Pyodide's start without compiling Python. In a snapshot all of these modules are imported already.
 * @type {Change[]}
 */
const IMPORTED = [
  ['let[r,n]=API.rawRun("import _pyodide_core");', 'let m,[r,n]=t?[]:API.rawRun("import _pyodide_core");'],
  [
    'API.runPythonInternal_dict=API._pyodide._base.eval_code("{}"),' +
      'API.importlib=API.runPythonInternal("import importlib; importlib");',
    "m=API._pyodide._importhook.sys.modules,API.importlib=m.get('importlib');",
  ],
  [
    'let i=API.runPythonInternal("import __main__; __main__.__dict__"),' +
      's=API.runPythonInternal("import builtins; builtins.__dict__");',
    "let i=m.get('__main__').__dict__,s=m.get('builtins').__dict__;API.runPythonInternal_dict=s.get('dict')();",
  ],
];

/**
 * The parentheses make V8 compile the function at once, with the script, for it is called in any case. Otherwise V8 would read
 * through all of it first, and again at the call.
 * @type {Change[]}
 */
const AT_ONCE = [
  ["async function _createPyodideModule(moduleArg={}){", "var _createPyodideModule=(async function(moduleArg={}){"],
  [";return moduleRtn}export default", ";return moduleRtn});export default"],
];

/**
 * Links the functions and variables that the module exports no more (symbols.mjs) before the first shared object is loaded.
 * @type {Change[]}
 */
const LATE = [
  ['mergeLibSymbols(wasmExports,"main");', "linkLater(wasmExports,module);"],
  ["updateGOT(origExports);", ""],
  [
    "function loadDynamicLibrary(libName,flags={global:true,nodelete:true},localScope,handle){",
    "function loadDynamicLibrary(libName,flags={global:true,nodelete:true},localScope,handle){linkMain();",
  ],
  ["function __dlsym_js(handle,symbol,symbolIndex){", "function __dlsym_js(handle,symbol,symbolIndex){linkMain();"],
  ["function __dlsym_catchup_js(handle,symbolIndex){", "function __dlsym_catchup_js(handle,symbolIndex){linkMain();"],
];

const LINKING = `
  var linkMain = () => {};
  function linkLater(exports, module) {
    const { open, __main_argc_argv } = exports;
    mergeLibSymbols({ open, __main_argc_argv }, "main"); // the only ones that the script itself looks up by name
    linkMain = () => {
      linkMain = () => {};
      const [section] = WebAssembly.Module.customSections(module, "${SYMBOLS}");
      const { functions, variables } = JSON.parse(new TextDecoder().decode(section));
      const symbols = { ...exports };
      for (const name in functions) symbols[name] = getWasmTableEntry(functions[name]);
      for (const name in variables) symbols[name] = new WebAssembly.Global({ value: "i32" }, variables[name]);
      mergeLibSymbols(symbols, "main");
      updateGOT(symbols);
    };
  }`;

/**
 * The functions of JavaScript's that C calls by pointers: one module puts them all into the table.
 * @type {Change[]}
 */
const TOGETHER = [
  ["var reportUndefinedSymbols=()=>{for(", "var reportUndefinedSymbols=()=>{var found=[];for("],
  ["entry.value=addFunction(value,value.sig)}else if(", "found.push([entry,value])}else if("],
  [
    "throw new Error(`bad export type for '${symName}': ${typeof value} (${value})`)}}}};",
    "throw new Error(`bad export type for '${symName}': ${typeof value} (${value})`)}}}" +
      "if(!Module.isLoading)addFunctions(found.map(([,value])=>value));" +
      "for(var[entry,value]of found)entry.value=addFunction(value,value.sig)};",
  ],
];
const ADD_FUNCTIONS = `
  function addFunctions(all) {
    const added = [...new Set(all)].filter((func) => func.sig && !getFunctionAddress(func));
    if (added.length < 2 || freeTableIndexes.length > 0) return;
    const leb = (value) => (value > 127 ? [(value & 127) | 128, ...leb(value >>> 7)] : [value]);
    const section = (id, count, items) => {
      const body = [...leb(count), ...items.flat()];
      return [id, ...leb(body.length), ...body];
    };
    const sigs = [...new Set(added.map((func) => func.sig))];
    const first = wasmTable.grow(added.length);
    const types = sigs.map((sig) => [96, ...generateTypePack(sig.slice(1)), ...generateTypePack(sig[0] === "v" ? "" : sig[0])]);
    const imports = added.map((func, index) => {
      const name = [...String(index)].map((digit) => digit.charCodeAt(0));
      return [1, 101, name.length, ...name, 0, ...leb(sigs.indexOf(func.sig))];
    });
    const table = [1, 101, 1, 116, 1, 112, 0, 0];
    const offset = (first & 127) | 128;
    const place = [0, 65, offset, ((first >> 7) & 127) | 128, (first >> 14) & 63, 11, ...leb(added.length), ...added.flatMap((_, index) => leb(index))];
    const bytes = [
      ...[0, 97, 115, 109, 1, 0, 0, 0],
      ...section(1, types.length, types),
      ...section(2, imports.length + 1, [table, ...imports]),
      ...section(9, 1, [place]),
    ];
    new WebAssembly.Instance(new WebAssembly.Module(Uint8Array.from(bytes)), { e: { t: wasmTable, ...added } });
    for (const [index, func] of added.entries()) functionsInTableMap.set(func, first + index);
  }`;

const ASSIGNMENTS = /var ([\w$,]+);function assignWasmExports\(wasmExports\)\{([^{}]*)\}/;

/**
 * Reads Emscripten's script and patches it. Two thirds of the script are left out: what needs a page (unused.mjs), and one
 * statement for each of 5000 functions of wasm, most of which no JavaScript names. A loop sets those properties of the
 * module that some script names.
 * @param {string} path
 */
export async function readEmscripten(path) {
  let text = await readFile(path, "utf8");
  const found = ASSIGNMENTS.exec(text);
  if (!found) throw new Error(`${path} has no assignWasmExports as that of Pyodide 314.0.7: is it another release?`);
  const [all, names, statements] = found;
  const used = new Set(text.replace(all, "").match(/[\w$]+/g));
  const kept = statements.split(";").filter((statement) => used.has(statement.slice(0, statement.indexOf("="))));
  const asked = new Set([...used, ...(await namesOfOthers(path))]);
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
    }
    ${LINKING}
    ${ADD_FUNCTIONS}`,
  );
  text = [...PLACED, ...NAMED, ...SILENT, ...SETTLED, ...QUICK, ...LATE, ...TOGETHER, ...IMPORTED, ...AT_ONCE].reduce(
    (text, [old, now]) => {
      const [before, after, ...more] = text.split(old);
      if (after === undefined || more.length > 0) {
        throw new Error(`${path} is not as that of Pyodide 314.0.7, which has "${old}" once: is it another release?`);
      }
      return before + now + after;
    },
    text,
  );
  return leaveOutUnused(text, new Set(await namesOfOthers(path)));
}

/** All names in scripts that may ask for an export of the module. @param {string} path  of Emscripten's script */
export async function namesOfScripts(path) {
  const [all] = ASSIGNMENTS.exec(await readFile(path, "utf8")) ?? [""];
  const own = (await readFile(path, "utf8")).replace(all, "").match(/[\w$]+/g);
  return new Set([...(own ?? []), ...(await namesOfOthers(path))]);
}

/** @param {string} path  of Emscripten's script */
const namesOfOthers = async (path) => [
  ...(await namesIn(join(path, "../pyodide.mjs"))),
  ...(await namesIn(join(root, "pyodide-glue"))),
];

/** All names in a file, or in the scripts of a folder. @param {string} path @returns {Promise<string[]>} */
async function namesIn(path) {
  if (path.endsWith("js")) return (await readFile(path, "utf8")).match(/[\w$]+/g) ?? [];
  const files = (await readdir(path)).filter((file) => file.endsWith(".js"));
  return (await Promise.all(files.map((file) => namesIn(join(path, file))))).flat();
}
