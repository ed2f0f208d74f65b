// Random cells of tests/e2e/kills.mjs, and a model of what they do to the variables.

/** Makes the variables: plain ones, a generator, a class and its object, a closure, random numbers, and what the world said. */
export const PREPARE = `
import hashlib as _hashlib, json as _json, os as _os, random as _random, time as _time, types as _types
cell = 0
total = 0
words = {}
log = []
steps = []
world = []
draws = 0
gen = _random.Random(7)
def _counting():
    at = 0
    while True:
        at += 1
        yield at
it = _counting()
class Sum:
    def __init__(self):
        self.value = 0
sums = [Sum()] * 2
def _closure():
    n = 0
    def add(more):
        nonlocal n
        n += more
        return n
    return add
_add = _closure()
def _all():
    """All variables, as data."""
    found = {}
    for name, value in sorted(globals().items()):
        if name.startswith('_') or callable(value) or isinstance(value, _types.ModuleType):
            continue
        if isinstance(value, _random.Random): value = value.getstate()
        if isinstance(value, _types.GeneratorType): value = dict(value.gi_frame.f_locals)
        if name == 'sums': value = [one.value for one in value]
        found[name] = value
    return {**found, 'added': _add(0)}
def _digest():
    return _hashlib.sha256(repr(_all()).encode()).hexdigest()
def _look():
    fresh = _random.Random(7)
    for _ in range(draws): fresh.random()
    assert fresh.getstate() == gen.getstate(), 'random numbers'
    assert sums[0] is sums[1], 'one object'
    seen = {name: globals()[name] for name in ('cell', 'total', 'words', 'log', 'steps', 'draws')}
    seen |= {'it': it.gi_frame.f_locals['at'] if draws else 0, 'sum': sums[1].value, 'added': _add(0), 'world': len(world)}
    print(_json.dumps(seen)); print(_digest())
print(_digest())
`;
/** Shows all variables: those of the model as JSON, then the hash of all. */
export const LOOK = "_look()";
/** The most items of the variables that grow. */
const MOST = 40;

/** The variables that the model knows. @typedef {{ cell: number, total: number, words: Record<string, number>, log: string[], steps: number[], draws: number, it: number, sum: number, added: number, world: number }} Variables */
/**
 * A cell: its number, the calls that it makes in their order, and its effect on the variables. `before` is the cell whose state it begins with.
 * @typedef {object} Cell
 * @property {number} number
 * @property {number} before
 * @property {string} code
 * @property {string[]} calls  keys of calls: the cell's number and a place
 * @property {(variables: Variables, answers: string[]) => void} then
 */

/** @returns {Variables} */
export const prepared = () => ({
  cell: 0,
  total: 0,
  words: {},
  log: [],
  steps: [],
  draws: 0,
  it: 0,
  sum: 0,
  added: 0,
  world: 0,
});

/** The error that a call of this key raises, for a few of them. @param {string} key */
export const failure = (key) => (key.endsWith(".3") ? `no ${key}` : undefined);

/**
 * Draws a cell.
 * @param {number} number @param {number} before @param {(limit: number) => number} below  draws a whole number
 * @returns {Cell}
 */
export function drawCell(number, before, below) {
  const [more, word, value] = [below(1000), `w${below(20)}`, below(1000)];
  const kind = below(10);
  const sequential = kind < 3 ? 0 : 1 + below(4);
  const batch = kind === 9 ? 2 + below(3) : 0;
  const raises = below(8) === 0;
  const pays = Array.from({ length: sequential }, (_, at) => `${number}.${at + 1}`);
  const prompts = Array.from({ length: batch }, (_, at) => `${number}.b${at}`);
  const look = "world.append((_time.time(), _os.urandom(2).hex(), _random.SystemRandom().random()))";
  const pay = (/** @type {string} */ key) => {
    const call = `log.append(pay(${key.replace(".", ", ")}))`;
    const tried = `try:\n    ${call}\nexcept Exception as error:\n    log.append(str(error).rsplit(': ', 1)[-1])`;
    return `${failure(key) ? tried : call}\n${look}`;
  };
  const code = [
    `cell = ${number}`,
    `total += ${more}\nwords[${JSON.stringify(word)}] = ${value}`,
    "steps.append(next(it))\ngen.random(); draws += 1",
    look,
    ...pays.map(pay),
    ...(batch ? [`log.extend(llm_query_batched(${JSON.stringify(prompts)}))`] : []),
    `sums[0].value += ${value}\n_add(${more})`,
    `del log[:-${MOST}], steps[:-${MOST}], world[:-${MOST}]`,
    "print(_digest())",
    ...(raises ? ["raise ValueError('on purpose')"] : []),
  ].join("\n");
  return {
    number,
    before,
    code,
    calls: [...pays, ...prompts],
    then(its, answers) {
      its.cell = number;
      its.total += more;
      its.words[word] = value;
      its.it += 1;
      its.draws += 1;
      its.steps = [...its.steps, its.it].slice(-MOST);
      its.log = [...its.log, ...answers].slice(-MOST);
      its.sum += value;
      its.added += more;
      its.world = Math.min(MOST, its.world + 1 + pays.length);
    },
  };
}
