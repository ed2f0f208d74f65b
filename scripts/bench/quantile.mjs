/**
 * Returns the nearest of the samples; NaN when there are none.
 * @param {number[]} samples @param {number} q  0.5 for the median
 */
export function quantile(samples, q) {
  const sorted = samples.toSorted((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] ?? NaN;
}
