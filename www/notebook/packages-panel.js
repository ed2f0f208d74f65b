// Packages: the panel that loads them, and the offer below a cell that imports one which is not loaded. Nothing is fetched before
// the user asks for it.

import { textOf } from "../bounded.js";
import { byId, el } from "../dom.js";

/** @import { CodeExecution } from "../../pkg/sandglass.js" */
/** @import { Session } from "./session.js" */

/** The list of packages that comes with Pyodide. */
const OWN_LIST = new URL("../../dist/pyodide-lock.txt", import.meta.url).href;
/** Bytes of a list that is read. Pyodide's has a few hundred thousand. */
const MAX_LIST = 20_000_000;

/** @param {Session} session */
export function packagesPanel(session) {
  const form = /** @type {HTMLFormElement} */ (byId("packages"));
  const name = /** @type {HTMLInputElement} */ (byId("package-name"));
  const list = /** @type {HTMLInputElement} */ (byId("package-list"));
  const said = byId("package-said");
  const loaded = byId("packages-loaded");

  const show = () => {
    const { packages } = session;
    loaded.replaceChildren(...packages.map((text) => el("li", {}, el("code", { text }))));
    loaded.hidden = packages.length === 0;
  };
  session.addEventListener("state", show);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const wanted = name.value.trim();
    if (!wanted) return name.focus();
    if (await load(session, [wanted], (text) => (said.textContent = text))) name.value = "";
  });
  list.addEventListener("change", () => {
    if (!list.checkValidity())
      return void (said.textContent = "The list's address has to begin with https:// or http://.");
    session.configure({ lockFileUrl: list.value || undefined });
    said.textContent = "The list is taken at the next restart.";
  });
  show();

  /**
   * The offer of a package, if an execution has failed for want of it.
   * @param {CodeExecution} run
   * @param {() => void} again  runs the cell again
   */
  return function offer(run, again) {
    const [, module] = /^ModuleNotFoundError: No module named '([\w.]{1,100})'/.exec(run.error ?? "") ?? [];
    if (run.errorType !== "ModuleNotFoundError" || !module) return undefined;
    const [top = ""] = module.split(".");
    const words = el("p", { text: "Looking for a package …" });
    const box = el("div", { class: "offer", role: "status" }, words);
    void packageOf(top, session.lockFileUrl ?? OWN_LIST).then((found) => {
      if (found === undefined) return void (words.textContent = "The list of packages cannot be read.");
      if (!found) return void (words.textContent = `No package in the list has a module ${top}.`);
      words.textContent = `The package ${found} has this module, and it is not loaded.`;
      const button = el("button", {
        text: `Load ${found} and run again`,
        onclick: async () => {
          button.disabled = true;
          if (await load(session, [found], (text) => (words.textContent = text))) again();
          else button.disabled = false;
        },
      });
      box.append(button);
    });
    return box;
  };
}

/** Loads packages and tells how far that is; resolves to true if it went well. @param {Session} session @param {string[]} wanted @param {(text: string) => void} say */
async function load(session, wanted, say) {
  say(`Loading ${wanted.join(", ")} …`);
  try {
    const loaded = await session.loadPackages(wanted, {
      onProgress: ({ package: name, loaded, total }) =>
        say(`Loading ${name}: ${megabytes(loaded)}${total ? ` of ${megabytes(total)}` : ""} MB`),
    });
    say(loaded.length > 0 ? `Loaded ${loaded.map(({ name }) => name).join(", ")}.` : "It was loaded already.");
    return true;
  } catch (error) {
    say(`Not loaded: ${error instanceof Error ? error.message : error}`);
    return false;
  }
}

/** @param {number} bytes */
const megabytes = (bytes) => (bytes / 1e6).toFixed(1);

/**
 * The package that has a module, by a list of packages: empty if none has, undefined if the list cannot be read.
 * @param {string} module @param {string} url
 * @returns {Promise<string | undefined>}
 */
async function packageOf(module, url) {
  try {
    const response = await fetch(url, { credentials: "omit", referrerPolicy: "no-referrer" });
    const text = response.ok && response.body ? await textOf(response.body, MAX_LIST) : undefined;
    if (text === undefined) return undefined;
    const entries = Object.values(/** @type {Record<string, any>} */ (JSON.parse(text).packages));
    const found = entries.find(({ imports, name }) => imports?.includes(module) && !/-tests$/.test(name));
    return typeof found?.name === "string" ? found.name.slice(0, 100) : "";
  } catch {
    return undefined;
  }
}
