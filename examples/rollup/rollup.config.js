import { nodeResolve } from "@rollup/plugin-node-resolve";
import { importMetaAssets } from "@web/rollup-plugin-import-meta-assets";

export default {
  input: "main.js",
  output: { dir: "dist", format: "es" },
  // Rollup itself copies no files. This plugin copies those of `new URL("…", import.meta.url)`.
  plugins: [nodeResolve(), importMetaAssets()],
};
