// The API reference: a page for each entry of the package, made of the types that the package ships.
import { existsSync } from "node:fs";
import { join, posix } from "node:path";
import { format } from "prettier";
import * as ts from "typescript/unstable/ast";
import { API } from "typescript/unstable/sync";
import { root } from "../project.mjs";
import { ENTRIES } from "./entries.mjs";

const { SyntaxKind } = ts;

/**
 * @typedef {any} Node  a node of TypeScript's tree
 * @typedef {{ name: string, nodes: Node[], inside: boolean }} Item  what an entry exports; `inside`: only the supervisor declares it
 */

/** Characters of a line of code. */
const CODE_WIDTH = 88;
/** Members of every class that wasm-bindgen makes. */
const GENERATED = new Set(["free", "[Symbol.dispose]"]);

/**
 * Makes the pages.
 * @param {string} errors  the page docs/errors.md
 * @returns {Promise<{ path: string, entry: string, text: string }[]>}
 */
export async function makeReference(errors) {
  const missing = ENTRIES.map(({ types }) => types).filter((file) => !existsSync(join(root, file)));
  if (missing.length > 0) throw new Error(`${missing.join(", ")} is missing: run node scripts/build.mjs first`);
  const codes = errorCodes(errors);
  const api = new API({ cwd: root });
  try {
    const files = ENTRIES.map(({ types }) => join(root, types));
    const snapshot = api.updateSnapshot({ openFiles: files });
    /** The page and heading of each name. @type {Map<string, string>} */
    const places = new Map();
    const chosen = ENTRIES.map((entry, index) => {
      const items = reachable(exportsOf(snapshot, /** @type {string} */ (files[index])), places);
      const page = posix.join("/", entry.path);
      for (const { name } of items) places.set(name, `${page}#${name.toLowerCase()}`);
      return { ...entry, items };
    });
    return await Promise.all(
      chosen.map(async ({ entry, path, items }) => {
        const writer = new Writer(places, codes);
        const parts = [];
        for (const item of items) parts.push(await writer.item(item));
        return {
          path,
          entry,
          text: ["---\npageClass: reference\n---", `# ${entry}`, opening(entry, items), ...parts].join("\n\n") + "\n",
        };
      }),
    );
  } finally {
    api.close();
  }
}

/** The codes that the page of errors explains. @param {string} errors @returns {Set<string>} */
export const errorCodes = (errors) =>
  new Set([...errors.matchAll(/^\| `([a-z_]+)` \|/gm)].map(([, code = ""]) => code));

/** @param {string} entry @param {Item[]} items */
function opening(entry, items) {
  const names = items.filter(({ inside }) => !inside).map(({ name }) => name);
  return `\`\`\`ts\nimport { ${names.join(", ")} } from "${entry}";\n\`\`\``;
}

/** The names that a file exports. @param {Node} snapshot @param {string} file @returns {Map<string, Item>} */
function exportsOf(snapshot, file) {
  const project = snapshot.getDefaultProjectForFile(file);
  const module = project.checker.getSymbolAtLocation(project.program.getSourceFile(file));
  return new Map(
    project.checker.getExportsOfModule(module).map((/** @type {Node} */ symbol) => {
      const { name, declarations = [] } =
        symbol.flags & ALIAS ? { ...project.checker.getAliasedSymbol(symbol), name: symbol.name } : symbol;
      if (declarations.length === 0) throw new Error(`${file} exports ${name}, which nothing declares`);
      const nodes = declarations.map((/** @type {Node} */ handle) => handle.resolve(project)).filter(Boolean);
      const inside = declarations.every(({ path }) => path.startsWith(join(root, "pkg")));
      return [name, { name, nodes, inside }];
    }),
  );
}
/** The flag of a symbol that stands for another file's. */
const ALIAS = 1 << 21;

/**
 * The functions and classes of an entry, and all types that they lead to, but for those that have a place already.
 * @param {Map<string, Item>} exported
 * @param {Map<string, string>} places
 */
function reachable(exported, places) {
  const declared = (/** @type {keyof typeof SyntaxKind} */ kind) =>
    [...exported.values()].filter(({ inside, nodes }) => !inside && nodes.some((node) => isOneOf(node, kind)));
  const values = [...declared("FunctionDeclaration"), ...declared("ClassDeclaration")];
  /** @type {Set<string>} */
  const seen = new Set(values.map(({ name }) => name));
  for (const name of seen)
    for (const node of exported.get(name)?.nodes ?? [])
      for (const used of typesIn(node)) if (exported.has(used)) seen.add(used);
  return [...seen].filter((name) => !places.has(name)).map((name) => /** @type {Item} */ (exported.get(name)));
}

/** The names of types that a node speaks of. @param {Node} node @returns {string[]} */
function typesIn(node) {
  /** @type {Set<string>} */
  const found = new Set();
  const visit = (/** @type {Node} */ inner) => {
    if (isOneOf(inner, "TypeReference")) found.add(inner.typeName.getText());
    inner.forEachChild(visit);
  };
  visit(node);
  return [...found];
}

/** @param {Node} node @param {(keyof typeof SyntaxKind)[]} kinds */
const isOneOf = (node, ...kinds) => kinds.some((kind) => node.kind === SyntaxKind[kind]);
/** @param {Node} node */
const isPrivate = (node) => /^(private|constructor)\b/.test(node.getText());
/** @param {Node} node @returns {string} */
const nameOf = (node) => node.name?.getText() ?? "";

/** Writes names as Markdown. */
class Writer {
  #places;
  #codes;

  /** @param {Map<string, string>} places @param {Set<string>} codes */
  constructor(places, codes) {
    this.#places = places;
    this.#codes = codes;
  }

