// Rules about documents and comments: that they are true, where that can be checked, and that they can be read.
//   node scripts/check-texts.mjs [--list]    --list prints the comments that begin badly
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync, statSync } from "node:fs";
import { extname, join } from "node:path";
import { docBlocks } from "./doc-blocks.mjs";
import { brokenLinks, codeSpans, sentences, wordCount } from "./markdown.mjs";
import { environment, root } from "./project.mjs";
import { checkRules } from "./rules.mjs";

/** Words of a sentence in a document for the public. */
const LONGEST_SENTENCE = 30;
/** Bytes of ARCHITECTURE.md, and rows of the glossary. */
const LONGEST_MAP = 8 * 1024;
const MOST_WORDS = 20;
/** Of 100 doc blocks, those that may begin with a question's word. */
const MOST_QUESTIONS = 3;
const QUESTION = /^(What|Whether|Who|Whose|How|When|Where|That)\b/;

/** Documents that nobody reads from one end to the other, or that others keep. */
const NOT_FOR_READING = /^(CHANGELOG\.md|BENCHMARKS\.md|LICENSES\/|tests\/)/;

const output = (/** @type {string} */ program, /** @type {string[]} */ ...args) =>
  execFileSync(program, args, { cwd: root, env: environment, encoding: "utf8", maxBuffer: 1 << 26 });
const files = output("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
  .split("\0")
  .filter((file) => file && existsSync(join(root, file)));
const read = (/** @type {string} */ file) => readFileSync(join(root, file), "utf8");
const isFile = (/** @type {string} */ file) => statSync(join(root, file), { throwIfNoEntry: false })?.isFile();
const documents = new Map(files.filter((file) => file.endsWith(".md")).map((file) => [file, read(file)]));
const blocks = files
  .filter((file) => /\.(rs|py|js|mjs)$/.test(file))
  .flatMap((file) => docBlocks(extname(file), read(file)).map((block) => ({ file, ...block })));
const questions = blocks.filter(({ text }) => QUESTION.test(text));

/** Each rule returns what breaks it. @type {Record<string, () => string[]>} */
const RULES = {
  "links of documents lead somewhere": () => brokenLinks(documents, new Set(files)),

  "links of packed documents lead to packed files": () => {
    const [{ files: packed }] = JSON.parse(output("npm", "pack", "--dry-run", "--json", "--ignore-scripts"));
    const paths = new Set(packed.map((/** @type {{ path: string }} */ { path }) => path));
    return brokenLinks(new Map([...documents].filter(([path]) => paths.has(path))), paths);
  },

  "documents for developers name files that are there": () =>
    [...documents]
      .filter(([path]) => /^(ARCHITECTURE|CONTRIBUTING)\.md$|^docs\/internals\//.test(path))
      .flatMap(([path, text]) =>
        codeSpans(text)
          .filter(
            (code) =>
              /^[\w.-]+(\/[\w.-]+)+\.(rs|py|js|mjs|md|json|txt)$/.test(code) && !/^(dist|pkg|codec)\//.test(code),
          )
          .filter((code) => !files.some((file) => file === code || file.endsWith(`/${code}`)))
          .map((code) => `${path}: ${code}`),
      ),

  "code names documents that are there": () =>
    files
      .filter((file) => /\.(rs|py|js|mjs|json|toml|html)$/.test(file))
      .flatMap((file) =>
        [...read(file).matchAll(/\bdocs\/[\w/-]+\.md\b/g)]
          .filter(([path]) => !documents.has(path) && file !== "tests/texts.mjs")
          .map(([path]) => `${file}: ${path}`),
      ),

  "code names the record that explains it": () =>
    [...documents].flatMap(([path, text]) =>
      [...text.matchAll(/^Code: (.*)$/gm)]
        .flatMap(([, code = ""]) => codeSpans(code))
        .filter((file) => !isFile(file) || !read(file).includes(path))
        .map((file) => `${file} does not name ${path}`),
    ),

  "every error's code is explained": () => [
    ...unexplained("docs/errors.md", ["crates/core/src/error.rs"], /=> "([a-z_]+)"/g),
    ...unexplained(
      "docs/server/errors.md",
      files.filter((file) => /^crates\/server\/src\/[a-z]+\.rs$/.test(file)),
      /(?:StatusCode::[A-Z_]+(?:,|\s*=>\s*\()|refused\()\s*"([a-z_]+)",\s*(?!json!|app\.)/g,
    ),
  ],

  [`ARCHITECTURE.md has at most ${LONGEST_MAP} bytes, and the glossary ${MOST_WORDS} rows`]: () => {
    const rows = read("docs/internals/glossary.md").match(/^\| \*\*/gm)?.length ?? 0;
    const bytes = Buffer.byteLength(read("ARCHITECTURE.md"));
    return [
      ...(bytes > LONGEST_MAP ? [`ARCHITECTURE.md has ${bytes} bytes`] : []),
      ...(rows > MOST_WORDS ? [`the glossary has ${rows} rows`] : []),
    ];
  },

  [`sentences have at most ${LONGEST_SENTENCE} words`]: () =>
    [...documents]
      .filter(([path]) => !NOT_FOR_READING.test(path))
      .flatMap(([path, text]) =>
        sentences(text)
          .filter((sentence) => wordCount(sentence) > LONGEST_SENTENCE)
          .map((sentence) => `${path}: (${wordCount(sentence)}) ${sentence}`),
      ),

  [`of 100 doc blocks at most ${MOST_QUESTIONS} begin with What, Whether, Who, Whose, How, When, Where or That`]:
    () => {
      const share = (100 * questions.length) / blocks.length;
      console.log(`${questions.length} of ${blocks.length} doc blocks begin so: ${share.toFixed(1)} of 100`);
      return share > MOST_QUESTIONS ? [`${share.toFixed(1)} do; --list prints them`] : [];
    },
};

if (process.argv.includes("--list")) {
  console.log(questions.map(({ file, line, text }) => `${file}:${line}: ${text}`).join("\n"));
}
checkRules(RULES);

/** The codes that sources have and a document does not explain. @param {string} path @param {string[]} sources @param {RegExp} pattern */
function unexplained(path, sources, pattern) {
  const explained = new Set(codeSpans(documents.get(path) ?? ""));
  const codes = sources.flatMap((file) => {
    const text = read(file).replace(/#\[cfg\(test\)\]\s*mod tests \{[\s\S]*/, "");
    return [...text.matchAll(pattern)].map(([, code = ""]) => code);
  });
  if (codes.length < 10) return [`${path}: the codes of ${sources[0]} are not found any more`];
  return [...new Set(codes)].filter((code) => !explained.has(code)).map((code) => `${path}: ${code}`);
}
