// Shared objects: code beside the interpreter's, in the same memory and table of functions. A copy of the memory is of use only
// where the same code is at the same places. So it is noted what is loaded where, and loaded once more, in the same order and to
// the same places, into a guest that takes over: then all indices of the table mean the same there.
//
// build.mjs has Emscripten ask here for the place of a library, and leave out what only fills memory while `isReplaying`.
// Decisions: docs/internals/guest-in-a-browser.md.

/**
 * @typedef {object} Loaded
 * @property {number} handle  the address of what C knows of it, its name included
 * @property {number} before  length of the table of functions before it was loaded
 * @property {number} after
 * @property {[name: string, memory: number, size: number][]} places  its own, and those of libraries that came with it
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
  /** Length of the table before the library that is being loaded. */
  let beginning = 0;
  /** Where libraries have to go. @type {Map<string, number> | undefined} */
  let known;
  /** Files that every guest has. */
  const shared = new Set();
  let own = { libraries: 0, functions: 0 };

  const names = () => Object.keys(module.LDSO.loadedLibsByName);

  /** Whether a place in the table is neither the interpreter's nor a library's. @param {number} slot */
  const isStray = (slot) =>
    slot >= own.functions && !loaded.some(({ before, after }) => slot >= before && slot < after);

  return {
    /** Takes the function by which C loads a library; returns the one to have in its place. @param {(handle: number) => number} original */
    hook(original) {
      dlopen = original;
      return (/** @type {number} */ handle) => {
        places = [];
        const before = (beginning = module.wasmTable.length);
        module.isLoading = true; // functions get new places, and not those that others happen to have left or to have
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

    /** The guest has started. */
    begin() {
      own = { libraries: names().length, functions: module.wasmTable.length };
    },

    /** Every guest that takes over has these files. @param {string[]} paths */
    expect(paths) {
      for (const path of paths) shared.add(path);
    },

    /** Whether there are any. */
    get isEmpty() {
      return names().length === own.libraries;
    },

    /** Whether JavaScript has made functions for C, beside those of libraries. */
    get hasOthers() {
      const theirs = loaded.reduce((sum, { before, after }) => sum + after - before, own.functions);
      return module.wasmTable.length > theirs;
    },

    /** What `replay` takes; undefined where it could not put everything at its place, or there is code that no other guest has. */
    get record() {
      const known = loaded.every(({ places }) => places.every(([name]) => shared.has(name)));
      const count = loaded.reduce((sum, { places }) => sum + places.length, own.libraries);
      return known && count === names().length ? loaded : undefined;
    },

    /**
     * Loads libraries into a guest that has none, and has the memory of one that had them.
     * @param {Loaded[]} wanted
     */
    replay(wanted) {
      if (names().length > own.libraries || module.wasmTable.length !== own.functions) {
        throw new Error("the guest that takes over has code of its own");
      }
      module.isReplaying = module.isLoading = true;
      try {
        for (const { handle, before, after, places: theirs } of wanted) {
          // Functions that ctypes had made, and that are gone.
          module.wasmTable.grow(before - module.wasmTable.length);
          known = new Map(theirs.map(([name, memory]) => [name, memory]));
          places = [];
          beginning = before;
          // To load it writes what its variables are at first.
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
