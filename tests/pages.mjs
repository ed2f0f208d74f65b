// The hash of a page of memory (pyodide-glue/pages.wat): whatever a program does to a page changes it.
//   node tests/pages.mjs [--seed 1]
import { join } from "node:path";
import { parseArgs } from "node:util";
import { root } from "../scripts/project.mjs";
import { assemble } from "../scripts/wat.mjs";

const PAGE = 65_536;
const WORDS = PAGE / 4;
const { values } = parseArgs({ options: { seed: { type: "string", default: "1" } } });

const memory = new WebAssembly.Memory({ initial: 3 });
const bytes = await assemble(join(root, "pyodide-glue/pages.wat"));
const { exports } = new WebAssembly.Instance(new WebAssembly.Module(bytes), { env: { memory } });
const hash = /** @type {(page: number) => bigint} */ (exports.hash);
const [before, page, after] = [0, 1, 2].map((index) => new Int32Array(memory.buffer, index * PAGE, WORDS));

let state = Number(values.seed);
/** xorshift32 @param {number} below */
const random = (below) => {
  state ^= state << 13;
  state ^= state >>> 17;
  state ^= state << 5;
  return (state >>> 0) % below;
};
const word = () => random(WORDS);

/** What programs do to memory. Each leaves a page that differs from the one before. @type {Record<string, () => void>} */
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
    const [at, stride] = [random(WORDS / 2), 2 ** random(13)];
    page[at] ^= 1 << 31;
    page[at + stride] ^= 1 << 31;
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

check("a page of zeros has the hash 0", hash(1) === 0n);
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
const known = hash(1);
before.fill(1);
after.fill(1);
check("its neighbours do not matter", hash(1) === known);
console.log(`${passed} passed, ${failed} failed, 0 skipped`);
process.exitCode = failed ? 1 : 0;
