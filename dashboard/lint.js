// Lints the sources.  ESLint asks for a newer Node than some distributions have; types and the build do without it.
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";

const wanted = JSON.parse(readFileSync("package.json", "utf8")).engines.node;
const [major, minor] = process.versions.node.split(".").map(Number);
const fits = wanted.split("||").some((range) => {
  const [, kind, least, at = "0"] = /^(\^|>=)(\d+)(?:\.(\d+))?/.exec(range.trim());
  return (major === Number(least) && minor >= Number(at)) || (kind === ">=" && major > Number(least));
});

if (fits) {
  process.exit(spawnSync(process.execPath, ["node_modules/eslint/bin/eslint.js", "src"], { stdio: "inherit" }).status ?? 1);
}
const needs = `linting dashboard/ needs Node ${wanted}, and this is ${process.versions.node}; Debian 13 has 20.19, and https://nodejs.org newer ones`;
if (!["", "0", "false"].includes(process.env["CI"] ?? "")) {
  console.error(`${needs} (CI is set, so that this check must not be left out)`);
  process.exit(1);
}
console.error(`left out: ${needs}`);
