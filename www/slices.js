// Long work, a slice at a time, so that the page is not held up.

/** The time that the page may be held up at once. */
const SLICE_MS = 8;

export class Slices {
  #end = performance.now() + SLICE_MS;

  get isOver() {
    return performance.now() >= this.#end;
  }

  /** Lets the page go on; then the next slice begins. */
  async next() {
    await new Promise((resolve) => setTimeout(resolve));
    this.#end = performance.now() + SLICE_MS;
  }
}
