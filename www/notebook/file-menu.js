// The notebook's file menu: new, open, save, and a link. Cells from a file or a link never run by themselves, and the user decides
// before they replace others.

import { byId, el } from "../dom.js";
import { count } from "../format.js";
import { readNotebook, writeNotebook } from "./ipynb.js";
import { cellsOf, isLink, linkOf } from "./link.js";

/** @import { Notebook } from "./cells.js" */
/** @import { CellRecord } from "./ipynb.js" */

/** Bytes of a file that is opened. */
const MAX_FILE = 50_000_000;

export class FileMenu {
  #notebook;
  #examples;
  #say;
  #menu = /** @type {HTMLDetailsElement} */ (byId("file-menu"));
  #question = byId("replace");

  /**
   * @param {Notebook} notebook
   * @param {CellRecord[]} examples  the cells of a new notebook
   * @param {(text: string) => void} say  shows a sentence
   */
  constructor(notebook, examples, say) {
    this.#notebook = notebook;
    this.#examples = examples;
    this.#say = say;
    const file = /** @type {HTMLInputElement} */ (byId("notebook-file"));
    /** @type {Record<string, () => unknown>} */
    const actions = {
      "file-new": () => this.#ask("Begin a new notebook?", [], "The cells that are here go."),
      "file-examples": () => this.#ask("Show the first cells again?", this.#examples, "The cells that are here go."),
      "file-open": () => file.click(),
      "file-save": () => this.save(),
      "file-link": () => this.#copyLink(),
    };
    for (const [id, act] of Object.entries(actions)) {
      byId(id).addEventListener("click", () => {
        this.#menu.open = false;
        void act();
      });
    }
    file.addEventListener("change", () => {
      const [chosen] = file.files ?? [];
      file.value = "";
      if (chosen) void this.#open(chosen);
    });
    this.#closeByItself();
    this.#acceptDrops(byId("notebook"));
    addEventListener("hashchange", () => void this.openLink());
  }

  /** Offers the cells in the page's address, if there are any. */
  async openLink() {
    const { hash } = location;
    if (!isLink(hash)) return;
    // The decision is made once: a reload does not ask again.
    history.replaceState(null, "", "#notebook");
    try {
      const cells = await cellsOf(hash);
      this.#ask(
        "Open the notebook in the link?",
        cells,
        "Somebody else may have written it: read it before you run it.",
      );
    } catch (error) {
      this.#say(`The link cannot be opened: ${/** @type {Error} */ (error).message}.`);
    }
  }

  /** Saves the cells and their outputs as a file. */
  save() {
    const blob = new Blob([writeNotebook(this.#notebook.records, { indent: 1 })], { type: "application/x-ipynb+json" });
    const link = el("a", { href: URL.createObjectURL(blob), download: "sandglass.ipynb" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }

  /** @param {File} file */
  async #open(file) {
    try {
      if (file.size > MAX_FILE) throw new Error("it has more than 50 MB");
      const cells = readNotebook(await file.text());
      this.#ask(`Open ${file.name.slice(0, 100)}?`, cells, "Nothing in it has run here. Read it before you run it.");
    } catch (error) {
      this.#say(`${file.name.slice(0, 100)} cannot be opened: ${/** @type {Error} */ (error).message}.`);
    }
  }

  async #copyLink() {
    try {
      const link = await linkOf(this.#notebook.records);
      const isCopied = await navigator.clipboard.writeText(link).then(
        () => true,
        () => false,
      );
      const words = "The cells are in the link itself, without their outputs.";
      if (isCopied) return this.#say(`Link copied. ${words}`);
      // Where the clipboard is not allowed, the address bar has the link.
      history.replaceState(null, "", link);
      this.#say(`The link is in the address bar. ${words}`);
    } catch (error) {
      this.#say(`No link: ${/** @type {Error} */ (error).message}.`);
    }
  }

  /** Asks before cells are replaced. @param {string} title @param {CellRecord[]} cells @param {string} words */
  #ask(title, cells, words) {
    const close = () => {
      this.#question.hidden = true;
      byId("file-summary").focus();
    };
    const has = cells.length > 0;
    const replace = el("button", {
      id: "replace-all",
      text: has ? "Replace my cells" : "Remove my cells",
      onclick: () => {
        close();
        this.#notebook.replace(cells);
      },
    });
    const add = el("button", {
      id: "replace-add",
      text: "Add below mine",
      onclick: () => {
        close();
        for (const cell of cells) this.#notebook.add(cell);
      },
    });
    const keep = el("button", { id: "replace-keep", class: "quiet", text: "Keep mine", onclick: close });
    const size = has ? ` (${count(cells.length, "cell")})` : "";
    this.#question.replaceChildren(
      el("p", {}, el("strong", { text: `${title}${size}` }), ` ${words}`),
      el("div", { class: "choices" }, replace, ...(has ? [add] : []), keep),
    );
    this.#question.hidden = false;
    keep.focus();
    this.#question.scrollIntoView({ block: "nearest" });
  }

  /** Closes the menu by Escape, and by a click elsewhere. */
  #closeByItself() {
    document.addEventListener("pointerdown", ({ target }) => {
      if (target instanceof Node && !this.#menu.contains(target)) this.#menu.open = false;
    });
    this.#menu.addEventListener("keydown", ({ key }) => {
      if (key !== "Escape" || !this.#menu.open) return;
      this.#menu.open = false;
      byId("file-summary").focus();
    });
  }

  /** @param {HTMLElement} area */
  #acceptDrops(area) {
    area.addEventListener("dragover", (event) => {
      if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
    });
    area.addEventListener("drop", (event) => {
      const [file] = event.dataTransfer?.files ?? [];
      if (!file) return;
      event.preventDefault();
      if (/\.ipynb$/i.test(file.name)) void this.#open(file);
      else this.#say("Drop a notebook (.ipynb) here. Other files are chosen under Context.");
    });
  }
}
