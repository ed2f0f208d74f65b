// The files that the browser keeps for the next page, in its cache storage: the snapshot that guests start from (src/snapshot.rs),
// and Python's module (src/assets.rs). A guest gets the module from here sooner than by a request, because the page need not
// read it first.
// Decisions: docs/internals/guest-in-a-browser.md.

import { build } from "../dist/assets.js";

const SNAPSHOTS = "sandglass-snapshots";
const MODULES = "sandglass-modules";
/** The most releases of the package on one origin whose files are kept. With one, two releases would evict each other at every visit. */
const MOST_RELEASES = 2;
/** The key, which has to be an address; nothing is fetched from it. Guests that are made of other files have another. */
const KEY = `https://snapshot.invalid/${build}`;

/** Looks the snapshot up. Resolves to undefined where there is none, or no cache storage. @returns {Promise<Blob | undefined>} */
export async function findKept() {
  try {
    return await (await find(SNAPSHOTS))?.blob();
  } catch {
    return undefined;
  }
}

/** Looks the module up. Resolves to undefined where there is none, or no cache storage. @returns {Promise<Response | undefined>} */
export async function findModule() {
  try {
    return await find(MODULES);
  } catch {
    return undefined;
  }
}

/** Keeps a snapshot, and that of one other release at most. @param {Blob} snapshot */
export const keep = (snapshot) => put(SNAPSHOTS, snapshot);

/** Keeps the module, and that of one other release at most. @param {Blob} module */
export const keepModule = (module) => put(MODULES, module);

/** Forgets a module that turned out to be damaged. */
export async function forgetModule() {
  await (await caches.open(MODULES)).delete(KEY);
}

/** @param {string} name */
const find = async (name) => (await caches.open(name)).match(KEY);

/** @param {string} name @param {Blob} file */
async function put(name, file) {
  const cache = await caches.open(name);
  await cache.put(KEY, new Response(file)); // first, so that a write that fails loses nothing
  const others = (await cache.keys()).filter(({ url }) => url !== KEY); // the newest is the last
  for (const request of others.slice(0, others.length - (MOST_RELEASES - 1))) await cache.delete(request);
}