  /** @param {Item} item */
  async item({ name, nodes }) {
    const parts = [`## ${name}`, ...nodes.flatMap((node) => this.#doc(node))];
    const [first] = nodes;
    if (isOneOf(first, "FunctionDeclaration")) parts.push(await this.#code(nodes), ...this.#types(nodes));
    else if (isOneOf(first, "TypeAliasDeclaration")) parts.push(await this.#code(nodes), ...this.#types(nodes));
    else
      parts.push(
        ...(await this.#members(
          nodes.flatMap(({ members }) => [...(members ?? [])]),
          name,
        )),
      );
    return parts.join("\n\n");
  }

  /** A table of properties, and a heading for each method. @param {Node[]} members @param {string} owner */
  async #members(members, owner) {
    const shown = members.filter((member) => !isPrivate(member) && !GENERATED.has(nameOf(member)));
    const isMethod = (/** @type {Node} */ member) => isOneOf(member, "MethodDeclaration", "MethodSignature");
    const properties = shown.filter((member) => nameOf(member) !== "" && !isMethod(member));
    const rows = properties.map((member) => {
      const optional = member.questionToken || member.postfixToken ? "?" : "";
      const meaning = this.#doc(member).join(" ");
      const anchor = `${owner}.${nameOf(member)}`.toLowerCase();
      return `| \`${nameOf(member)}${optional}\`{#${anchor}} | ${this.#type(member.type)} | ${cell(meaning)} |`;
    });
    const parts = rows.length > 0 ? [["| name | type | meaning |", "|---|---|---|", ...rows].join("\n")] : [];
    for (const name of new Set(shown.filter(isMethod).map(nameOf))) {
      const overloads = shown.filter((member) => isMethod(member) && nameOf(member) === name);
      const docs = overloads.map((method) => this.#doc(method).join("\n\n")).filter(Boolean);
      parts.push(`### ${name}`, await this.#code(overloads), ...docs, ...this.#types(overloads));
    }
    return parts;
  }

  /** The code of declarations. @param {Node[]} nodes */
  async #code(nodes) {
    const texts = nodes.map((node) =>
      node
        .getText()
        .replace(/^(export|declare|default)\s+/g, "")
        .replace(/^declare\s+/, ""),
    );
    // Members of a class are no statements, so they are formatted inside of one.
    const isMember = isOneOf(nodes[0], "MethodDeclaration", "MethodSignature");
    const source = isMember ? `interface I {\n${texts.join("\n")}\n}` : texts.join("\n");
    const formatted = await format(source, { parser: "typescript", printWidth: CODE_WIDTH + (isMember ? 2 : 0) });
    const lines = formatted.trimEnd().split("\n");
    const code = isMember ? lines.slice(1, -1).map((line) => line.slice(2)) : lines;
    return ["```ts", ...code, "```"].join("\n");
  }

  /** Links to the types that the code above names. @param {Node[]} nodes */
  #types(nodes) {
    const own = new Set(nodes.map(nameOf));
    const links = [...new Set(nodes.flatMap(typesIn))].flatMap((name) => {
      const place = this.#places.get(name);
      return place && !own.has(name) ? [`[${name}](${place})`] : [];
    });
    return links.length > 0 ? [`Types: ${links.join(", ")}`] : [];
  }

  /** A type in one cell of a table. Its names are links. @param {Node | undefined} node */
  #type(node) {
    const text = (node?.getText() ?? "unknown")
      .replace(/\/\*.*?\*\//gs, "")
      .replace(/\s+/g, " ")
      .replace(/,? ([)}])/g, " $1")
      .replace(/\( /g, "(")
      .replace(/ \)/g, ")");
    const code = (/** @type {string} */ part) => part && `\`${part.replaceAll("|", "\\|")}\``;
    let written = "";
    let rest = "";
    for (const part of text.split(/\b([A-Z]\w+)\b/)) {
      const place = this.#places.get(part);
      if (!place) rest += part;
      else {
        written += `${code(rest)}[${code(part)}](${place})`;
        rest = "";
      }
    }
    return written + code(rest);
  }

  /** The paragraphs of a node's doc comment. @param {Node} node @returns {string[]} */
  #doc(node) {
    const comment = node.jsDoc?.at(-1)?.getText() ?? "";
    const text = comment
      .replace(/^\/\*\*|\*\/$/g, "")
      .replace(/^[ \t]*\* ?/gm, "")
      .trim();
    const [prose = "", ...tags] = text.split(/^@/m);
    const params = tags.flatMap((tag) => {
      const [, name = "", meaning = ""] = /^param \{.*?\} \[?(\w+)\]?\s*(.*)$/s.exec(tag.trim()) ?? [];
      return meaning ? [`- \`${name}\`: ${line(meaning)}`] : [];
    });
    const paragraphs = [...prose.split(/\n\s*\n/).map(line), params.join("\n")].filter((paragraph) => paragraph !== "");
    return paragraphs.map((paragraph) => this.#link(paragraph));
  }

  /** Codes of errors become links. Links of Rust's documentation become code. @param {string} text */
  #link(text) {
    return text.replace(/\[(`[^`]+`)\]/g, "$1").replace(/`([a-z_]+)`/g, (code, name) => {
      return this.#codes.has(name) ? `[${code}](/errors.md#${name})` : code;
    });
  }
}

/** One line of text. @param {string} text */
const line = (text) => text.replace(/\s+/g, " ").trim();
/** A text within a table. @param {string} text */
const cell = (text) => text.replace(/(?<!\\)\|/g, "\\|");
