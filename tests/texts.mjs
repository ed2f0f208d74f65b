// The checks of texts find what they look for.
//   node tests/texts.mjs
import assert from "node:assert/strict";
import { docBlocks } from "../scripts/doc-blocks.mjs";
import { anchors, brokenLinks, codeSpans, links, sentences, wordCount } from "../scripts/markdown.mjs";

/** @type {Record<string, () => void>} */
const TESTS = {
  "links are found in prose only": () => {
    const text = "[a](a.md#b) ![c](c.png) `[d](d.md)` [e](https://e.org)\n\n```md\n[f](f.md)\n```\n";
    assert.deepEqual(links(text), ["a.md#b", "c.png"]);
    assert.deepEqual(codeSpans("`x` and\n```sh\n`y`\n```\n"), ["x"]);
  },

  "links to missing files and headings are broken": () => {
    const documents = new Map([
      [
        "docs/a.md",
        "# One thing\n[1](b.md) [2](b.md#its-two-parts) [3](#one-thing) [4](../c) [5](d.md) [6](b.md#none) [7](#two)",
      ],
      ["docs/b.md", "## Its `two` parts\n"],
    ]);
    assert.deepEqual(brokenLinks(documents, new Set([...documents.keys(), "c/d.txt"])), [
      "docs/a.md: d.md",
      "docs/a.md: b.md#none",
      "docs/a.md: #two",
    ]);
    assert.deepEqual([...anchors("# Same\n# Same\n")], ["same", "same-1"]);
  },

  "sentences end at stops, paragraphs, items and cells": () => {
    const text =
      "One is here. Two\ngoes on\n\n- three: with `a b c`\n- four\n\n| five | six |\n|---|---|\n| [seven](e.md) | |\n";
    const found = sentences(text).filter((sentence) => wordCount(sentence) > 0);
    assert.deepEqual(found, ["One is here.", "Two goes on", "- three: with code", "- four", "five", "six", "seven"]);
    assert.equal(wordCount("- three – with code, 4"), 4);
  },

  "doc comments are found by their first lines": () => {
    const texts = (/** @type {string} */ extension, /** @type {string} */ source) =>
      docBlocks(extension, source).map(({ text }) => text);
    assert.deepEqual(texts(".rs", "//! A\n//! b\n\n// no\nmod x;\n    /// What\n    /// d\n    y: u8,\n"), [
      "A",
      "What",
    ]);
    assert.deepEqual(texts(".py", '"""A\nb"""\ndef f():\n    """Who."""\n    x = """no"""\n'), ["A", 'Who."""']);
    const javascript = "// A\n// b\nx; // no\n/** C */\n/**\n * How\n * e\n */\n/** @type {D} */\n";
    assert.deepEqual(texts(".mjs", javascript), ["A", "C */", "How"]);
  },
};

let failed = 0;
for (const [name, test] of Object.entries(TESTS)) {
  try {
    test();
  } catch (error) {
    failed += 1;
    console.log(`✗ ${name}\n${error}`);
  }
}
console.log(`${Object.keys(TESTS).length - failed} passed, ${failed} failed, 0 skipped`);
process.exitCode = failed > 0 ? 1 : 0;
