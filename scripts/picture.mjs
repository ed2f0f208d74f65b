// Takes the README's picture: the playground, after it has answered a question with Python running in the page.
//   node scripts/picture.mjs        writes docs/playground.png; needs `npm run build`
import { join } from "node:path";
import { launch } from "./browsers.mjs";
import { root } from "./project.mjs";
import { serve } from "./serve.mjs";

const site = await serve(root, { folders: { node_modules: join(root, "node_modules") } });
const browser = await launch("chromium");
try {
  const page = await browser.newPage();
  await page.setViewport({ width: 1200, height: 1080 });
  await page.goto(`${site.url}/www/`);
  await page.waitForSelector("#answer:not([hidden])");
  await page.waitForSelector('#state[data-state="ready"]', { timeout: 60_000 });
  // The page opens with a recording. Its code runs again here, so that the picture shows a run.
  await page.click("#run-again");
  await page.waitForSelector("#run-verdict:not([hidden])", { timeout: 60_000 });
  await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
  await page.screenshot({ path: join(root, "docs/playground.png"), optimizeForSpeed: false });
} finally {
  await browser.close();
  await site.close();
}
