// Shared objects: code beside the interpreter's, in the same memory and table of functions. A copy of the memory needs
// the same code at the same places. So this module notes each loaded library and its places. A guest that takes over
// loads the same libraries, in the same order and to the same places. Then all indices of the table mean the same
// there.
//
// build.mjs makes Emscripten ask here for a library's place. While `isReplaying`, Emscripten leaves out steps that only
// fill memory.
// Decisions: docs/internals/guest-in-a-browser.md.

/**
 * @typedef {object} Loaded
 * @property {number} handle  the address of C's record of the library, which holds its name
 * @property {number} before  the length of the table of functions before the library was loaded
 * @property {number} after  its length after that
 * @property {[name: string, memory: number, size: number][]} places  the library's place, and those of libraries that
 * it loaded
 */

// Taken before any guest code runs: it may replace them.
const { Map, Set } = self;

export function createLibraries() {
  /** @type {any} */
  let module;
  /** @type {(handle: number) => number} */
  let dlopen = () => 0;
  /** @type {Loaded[]} */
  const loaded = [];
  /** @type {Loaded["places"]} */
  let places = [];
  /** The length of the table before the library that is being loaded. */
  let beginning = 0;
  /** The places that libraries have to get, by name. @type {Map<string, number> | undefined} */
  let known;
  /** The files that every guest has. */
  const shared = new Set();
  let own = { libraries: 0, functions: 0 };

  const names = () => Object.keys(module.LDSO.loadedLibsByName);

  /** Returns true for a slot of the table that belongs neither to the interpreter nor to a library. @param {number} slot */
  const isStray = (slot) =>
    slot >= own.functions && !loaded.some(({ before, after }) => slot >= before && slot < after);

  return {
    /** Wraps the function by which C loads a library. @param {(handle: number) => number} original */
    hook(original) {
      dlopen = original;
      return (/** @type {number} */ handle) => {
        places = [];
        const before = (beginning = module.wasmTable.length);
        module.isLoading = true; // functions get new slots then, not free slots that differ between guests
        try {
          const done = dlopen(handle);
          if (done && places.length > 0) loaded.push({ handle, before, after: module.wasmTable.length, places });
          return done;
        } finally {
          module.isLoading = false;
        }
      };
    },

    /** @param {any} made  Emscripten's module */
    attach(made) {
      module = made;
      module.isReplaying = module.isLoading = false;
      module.isStray = (/** @type {number} */ slot) => slot < beginning && isStray(slot);
      module.placeLibrary = (
        /** @type {string} */ name,
        /** @type {number} */ size,
        /** @type {() => number} */ allocate,
      ) => {
        const memory = known ? known.get(name) : allocate();
        if (memory === undefined) throw new Error(`${name} was not there before`);
        places.push([name, memory, size]);
        return memory;
      };
    },

    /** Notes the state of a guest that has just started. */
    begin() {
      own = { libraries: names().length, functions: module.wasmTable.length };
    },

    /** Declares files that every guest has which takes over. @param {string[]} paths */
    expect(paths) {
      for (const path of paths) shared.add(path);
    },

    /** The number of loaded libraries. */
    get number() {
      return names().length;
    },

    /** Returns true when no library was loaded. */
    get isEmpty() {
      return names().length === own.libraries;
    },

    /** Returns true when JavaScript has made functions for C, besides those of libraries. */
    get hasOthers() {
      const theirs = loaded.reduce((sum, { before, after }) => sum + after - before, own.functions);
      return module.wasmTable.length > theirs;
    },

    /**
     * The libraries for `replay`. Undefined when `replay` could not restore all places, or a library's file is not in
     * every guest.
     */
    get record() {
      const known = loaded.every(({ places }) => places.every(([name]) => shared.has(name)));
      const count = loaded.reduce((sum, { places }) => sum + places.length, own.libraries);
      return known && count === names().length ? loaded : undefined;
    },

    /**
     * Loads libraries into a guest that has none of its own, after the memory of a guest that had them was copied to
     * it.
     * @param {Loaded[]} wanted
     */
    replay(wanted) {
      if (names().length > own.libraries || module.wasmTable.length !== own.functions) {
        throw new Error("the guest that takes over has code of its own");
      }
      module.isReplaying = module.isLoading = true;
      try {
        for (const { handle, before, after, places: theirs } of wanted) {
          // Slots of functions that ctypes had made, and that are gone.
          module.wasmTable.grow(before - module.wasmTable.length);
          known = new Map(theirs.map(([name, memory]) => [name, memory]));
          places = [];
          beginning = before;
          // Loading writes the initial values of the library's variables, so the current ones are kept and put back.
          const kept = theirs.map(([, memory, size]) => module.HEAPU8.slice(memory, memory + size));
          const done = dlopen(handle);
          theirs.forEach(([, memory], index) => module.HEAPU8.set(kept[index], memory));
          const same =
            places.length === theirs.length &&
            theirs.every(([name, , size], index) => {
              return places[index][0] === name && places[index][2] === size;
            });
          if (!done || !same || module.wasmTable.length !== after) throw new Error("a library is not as it was");
          loaded.push({ handle, before, after, places });
        }
      } finally {
        module.isReplaying = module.isLoading = false;
        known = undefined;
      }
    },
  };
}
