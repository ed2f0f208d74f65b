// The right answer, found by patterns over the whole text: without Python, sandbox or model. Kings are matched by name here
// and by the order of succession in the trajectory, so that a mistake in one does not repeat in the other.

/** @typedef {{ king: string, kings: number, chronicles: number }} Difference */

/** Kings with different names in the two accounts: from the name in Kings to the name in Chronicles. */
const OTHER_NAMES = new Map([
  ["Jehoash", "Joash"],
  ["Azariah", "Uzziah"],
]);

const ONES =
  "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen";
const NUMBERS = new Map([
  ...ONES.split(" ").map((word, number) => /** @type {const} */ ([word, number])),
  ...["twenty", "thirty", "forty", "fifty"].map((word, index) => /** @type {const} */ ([word, 20 + 10 * index])),
]);

/** @param {string} text @returns {Difference[]} */
export function rightAnswer(text) {
  const verses = text.split("\n");
  const [kings, chronicles] = [agesIn(verses, /^[12] Kings /), agesIn(verses, /^[12] Chronicles /)];
  const differences = [...chronicles]
    .map(([king, age]) => ({ king, kings: kings.get(king) ?? NaN, chronicles: age }))
    .filter(({ kings, chronicles }) => kings !== chronicles);
  // An unmatched king is a fault of this check, not of the answer.
  const unmatched = differences.find(({ kings }) => Number.isNaN(kings));
  if (unmatched) throw new Error(`the check found no age of ${unmatched.king} in Kings`);
  return differences;
}

/** @param {unknown} answer  the trajectory's final answer @param {Difference[]} right */
export function isRight(answer, right) {
  const key = (/** @type {Difference} */ { king, kings, chronicles }) => `${king} ${kings} ${chronicles}`;
  return Array.isArray(answer) && answer.map(key).sort().join() === right.map(key).sort().join();
}

/** @param {string[]} verses @param {RegExp} book @returns {Map<string, number>} */
function agesIn(verses, book) {
  const ages = new Map();
  verses.forEach((verse, index) => {
    const age = verse.match(/((?:\w+ and )?\w+) years old/)?.[1];
    if (!book.test(verse) || !age || !verse.includes("began to reign")) return;
    const name = nameIn(verse) ?? nameBefore(verses[index - 1] ?? "");
    if (name) ages.set(OTHER_NAMES.get(name) ?? name, toNumber(age));
  });
  return ages;
}

/** The king's name in "Amon was …", "… old was Ahaz …", "Hezekiah began …". @param {string} verse */
function nameIn(verse) {
  const names = verse.match(/([A-Z]\w{2,}) (?:was|began|reigned over)|old was ([A-Z]\w+)/);
  return names?.slice(1).find(Boolean);
}

/** The king's name for a verse that says only "he", from the verse before it. @param {string} verse */
function nameBefore(verse) {
  return [...verse.matchAll(/([A-Z]\w+)(?: the)? son of \w+ king of Judah/g)].at(-1)?.[1];
}

/** A number in words: "one and forty" is 41. @param {string} words */
function toNumber(words) {
  return words
    .toLowerCase()
    .split(" and ")
    .reduce((sum, word) => sum + (NUMBERS.get(word) ?? NaN), 0);
}
