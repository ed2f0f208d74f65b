// Runs jobs side by side, as many as the machine has processors for.

/**
 * @typedef {object} Job
 * @property {string} name
 * @property {number} [processors]  number of processors that the job keeps busy, 1 by default; a fraction if it mostly waits
 * @property {string[]} [needs]  jobs that must be over before this one begins, if they are run at all
 */

/**
 * Spreads jobs that mostly wait evenly among the others, so that there is always one for the room that two others leave. The
 * order of both kinds stays.
 * @template {Job} T
 * @param {T[]} jobs @param {number} most  processors that a job keeps busy which mostly waits
 */
export function spread(jobs, most) {
  const waits = (/** @type {T} */ { processors = 1 }) => processors <= most;
  const [others, waiting] = [jobs.filter((job) => !waits(job)), jobs.filter(waits)];
  if (others.length === 0) return waiting;
  const until = (/** @type {number} */ at) => Math.round((at * waiting.length) / others.length);
  return others.flatMap((job, at) => [job, ...waiting.slice(until(at), until(at + 1))]);
}

/**
 * Runs the jobs in their order. Each begins as soon as the jobs it needs are over and there is room. No job passes an
 * earlier one that waits for room: so the order is the same in every run, and small jobs do not hold up a large one.
 * @template {Job} T
 * @param {T[]} jobs
 * @param {number} processors  number of processors
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
    // Sums of fractions are not exact.
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
