// Reads and changes modules of WebAssembly in their binary format: https://webassembly.github.io/spec/core/binary/

export const SECTION = {
  custom: 0,
  types: 1,
  imports: 2,
  functions: 3,
  tables: 4,
  globals: 6,
  exports: 7,
  elements: 9,
  code: 10,
  data: 11,
};

/** What an import or export is. */
export const KIND = { function: 0, table: 1, memory: 2, global: 3, tag: 4 };
const I32_CONST = 0x41;
const decoder = new TextDecoder();

/** The imports. @param {Uint8Array | undefined} section */
export function readImports(section) {
  return readVector(section, (reader) => {
    const [from, name] = [reader.text(), reader.text()];
    const kind = reader.byte();
    if (kind === 0) reader.unsigned();
    else if (kind === 3) reader.skip(2);
    else if (kind === 4) skipNumbers(reader, 2);
    else {
      if (kind === 1) reader.skip(1);
      skipNumbers(reader, reader.byte() & 1 ? 2 : 1);
    }
    return { from, name, kind };
  });
}

/** The exports. @param {Uint8Array | undefined} section */
export function readExports(section) {
  return readVector(section, (reader) => ({ name: reader.text(), kind: reader.byte(), index: reader.unsigned() }));
}

/** An element segment: its offset in the table, and the functions that it puts there. @param {Reader} reader */
export function readElements(reader) {
  if (reader.byte() !== 0 || reader.byte() !== I32_CONST)
    throw new Error("the table is filled in a way that is not known here");
  const offset = reader.unsigned(); // signed, but positive
  reader.skip(1);
  return { offset, functions: Array.from({ length: reader.unsigned() }, () => reader.unsigned()) };
}

/** @template T @param {Uint8Array | undefined} section @param {(reader: Reader) => T} read @returns {T[]} */
export function readVector(section, read) {
  if (!section) throw new Error("the module lacks a section");
  const reader = new Reader(section);
  return Array.from({ length: reader.unsigned() }, () => read(reader));
}

/** The contents of the sections, by their ids. @param {Uint8Array} bytes */
export function readSections(bytes) {
  /** @type {Map<number, Uint8Array>} */
  const sections = new Map();
  for (const { id, contents } of eachSection(bytes)) sections.set(id, contents);
  return sections;
}

/** @param {Uint8Array} bytes */
function* eachSection(bytes) {
  const reader = new Reader(bytes);
  reader.skip(8); // the magic number and the version
  while (reader.at < bytes.length) {
    const begin = reader.at;
    const id = reader.byte();
    const contents = reader.take(reader.unsigned());
    yield { id, contents, whole: bytes.subarray(begin, reader.at) };
  }
}

/** Replaces a section by `parts`. @param {Uint8Array} bytes @param {number} replaced @param {(Uint8Array | number[])[]} parts */
export function replaceSection(bytes, replaced, parts) {
  const contents = join(parts);
  const sections = [...eachSection(bytes)].flatMap(({ id, whole }) =>
    id === replaced ? [[id], unsigned(contents.length), contents] : [whole],
  );
  return join([bytes.subarray(0, 8), ...sections]);
}

/** @param {Reader} reader @param {number} count */
export function skipNumbers(reader, count) {
  for (let n = 0; n < count; n++) reader.unsigned(); // signed numbers have the same length
}

export class Reader {
  at = 0;
  #bytes;

  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    this.#bytes = bytes;
  }

  byte() {
    return this.#bytes[this.at++];
  }

  /** Reads an unsigned number in LEB128. */
  unsigned() {
    let value = 0;
    for (let shift = 0; ; shift += 7) {
      const byte = this.byte();
      value |= (byte & 127) << shift;
      if (byte < 128) return value >>> 0;
    }
  }

  /** Reads a text, which begins with its length. */
  text() {
    return decoder.decode(this.take(this.unsigned()));
  }

  /** @param {number} length */
  take(length) {
    this.at += length;
    return this.#bytes.subarray(this.at - length, this.at);
  }

  /** @param {number} length */
  skip(length) {
    this.at += length;
  }
}

/** @param {number} value */
export function unsigned(value) {
  const bytes = [];
  for (; value > 127; value >>>= 7) bytes.push((value & 127) | 128);
  return [...bytes, value];
}

/** @param {number} value */
export function signed(value) {
  const bytes = [];
  for (; value > 63 || value < -64; value >>= 7) bytes.push((value & 127) | 128);
  return [...bytes, value & 127];
}

/** @param {(Uint8Array | number[])[]} parts */
export function join(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** A text, with its length. @param {string} value */
export function text(value) {
  const bytes = new TextEncoder().encode(value);
  return join([unsigned(bytes.length), bytes]);
}
