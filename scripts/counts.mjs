// Reads a suite's output: the number of its tests, and its slow tests.

/** @typedef {{ passed: number, failed: number, skipped: number }} Counts */

/** Counts a suite as one test, if it prints no counts. @param {string} _output @param {boolean} ok @returns {Counts} */
export function oneTest(_output, ok) {
  return { passed: ok ? 1 : 0, failed: ok ? 0 : 1, skipped: 0 };
}

/**
 * Counts as `count` does, plus a failure for each of the compiler's warnings.
 * @param {(output: string, ok: boolean) => Counts} count @returns {(output: string, ok: boolean) => Counts}
 */
export function withoutWarnings(count) {
  return (output, ok) => {
    const { failed, ...counts } = count(output, ok);
    // Cargo's closing line, with the number of warnings of a crate, is not one more warning.
    const warnings = [...output.matchAll(/^warning: (?!.* generated \d+ warnings?)/gm)].length;
    return { ...counts, failed: failed + warnings };
  };
}

/** Counts by the last line like `N passed, N failed, N skipped`. @param {string} output */
export function sumLine(output) {
  const line = [...output.matchAll(/^(\d+) passed, (\d+) failed, (\d+) skipped$/gm)].at(-1);
  return line && { passed: Number(line[1]), failed: Number(line[2]), skipped: Number(line[3]) };
}

/** Counts by the lines of test binaries: `test result: ok. 3 passed; 0 failed; 1 ignored; …`. @param {string} output */
export function cargoLines(output) {
  const sum = { passed: 0, failed: 0, skipped: 0 };
  for (const line of output.matchAll(/^test result: .*?(\d+) passed; (\d+) failed; (\d+) ignored/gm)) {
    sum.passed += Number(line[1]);
    sum.failed += Number(line[2]);
    sum.skipped += Number(line[3]);
  }
  return sum;
}

/** Counts by a line of pytest: `1 failed, 30 passed, 2 skipped, 3 subtests passed in 1.23s`. @param {string} output */
export function pytestLine(output) {
  const line = [...output.matchAll(/^=*\s*((?:\d+ [a-z ]+(?:, )?)+) in [\d.]+s/gm)].at(-1)?.[1] ?? "";
  const number = (/** @type {string} */ word) => Number(line.match(new RegExp(`(\\d+) ${word}`))?.[1] ?? 0);
  return {
    passed: number("passed") + number("xfailed"),
    failed: number("failed") + number("error") + number("xpassed"),
    skipped: number("skipped"),
  };
}

/**
 * Seconds and names of slow tests, for suites that print them: pytest by `--durations`, the browsers' suites by `Score`.
 * @param {string} output @returns {[number, string][]}
 */
export function slowTests(output) {
  const lines = output.matchAll(/^(?:([\d.]+)s (?:call|setup|teardown) +|slow: ([\d.]+) s )(.+)$/gm);
  return [...lines].map(([, pytest, score, name]) => [Number(pytest ?? score), name]);
}
