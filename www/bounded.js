// Texts of others, read up to a bound: a few bytes may stand for gigabytes, and a server may send without end.

/**
 * A stream's text; undefined if it has more than `max` bytes. Rejects when the stream fails or its text is not UTF-8.
 * @param {ReadableStream<Uint8Array>} stream @param {number} max
 * @returns {Promise<string | undefined>}
 */
export async function textOf(stream, max) {
  const reader = stream.getReader();
  const decoder = new TextDecoder("utf-8", { fatal: true });
  let [text, bytes] = ["", 0];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    bytes += value.length;
    if (bytes > max) break;
    text += decoder.decode(value, { stream: true });
  }
  await reader.cancel().catch(() => {});
  return undefined;
}
