// A proxy on this machine that breaks connections.
import { connect, createServer } from "node:net";
import { listen } from "../../scripts/serve.mjs";

/** Bytes after which connections break, on average: in their greeting, or later. */
const BYTES = [300, 3000, 30_000, 300_000];

/**
 * Forwards connections to a server. While `isOn`, each breaks after a random number of bytes.
 * @param {string} url
 */
export async function startProxy(url) {
  const random = generator(27);
  /** @type {Set<() => void>} */
  const open = new Set();
  const proxy = { url: "", isOn: false, cuts: 0, cut: () => [...open].forEach((end) => end()), stop: async () => {} };
  const server = createServer((client) => {
    const target = connect(Number(new URL(url).port), "127.0.0.1");
    for (const socket of [client, target]) socket.setNoDelay(true);
    let left = -Math.log(1 - random()) * BYTES[Math.floor(random() * BYTES.length)];
    const end = () => {
      if (!open.delete(end)) return;
      proxy.cuts++;
      const isReset = random() < 0.5;
      for (const socket of [client, target]) isReset ? socket.resetAndDestroy() : socket.destroy();
    };
    open.add(end);
    for (const [from, to] of [
      [client, target],
      [target, client],
    ]) {
      from.on("data", (data) => {
        const keep = left;
        if (proxy.isOn) left -= data.length;
        if (!proxy.isOn || keep >= data.length) {
          if (!to.write(data)) from.pause();
          return;
        }
        to.write(data.subarray(0, Math.max(0, keep)), end);
      });
      to.on("drain", () => from.resume());
      from.on("error", end);
      from.on("close", end);
    }
  });
  const { port, close } = await listen(server);
  proxy.url = `http://127.0.0.1:${port}`;
  proxy.stop = async () => {
    proxy.isOn = false;
    proxy.cut();
    await close();
  };
  return proxy;
}

/** Random numbers from 0 to 1, the same in each run (mulberry32). @param {number} seed */
function generator(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
