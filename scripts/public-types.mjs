// Makes the types of the npm package: those of its entries, and all that these name.
import { readFile } from "node:fs/promises";
import { join } from "node:path";

/** The module in which the entries find the types that src/ generates, as they are written, and as they are published. */
const GENERATED = "../pkg/sandglass.js";
const PUBLISHED = "./types.js";

/**
 * Types of browsers that the API names. An empty declaration merges with that of the library of types, and stands in where
 * there is none, such as in a project without `dom`.
 */
const OF_BROWSERS = ["AbortSignal", "Blob", "ReadableStream<R = any>", "URL"];

/**
 * Makes the declarations of these entries, and of all modules whose types they name. Returns the texts by file name.
 * @param {string} folder  the declarations of the modules
 * @param {string[]} entries  names of modules, such as `index`
 * @param {string} generated  the declarations of src/, of which only those are published that an entry names
 */
export async function publicTypes(folder, entries, generated) {
  /** @type {Map<string, string>} */
  const texts = new Map();
  const names = new Set();
  const modules = [...entries];
  for (const module of modules) {
    const text = await readFile(join(folder, `${module}.d.ts`), "utf8");
    for (const [, list = ""] of text.matchAll(/^import type \{(.*?)\} from "\.\.\/pkg\/sandglass\.js";/gm))
      for (const name of list.split(",")) names.add(name.trim());
    for (const [, name] of text.matchAll(/import\("\.\.\/pkg\/sandglass\.js"\)\.(\w+)/g)) names.add(name);
    for (const [, other = ""] of text.matchAll(/(?:from |import\()"\.\/([\w-]+)\.js"/g))
      if (!modules.includes(other)) modules.push(other);
    const written = text.replace(/^\/\*\* @import .*\n/gm, "").replaceAll(GENERATED, PUBLISHED);
    const namesTypes = written !== text && entries.includes(module);
    texts.set(`${module}.d.ts`, namesTypes ? `${written}export type * from "${PUBLISHED}";\n` : written);
  }
  const stand = OF_BROWSERS.map((name) => `  interface ${name} {}\n`).join("");
  const head = `/// <reference lib="esnext.disposable" />\n\ndeclare global {\n${stand}}\n`;
  return texts.set("types.d.ts", `${head}\n${declarations(generated, names)}`);
}

/** The declarations of these names, and of the names in them. @param {string} text @param {Set<string>} wanted */
function declarations(text, wanted) {
  const all = text.split(/^(?=\/\*\*(?:(?!\*\/)[^])*\*\/\nexport |(?<!\*\/\n)export )/m).flatMap((declaration) => {
    const name = /^export (?:interface|type|class) (\w+)/m.exec(declaration)?.[1];
    if (!name) return [];
    const code = declaration.replace(/\/\*[^]*?\*\/|\/\/.*|"[^"\n]*"/g, "");
    return [{ name, declaration: `${declaration.trimEnd()}\n`, identifiers: new Set(code.match(/\b[A-Za-z_]\w*/g)) }];
  });
  const found = new Set(wanted);
  for (const name of found)
    for (const { identifiers } of all.filter((one) => one.name === name))
      for (const other of all) if (identifiers.has(other.name)) found.add(other.name);
  const missing = [...wanted].filter((name) => all.every((one) => one.name !== name));
  if (missing.length > 0) throw new Error(`pkg/sandglass.d.ts lacks ${missing.join(", ")}`);
  return all
    .filter(({ name }) => found.has(name))
    .map(({ declaration }) => declaration)
    .join("\n");
}
