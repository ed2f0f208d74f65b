// Long work in slices, so that the page is not blocked.

/** Longest time for which the page may be blocked at once. */
const SLICE_MS = 8;

export class Slices {
  #end = performance.now() + SLICE_MS;

  get isOver() {
    return performance.now() >= this.#end;
  }

  /** Lets the page go on, then begins the next slice. */
  async next() {
    await new Promise((resolve) => setTimeout(resolve));
    this.#end = performance.now() + SLICE_MS;
  }
}
