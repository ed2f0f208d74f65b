/**
 * Checks rules, prints those that are broken and the counts, and sets the exit code.
 * @param {Record<string, () => string[]>} rules  by its text, a function that returns what breaks the rule
 */
export function checkRules(rules) {
  const failed = Object.entries(rules).filter(([rule, check]) => {
    const broken = check();
    if (broken.length > 0) console.log(`${rule}, but:\n${broken.map((line) => `  ${line}`).join("\n")}`);
    return broken.length > 0;
  }).length;
  console.log(`${Object.keys(rules).length - failed} passed, ${failed} failed, 0 skipped`);
  process.exitCode = failed > 0 ? 1 : 0;
}
