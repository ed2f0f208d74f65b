// The hash of a page of memory (pyodide-glue/pages.wat) must change with every change of the page.
//   node tests/pages.mjs [--seed 1]
import { join } from "node:path";
import { parseArgs } from "node:util";
import { root } from "../scripts/project.mjs";
import { assemble } from "../scripts/wat.mjs";
import { randomness } from "./e2e/tools.js";

const PAGE = 4096;
const WORDS = PAGE / 4;
const { values } = parseArgs({ options: { seed: { type: "string", default: "1" } } });

const memory = new WebAssembly.Memory({ initial: 1 });
const bytes = await assemble(join(root, "pyodide-glue/pages.wat"));
const { exports } = new WebAssembly.Instance(new WebAssembly.Module(bytes), { env: { memory } });
const hashBytes = /** @type {(at: number, bytes: number) => number} */ (exports.hash);
const hash = (/** @type {number} */ page) => hashBytes(page * PAGE, PAGE);
const [before, page, after] = [0, 1, 2].map((index) => new Int32Array(memory.buffer, index * PAGE, WORDS));

const dice = randomness(Number(values.seed));
const random = (/** @type {number} */ below) => Math.floor(dice() * below);
const word = () => random(WORDS);

/** Changes that programs make to memory. Each leaves a page that differs from the one before. @type {Record<string, () => void>} */
const CHANGES = {
  "a bit": () => (page[word()] ^= 1 << random(32)),
  "two words by one": () => {
    const at = word();
    page[at] += 1;
    page[(at + 1 + random(WORDS - 1)) % WORDS] -= 1;
  },
  "two words swapped": () => {
    const [a, b] = [word(), word()];
    page[a] = 1 + ~page[b];
    [page[a], page[b]] = [page[b], page[a]];
  },
  "the signs of a column": () => {
    const step = 2 ** (1 + random(8));
    for (let at = random(step); at < WORDS; at += step) page[at] ^= 1 << 31;
  },
  "two top bits, a stride apart": () => {
    const [at, stride] = [random(WORDS / 2), 2 ** random(9)];
    page[at] ^= 1 << 31;
    page[at + stride] ^= 1 << 31;
  },
  "a word, and what that does to the next of its accumulator": () => {
    const [at, by] = [random(WORDS - 16), 1 << random(32)];
    page[at] += by;
    page[at + 16] -= Math.imul(by, 0x9e3779b1) << 13;
  },
  "a counter, everywhere": () => {
    const step = 2 ** random(8);
    for (let at = random(step); at < WORDS; at += step) page[at] += 1;
  },
  "words of one accumulator, in another order": () => {
    const [at, last] = [random(16), WORDS / 16 - 1];
    const words = Array.from({ length: last + 1 }, (_, index) => page[at + 16 * index] ?? 0);
    words.unshift(...words.splice(1 + random(last)));
    words.forEach((word, index) => (page[at + 16 * index] = word));
  },
  "everything, by a word": () => page.copyWithin(1, 0),
  "all of it": () => page.forEach((_, at) => (page[at] = random(2 ** 32))),
  "one word in zeros": () => page.fill(0).fill(1 + random(1000), word()),
};

let [passed, failed] = [0, 0];
/** @param {string} name @param {boolean} right */
const check = (name, right) => {
  if (right) passed += 1;
  else failed += 1;
  if (!right) console.log(`✗ ${name} (seed ${values.seed})`);
};

check("a page of zeros has the hash 0", hash(1) === 0);
for (const [name, change] of Object.entries(CHANGES)) {
  CHANGES["all of it"]();
  let same = 0;
  for (let round = 0; round < 1000; round += 1) {
    const [old, known] = [page.slice(), hash(1)];
    change();
    if (page.some((word, at) => word !== old[at]) && hash(1) === known) same += 1;
  }
  check(`${name}: ${same} changes of 1000 were not seen`, same === 0);
}
page.fill(0);
const seen = new Set();
for (let at = 0; at < WORDS; at += 1)
  for (let bit = 0; bit < 32; bit += 1) (seen.add(((page[at] = 1 << bit), hash(1))), (page[at] = 0));
check("every bit in zeros has a hash of its own", seen.size === WORDS * 32 && !seen.has(0));
check("hashes are whole numbers below 2 ** 53", [...seen].every(Number.isSafeInteger));
CHANGES["all of it"]();
const known = hash(1);
before.fill(1);
after.fill(1);
check("its neighbours do not matter", hash(1) === known);
console.log(`${passed} passed, ${failed} failed, 0 skipped`);
process.exitCode = failed ? 1 : 0;
