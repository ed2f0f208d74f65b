// The snapshot that the browser keeps for the next page, in its cache storage. See src/snapshot.rs.
// Decisions: docs/internals/guest-in-a-browser.md.

import { build } from "../dist/assets.js";

const CACHE = "sandglass-snapshots";
/** The key, which has to be an address; nothing is fetched from it. Guests that are made of other files have another. */
const KEY = `https://snapshot.invalid/${build}`;

/** Looks the snapshot up. Resolves to undefined where there is none, or no cache storage. @returns {Promise<Blob | undefined>} */
export async function findKept() {
  try {
    const found = await (await caches.open(CACHE)).match(KEY);
    return await found?.blob();
  } catch {
    return undefined;
  }
}

/** Keeps a snapshot, in the place of older ones. @param {Blob} snapshot */
export async function keep(snapshot) {
  const cache = await caches.open(CACHE);
  for (const request of await cache.keys()) await cache.delete(request);
  await cache.put(KEY, new Response(snapshot));
}
