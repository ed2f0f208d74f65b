// The messages of customers that most tasks are made of, and the rule that says what a message is about.

export const FIRST = "Ada Ben Cleo Dan Eva Finn Gus Hana Ines Jon Kira Leo Mia Nils Ola Pia Quinn Rosa Sam Tess".split(
  " ",
);
export const LAST =
  "Abel Berg Costa Dahl Ek Fox Gray Holm Ibsen Jung Katz Lund Moss Nash Orr Penn Reed Shaw Thorn West".split(" ");
export const CITIES = "Lyon Porto Gent Turin Bergen Graz Brno Vigo Cork Malmo Split Kiel".split(" ");
const MONTHS = "January February March April May June July August September October November December".split(" ");

/** Complaints by subject. No complaint has the name of its subject in it. @type {Record<string, string[]>} */
export const COMPLAINTS = {
  billing: [
    "the invoice for MONTH lists NUMBER licences twice",
    "I was charged NUMBER euros in MONTH for nothing",
    "the refund of NUMBER euros has not arrived",
    "my receipt of MONTH shows the wrong price",
  ],
  delivery: [
    "the courier left my parcel with a stranger",
    "the shipment has been stuck since MONTH",
    "the postman rang NUMBER times at the wrong house",
    "only NUMBER of the boxes reached my doorstep",
  ],
  account: [
    "my password has not worked since MONTH",
    "the verification code comes NUMBER minutes too late",
    "I cannot change my username",
    "the login page sends me in a circle",
  ],
  repair: [
    "the screen flickers after NUMBER minutes",
    "the battery is empty within NUMBER hours",
    "the hinge broke in MONTH",
    "the left speaker has been silent since MONTH",
  ],
};
export const SUBJECTS = Object.keys(COMPLAINTS);

/** Words by which the oracle knows a subject. @type {Record<string, RegExp>} */
const WORDS = {
  billing: /invoice|charged|refund|receipt/,
  delivery: /courier|shipment|postman|doorstep/,
  account: /password|verification|username|login/,
  repair: /screen|battery|hinge|speaker/,
};

/** The explanation of the subjects, for models that do not know the rule. */
export const EXPLAINED =
  "billing (money that was asked for or owed), delivery (goods on their way), account (getting in), repair (broken hardware). " +
  "Where a message says that an earlier matter is settled, only the present one counts.";

/** The subject of a message: that of the present matter. @param {string} message */
export function subjectOf(message) {
  const present = message.split("; now ").at(-1) ?? "";
  return SUBJECTS.find((subject) => WORDS[subject]?.test(present));
}

/** A complaint about a subject. Three in ten mention a settled matter of another subject before. @param {import("./seeded.mjs").Dice} dice @param {string} subject */
export function complaint(dice, subject) {
  const one = (/** @type {string} */ about) => filled(dice, dice.any(COMPLAINTS[about] ?? []));
  if (dice.next() > 0.3) return `${capital(one(subject))}.`;
  const other = dice.any(SUBJECTS.filter((name) => name !== subject));
  return `I wrote that ${one(other)}, which is settled; now ${one(subject)}.`;
}

/** @param {import("./seeded.mjs").Dice} dice @param {string} text */
export function filled(dice, text) {
  return text
    .replace("MONTH", () => dice.any(MONTHS))
    .replace("NUMBER", () => String(2 + dice.below(60)))
    .replace("CITY", () => dice.any(CITIES));
}

/** The names and cities of different people. @param {import("./seeded.mjs").Dice} dice @param {number} count */
export function people(dice, count) {
  const names = FIRST.flatMap((first) => LAST.map((last) => `${first} ${last}`));
  return dice.some(names, count).map((name) => ({ name, city: dice.any(CITIES) }));
}

/** A line of the context. @param {{ name: string, city: string }} writer @param {string} message */
export const line = ({ name, city }, message) => `${name} (${city}): ${message}`;

/** The writers and messages of lines. @param {string} text */
export function readLines(text) {
  return [...text.matchAll(/^(\w+ \w+) \((\w+)\): (.*)$/gm)].map(([, name = "", city = "", message = ""]) => ({
    name,
    city,
    message,
  }));
}

/** @param {string} text */
function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
