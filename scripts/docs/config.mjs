// The settings of the documentation site, for VitePress.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { defineConfig } from "vitepress";
import { slug } from "../markdown.mjs";
import { root } from "../project.mjs";
import { ENTRIES } from "./entries.mjs";
import { readSections } from "./pages.mjs";

// Links to these files lead to the files themselves, not to pages.
process.env.VITE_EXTRA_EXTENSIONS = "ipynb";

const sections = await readSections();
const link = (/** @type {string} */ path) => `/${path.replace(/\.md$/, "")}`;
/** Sections that only some readers want have a list of their own. */
const APART = new Map([
  ["A server", ["/server/"]],
  ["Developers", ["/internals/", "/architecture", "/contributing"]],
]);
const group = (/** @type {import("./pages.mjs").Section} */ { title, entries }) => ({
  text: title,
  items: entries.map(({ title, path }) => ({ text: title, link: link(path) })),
});
const ICON = await icon();

export default defineConfig({
  title: "Sandglass",
  description: "A Python sandbox for language models, in the user's own browser tab",
  lang: "en",
  // The pages of the repository link to files, which works on any server of files.
  cleanUrls: false,
  head: [
    ["link", { rel: "icon", href: ICON }],
    ["meta", { name: "color-scheme", content: "light dark" }],
  ],
  markdown: {
    anchor: { slugify: slug },
    // Documents are plain Markdown. What looks like HTML in them is text.
    html: false,
    theme: { light: "github-light-high-contrast", dark: "github-dark-high-contrast" },
  },
  themeConfig: {
    search: { provider: "local" },
    outline: [2, 3],
    nav: [
      { text: "Quick start", link: "/quick-start" },
      { text: "Recipes", link: "/recipes/rlm-in-30-lines", activeMatch: "^/recipes/" },
      { text: "API", link: link(/** @type {string} */ (ENTRIES[0]?.path)), activeMatch: "^/reference/" },
      { text: "Errors", link: "/errors" },
      { text: "Server", link: "/server/run", activeMatch: "^/server/" },
    ],
    sidebar: Object.fromEntries([
      ...sections.flatMap((section) => (APART.get(section.title) ?? []).map((path) => [path, [group(section)]])),
      [
        "/",
        [
          ...sections.filter(({ title }) => !APART.has(title)).map(group),
          { text: "API", items: ENTRIES.map(({ entry, path }) => ({ text: entry, link: link(path) })) },
        ],
      ],
    ]),
    docFooter: { prev: "Before", next: "Next" },
  },
  // The repository's settings of TypeScript are not for the site.
  vite: { esbuild: { tsconfigRaw: {} }, build: { target: "es2022" }, logLevel: "warn" },
});

/** The playground's picture in a browser's tab, as a data URL. */
async function icon() {
  const page = await readFile(join(root, "www/index.html"), "utf8");
  const [, href = ""] = /rel="icon"\s+href="([^"]*)"/.exec(page) ?? [];
  return href;
}
