// A notebook in a link: the cells' sources, deflated, in the address's fragment, which browsers send to no server.

import { textOf } from "../bounded.js";
import { readNotebook, tooMuch } from "./ipynb.js";

/** @import { CellRecord } from "./ipynb.js" */

const START = "#notebook=";
/** Length up to which a link is made. Mail and chats cut longer ones. */
const MAX_LINK = 30_000;
/** Lengths up to which a link is read: the link itself, and the cells in it. */
const MAX_READ = 200_000;
const MAX_BYTES = 2_000_000;

/** The page's address with these cells in it. @param {CellRecord[]} cells */
export async function linkOf(cells) {
  const why = tooMuch(cells);
  if (why) throw new Error(why);
  const sources = cells.map(({ kind, source }) => ({ cell_type: kind, source }));
  const text = JSON.stringify({ nbformat: 4, cells: sources });
  const packed = new Uint8Array(await new Response(through(text, new CompressionStream("deflate-raw"))).arrayBuffer());
  let binary = "";
  for (const byte of packed) binary += String.fromCharCode(byte);
  const code = btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
  const link = `${location.origin}${location.pathname}${START}${code}`;
  if (link.length > MAX_LINK) {
    throw new Error(`the cells are too long for a link (${link.length.toLocaleString("en")} characters): share a file`);
  }
  return link;
}

/** True if an address's fragment holds a notebook. @param {string} hash */
export const isLink = (hash) => hash.startsWith(START);

/** Reads the cells in an address's fragment. @param {string} hash @returns {Promise<CellRecord[]>} */
export async function cellsOf(hash) {
  if (hash.length > MAX_READ) throw new Error("it is too long");
  let packed;
  try {
    const binary = atob(hash.slice(START.length).replaceAll("-", "+").replaceAll("_", "/"));
    packed = Uint8Array.from(binary, (byte) => byte.charCodeAt(0));
  } catch {
    throw new Error("it is damaged");
  }
  return readNotebook(await inflated(packed));
}

/** Inflates a text of bounded length. @param {Uint8Array} packed */
async function inflated(packed) {
  let text;
  try {
    text = await textOf(through(packed, new DecompressionStream("deflate-raw")), MAX_BYTES);
  } catch {
    throw new Error("it is damaged");
  }
  if (text === undefined) throw new Error("its cells are too long");
  return text;
}

/**
 * @param {string | Uint8Array} data
 * @param {CompressionStream | DecompressionStream} stream
 * @returns {ReadableStream<Uint8Array>}
 */
function through(data, stream) {
  return new Blob([/** @type {BlobPart} */ (data)]).stream().pipeThrough(stream);
}
