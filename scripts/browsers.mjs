// Finds the browsers of this machine and launches them for tests, the demo and the benchmarks.
import { accessSync, constants, statSync } from "node:fs";
import { delimiter, join } from "node:path";
import { homedir, platform } from "node:os";
import { fileURLToPath } from "node:url";

/** For each program: the environment variable that wins, its names on PATH, and its path on macOS. */
const PROGRAMS = {
  chromium: {
    variable: "CHROME_PATH",
    names: ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"],
    mac: ["Chromium.app/Contents/MacOS/Chromium", "Google Chrome.app/Contents/MacOS/Google Chrome"],
  },
  chromedriver: { variable: "CHROMEDRIVER_PATH", names: ["chromedriver"], mac: [] },
  firefox: {
    variable: "FIREFOX_PATH",
    names: ["firefox-esr", "firefox"],
    mac: ["Firefox.app/Contents/MacOS/firefox"],
  },
};

// Nothing in the background may load the machine or reach the network while a test or a benchmark runs.
// webdriver.json holds the same list for wasm-bindgen's test runner.
const CHROMIUM_ARGS = [
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

const FIREFOX_PREFS = {
  "app.update.enabled": false,
  "browser.safebrowsing.malware.enabled": false,
  "browser.safebrowsing.phishing.enabled": false,
  "datareporting.policy.dataSubmissionEnabled": false,
  "network.captive-portal-service.enabled": false,
  "network.connectivity-service.enabled": false,
  "toolkit.telemetry.enabled": false,
};

/**
 * Finds the path of `chromium`, `chromedriver` or `firefox`; undefined if there is none.
 * @param {keyof typeof PROGRAMS} program
 */
export function find(program) {
  const { variable, names, mac } = PROGRAMS[program];
  const chosen = process.env[variable];
  if (chosen) {
    if (!isExecutable(chosen)) throw new Error(`${variable} is set to ${chosen}, which is not a program`);
    return chosen;
  }
  const folders = [...(process.env.PATH ?? "").split(delimiter), "/usr/bin", "/usr/lib/chromium", "/snap/bin"];
  const candidates = names.flatMap((name) => folders.map((folder) => join(folder, name)));
  if (platform() === "darwin") {
    candidates.push(...mac.flatMap((app) => [join("/Applications", app), join(homedir(), "Applications", app)]));
  }
  return candidates.find(isExecutable);
}

/**
 * Starts a headless browser with a profile of its own, which is deleted when it closes.
 * @param {"chromium" | "firefox"} name
 * @param {{ headless?: boolean, args?: string[], prefs?: Record<string, unknown>, env?: Record<string, string>, network?: boolean, profile?: string }} [options]
 *   without `network`, nobody is told of requests and frames, and pages run at the speed that they have for users; `profile` is a folder
 *   with the browser's data, which stays
 * @returns {Promise<import("puppeteer-core").Browser>}
 */
export async function launch(name, { headless = true, args = [], prefs = {}, env = {}, network = true, profile } = {}) {
  if (name !== "chromium" && name !== "firefox") throw new Error(`unknown browser "${name}": chromium or firefox`);
  const executablePath = find(name);
  if (!executablePath) {
    throw new Error(`${name} is not here: run scripts/setup, or set ${PROGRAMS[name].variable} to its path`);
  }
  const { default: puppeteer } = await import("puppeteer-core");
  // One call of a page may last as long as a suite; tests have time limits of their own.
  const common = {
    executablePath,
    headless,
    defaultViewport: { width: 1280, height: 800 },
    protocolTimeout: 3_600_000,
    networkEnabled: network,
    timeout: 180_000,
    // A browser that was killed may open no page by itself the next time.
    ...(profile ? { userDataDir: profile, waitForInitialPage: false } : {}),
    env: { ...process.env, ...env },
  };
  if (name === "firefox") {
    return puppeteer.launch({
      ...common,
      browser: "firefox",
      args,
      extraPrefsFirefox: { ...FIREFOX_PREFS, ...prefs },
    });
  }
  // Chromium refuses to run its own sandbox as root, the usual user in a container.
  const root = process.getuid?.() === 0 ? ["--no-sandbox"] : [];
  return puppeteer.launch({ ...common, args: [...CHROMIUM_ARGS, ...root, ...args] });
}

/** @param {string} path */
function isExecutable(path) {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
}

// scripts/setup asks here for missing browsers, so that setup and tests agree.
if (process.argv[2] === "--missing" && process.argv[1] === fileURLToPath(import.meta.url)) {
  try {
    for (const name of /** @type {(keyof typeof PROGRAMS)[]} */ (Object.keys(PROGRAMS))) {
      if (!find(name)) console.log(name);
    }
  } catch (error) {
    console.error(`setup: ${/** @type {Error} */ (error).message}`);
    process.exitCode = 1;
  }
}
