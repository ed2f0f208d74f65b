// Runs jobs side by side, as far as the machine has processors for them.

/**
 * @typedef {object} Job
 * @property {string} name
 * @property {number} [processors]  how many it keeps busy; 1 unless it says so. One that mostly waits takes a part of one
 * @property {string[]} [needs]  jobs that have to be over before it begins, where they are among those that are run
 */

/**
 * Begins the jobs in their order, each as soon as what it needs is over and there is room for it. No job passes an earlier one that
 * waits for room: so the order is the same in every run, and a large job is not kept waiting by small ones.
 * @template {Job} T
 * @param {T[]} jobs
 * @param {number} processors  how many there are
 * @param {(job: T) => Promise<unknown>} run  resolves when the job is over, and never rejects
 */
export async function sideBySide(jobs, processors, run) {
  const size = (/** @type {T} */ job) => Math.min(job.processors ?? 1, processors);
  const waiting = [...jobs];
  /** @type {Map<T, Promise<unknown>>} */
  const running = new Map();
  const isOver = (/** @type {string} */ name) => ![...waiting, ...running.keys()].some((job) => job.name === name);
  const next = () => {
    const job = waiting.find(({ needs = [] }) => needs.every(isOver));
    const busy = [...running.keys()].reduce((sum, job) => sum + size(job), 0);
    // Sums of tenths are not exact.
    return job && busy + size(job) < processors + 0.01 ? job : undefined;
  };
  while (waiting.length > 0 || running.size > 0) {
    for (let job = next(); job; job = next()) {
      const begun = job;
      waiting.splice(waiting.indexOf(begun), 1);
      running.set(
        begun,
        run(begun).then(() => running.delete(begun)),
      );
    }
    if (running.size === 0) throw new Error(`these need each other: ${waiting.map(({ name }) => name).join(", ")}`);
    await Promise.race(running.values());
  }
}
