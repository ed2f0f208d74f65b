// Lines of a stream, for DSPy's runner where its own import of this function cannot be downloaded.

/** @param {{ readable: ReadableStream<Uint8Array> }} reader */
export async function* readLines(reader) {
  let rest = "";
  for await (const text of reader.readable.pipeThrough(/** @type {any} */ (new TextDecoderStream()))) {
    const lines = (rest + text).split("\n");
    rest = lines.pop() ?? "";
    yield* lines;
  }
  if (rest) yield rest;
}
