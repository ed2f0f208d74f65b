// The data of Python's module, which comes apart from its code: see split-module.js.

// Taken before any guest code runs: lockDown removes them.
const { Uint8Array } = self;
const { Instance, Module } = WebAssembly;

/**
 * The beginning of a module that has only a section of data, for the memory `m.m`. Format:
 * https://webassembly.github.io/spec/core/binary/modules.html
 */
const HEAD = [0x00, 0x61, 0x73, 0x6d, 1, 0, 0, 0, 2, 8, 1, 1, 0x6d, 1, 0x6d, 2, 0, 0];

/**
 * Puts the data into a memory in which nothing has run.
 * @param {WebAssembly.Memory} memory
 * @param {Blob} data  the module's section of data
 */
export async function putData(memory, data) {
  const section = new Uint8Array(await data.arrayBuffer());
  const bytes = new Uint8Array(HEAD.length + section.length);
  bytes.set(HEAD);
  bytes.set(section, HEAD.length);
  new Instance(new Module(bytes), { m: { m: memory } });
  return memory;
}
