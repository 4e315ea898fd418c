import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test from "node:test";

/** A program of somebody who has installed the package, checked without mercy. */
const PROGRAM = `
import { Forkyard, ForkyardError, PartialFork, type Event, type Vm, type api } from "forkyard";
const fy: Forkyard = new Forkyard({ url: "unix:///nonexistent" });
export const state = (vm: Vm): api.VmState => vm.state;
export const ready = (event: Event): number => (event.what === "fork_over" ? event.data.ready : 0);
export async function two(vm: Vm): Promise<string> {
  await using clones = await vm.fork(2, { live: true, scrub: ["/secret"] });
  return [...clones].map((clone) => clone.name).join();
}
// @ts-expect-error: no such option.
fy.run("tiny", { memories: 5 }).catch(() => {});
const failed = await fy.vms().catch((error: unknown) => error);
console.log(failed instanceof ForkyardError && failed.kind, PartialFork.name);
`;

test("the package has what is built and nothing else, and a strict program can use it", () => {
  const place = mkdtempSync(join(tmpdir(), "forkyard-package."));
  const run = (program: string, ...words: string[]) => execFileSync(program, words, { cwd: place, encoding: "utf8" });
  const here = process.cwd();
  try {
    const [made] = JSON.parse(execFileSync("npm", ["pack", "--silent", "--json", "--pack-destination", place], { encoding: "utf8" }));
    const files: string[] = made.files.map(({ path }: { path: string }) => path);
    const others = files.filter((path) => !/^dist\/\w+\.(js|d\.ts)$/.test(path));
    assert.deepEqual(others.sort(), ["LICENSE", "README.md", "package.json"]);
    assert(files.includes("dist/index.js") && files.includes("dist/generated.d.ts"));

    const at = join(place, "node_modules/forkyard");
    mkdirSync(at, { recursive: true });
    run("tar", "-xzf", made.filename, "-C", at, "--strip-components=1");
    writeFileSync(join(place, "package.json"), '{ "type": "module" }');
    writeFileSync(join(place, "program.mts"), PROGRAM);
    const lib = ["--lib", "es2022,esnext.disposable", "--types", "node", "--typeRoots", join(here, "node_modules/@types")];
    run(join(here, "node_modules/.bin/tsc"), "--strict", "--module", "nodenext", "--target", "es2022", ...lib, "program.mts");
    assert.equal(run(process.execPath, "program.mjs"), "unreachable PartialFork\n");
  } finally {
    rmSync(place, { recursive: true });
  }
});
