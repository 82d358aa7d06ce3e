// Builds the page: one script, one style sheet.  The same sources give the same bytes.
import { build } from "esbuild";
import { copyFile } from "node:fs/promises";

const out = process.argv[2] ?? "../src/sterna/runtime/dashboard/assets";
await build({
  entryPoints: { app: "src/main.tsx" },
  bundle: true,
  minify: true,
  charset: "utf8",
  legalComments: "eof",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  outdir: out,
});
await copyFile("src/index.html", `${out}/index.html`);
await copyFile("src/icon.svg", `${out}/icon.svg`);
