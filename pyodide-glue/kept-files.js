// The files that the browser keeps for the next page, in its cache storage: the snapshot that guests start from (src/snapshot.rs),
// and Python's module. A guest gets the module from here sooner than by a request, because the page need not read it first.
// Decisions: docs/internals/guest-in-a-browser.md.

import { build } from "../dist/assets.js";

const SNAPSHOTS = "sandglass-snapshots";
const MODULES = "sandglass-modules";
/** The key, which has to be an address; nothing is fetched from it. Guests that are made of other files have another. */
const KEY = `https://snapshot.invalid/${build}`;

/** Looks the snapshot up. Resolves to undefined where there is none, or no cache storage. @returns {Promise<Blob | undefined>} */
export async function findKept() {
  return await (await find(SNAPSHOTS))?.blob();
}

/** Looks the module up. Resolves to undefined where there is none, or no cache storage. @returns {Promise<Response | undefined>} */
export const findModule = () => find(MODULES);

/** @param {string} name */
async function find(name) {
  try {
    return await (await caches.open(name)).match(KEY);
  } catch {
    return undefined;
  }
}

/** Keeps a snapshot and the module, in the place of older ones. @param {Blob} snapshot @param {Blob} module */
export async function keep(snapshot, module) {
  for (const [name, file] of /** @type {const} */ ([
    [SNAPSHOTS, snapshot],
    [MODULES, module],
  ])) {
    const cache = await caches.open(name);
    for (const request of await cache.keys()) await cache.delete(request);
    await cache.put(KEY, new Response(file));
  }
}

/** Forgets a module that turned out to be damaged. */
export async function forgetModule() {
  await caches.delete(MODULES);
}
