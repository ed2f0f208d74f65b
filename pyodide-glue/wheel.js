// Reads wheels, which are zip archives. The page reads their METADATA, and a guest reads all of them.

/** @typedef {{ name: string, size: number, isLink: boolean, read: () => Promise<Uint8Array> }} Member */

// Taken before any guest code runs: lockDown removes them, or guest code may replace them.
const { Blob, DataView, DecompressionStream, TextDecoder, Uint8Array } = globalThis;
const { min, max } = Math;

const END = 0x06054b50;
const ENTRY = 0x02014b50;
const LOCAL = 0x04034b50;
/** The largest distance of the archive's end record from the file's end, in bytes. */
const MAX_TAIL = 22 + 0xffff;
const STORED = 0;
const DEFLATED = 8;
/** The most bytes of METADATA. */
const MAX_METADATA = 4_000_000;

/**
 * Lists the members of a wheel, without folders. Throws an Error that says what is wrong with the wheel.
 * @param {Blob} given
 * @returns {Promise<Member[]>}
 */
export async function listWheel(given) {
  // A copy: in Firefox, reading a part of a blob that another process holds may never end.
  const wheel = new Blob([await given.arrayBuffer()]);
  const tail = await view(wheel, max(0, wheel.size - MAX_TAIL), wheel.size);
  let at = tail.byteLength - 22;
  while (at >= 0 && tail.getUint32(at, true) !== END) at -= 1;
  if (at < 0) throw new Error("it is no zip archive, or cut off");
  const [size, start] = [tail.getUint32(at + 12, true), tail.getUint32(at + 16, true)];
  const count = tail.getUint16(at + 10, true);
  if (count === 0xffff || start + size > wheel.size)
    throw new Error("its directory is damaged, or in the format zip64");

  const directory = await view(wheel, start, start + size);
  const text = new TextDecoder("utf-8", { fatal: true });
  /** @type {Member[]} */
  const members = [];
  let offset = 0;
  for (let index = 0; index < count; index++) {
    if (offset + 46 > size || directory.getUint32(offset, true) !== ENTRY) throw new Error("its directory is damaged");
    const [flags, method] = [directory.getUint16(offset + 8, true), directory.getUint16(offset + 10, true)];
    const [packed, full] = [directory.getUint32(offset + 20, true), directory.getUint32(offset + 24, true)];
    const nameEnd = offset + 46 + directory.getUint16(offset + 28, true);
    const end = nameEnd + directory.getUint16(offset + 30, true) + directory.getUint16(offset + 32, true);
    if (end > size) throw new Error("its directory is damaged");
    const mode = directory.getUint32(offset + 38, true) >>> 16;
    const from = directory.getUint32(offset + 42, true);
    const name = text.decode(new Uint8Array(directory.buffer, offset + 46, nameEnd - offset - 46));
    if (flags & 1) throw new Error(`${name} is encrypted`);
    if (method !== STORED && method !== DEFLATED) throw new Error(`${name} is packed by method ${method}`);
    const isLink = (mode & 0xf000) === 0xa000;
    const read = () => unpack(wheel, name, from, packed, full, method);
    if (!name.endsWith("/")) members.push({ name, size: full, isLink, read });
    offset = end;
  }
  return members;
}

/** Reads the METADATA of a wheel. @param {Blob} wheel */
export async function readMetadata(wheel) {
  const members = await listWheel(wheel);
  const found = members.filter(({ name }) => /^[^/]+\.dist-info\/METADATA$/.test(name));
  if (found.length !== 1) throw new Error("it has no METADATA of its own: it is no wheel");
  if (found[0].size > MAX_METADATA) throw new Error("its METADATA is too large");
  return new TextDecoder().decode(await found[0].read());
}

/** @param {Blob} blob @param {number} start @param {number} end */
async function view(blob, start, end) {
  return new DataView(await blob.slice(start, end).arrayBuffer());
}

/**
 * Unpacks one member. It may not be larger than the archive says.
 * @param {Blob} wheel @param {string} name @param {number} from @param {number} packed @param {number} full @param {number} method
 */
async function unpack(wheel, name, from, packed, full, method) {
  const damaged = () => new Error(`${name} is damaged`);
  const head = await view(wheel, from, min(from + 30, wheel.size));
  if (head.byteLength < 30 || head.getUint32(0, true) !== LOCAL) throw damaged();
  const start = from + 30 + head.getUint16(26, true) + head.getUint16(28, true);
  if (start + packed > wheel.size) throw damaged();
  const body = wheel.slice(start, start + packed);
  if (method === STORED) {
    if (packed !== full) throw damaged();
    return new Uint8Array(await body.arrayBuffer());
  }
  const bytes = new Uint8Array(full);
  let at = 0;
  const reader = body.stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  try {
    for (;;) {
      const { value } = await reader.read();
      if (!value) break;
      if (at + value.length > full) throw damaged();
      bytes.set(value, at);
      at += value.length;
    }
  } catch {
    throw damaged();
  } finally {
    reader.cancel().catch(() => {});
  }
  if (at !== full) throw damaged();
  return bytes;
}
