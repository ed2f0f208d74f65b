// `npm run docs`: builds the documentation site into site/, from docs/, the README and the package's types.
//   node scripts/docs/build.mjs [--base /folder/] [--serve]     --base: the site's folder on its server; --serve: shows it
import { cp, mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { parseArgs } from "node:util";
import { build } from "vitepress";
import { root } from "../project.mjs";
import { serve } from "../serve.mjs";
import { frontPage } from "./front-page.mjs";
import { forModels, llmsFull, llmsList } from "./llms.mjs";
import { readPages, readSections } from "./pages.mjs";
import { errorCodes, makeReference } from "./reference.mjs";

const { values } = parseArgs({ options: { base: { type: "string", default: "/" }, serve: { type: "boolean" } } });
const site = join(root, "site");
/** The folder from which VitePress builds. */
const sources = join(root, ".setup/docs");

const [readme, errors] = await Promise.all(
  ["README.md", "docs/errors.md"].map((file) => readFile(join(root, file), "utf8")),
);
const [pages, reference] = await Promise.all([readPages(), makeReference(/** @type {string} */ (errors))]);
const front = frontPage(/** @type {string} */ (readme));
const texts = new Map([...pages, ...reference].map(({ path, text }) => [path, text]));
const sections = await readSections();

await rm(sources, { recursive: true, force: true });
await rm(site, { recursive: true, force: true });
const codes = errorCodes(/** @type {string} */ (errors));
for (const [path, text] of texts) await write(sources, path, path === "errors.md" ? withAnchors(text, codes) : text);
await write(sources, "index.md", front.page);
for (const name of ["config", "theme/index"]) {
  const source = join(root, "scripts/docs", `${name.replace("/index", "")}.mjs`);
  await write(sources, `.vitepress/${name}.mjs`, `export { default } from ${JSON.stringify(source)};\n`);
}
// Files that pages link to.
for (const file of ["playground.png", "bench-rlm.svg", "notebooks"]) {
  await cp(join(root, "docs", file), join(sources, "public", file), { recursive: true });
}

await build(sources, { base: values.base, outDir: site });

// The same pages for language models, by the convention of llmstxt.org: each as Markdown beside its page, and two lists.
const plain = new Map([...texts].map(([path, text]) => [path, forModels(text, values.base)]));
for (const [path, text] of plain) await write(site, path, text);
const listed = [
  ...sections,
  { title: "API", entries: reference.map(({ path, entry }) => ({ title: entry, path, about: "" })) },
];
await write(site, "llms.txt", llmsList(front, listed, values.base));
await write(site, "llms-full.txt", llmsFull(front, listed, plain));
console.log(`${texts.size + 1} pages in site/`);

if (values.serve) {
  const folder = values.base.replaceAll("/", "");
  const server = await serve(site, {
    port: Number(process.env.PORT ?? 8000),
    folders: folder ? { [folder]: site } : {},
  });
  console.log(`The site is at  ${server.url}${values.base}\nCtrl-C stops it.`);
}

/** Each code of an error has a place that links lead to. @param {string} text @param {Set<string>} codes */
function withAnchors(text, codes) {
  return text.replace(/^\| `([a-z_]+)` \|/gm, (row, code) => (codes.has(code) ? `| \`${code}\`{#${code}} |` : row));
}

/** @param {string} folder @param {string} path @param {string} text */
async function write(folder, path, text) {
  await mkdir(dirname(join(folder, path)), { recursive: true });
  await writeFile(join(folder, path), text);
}
