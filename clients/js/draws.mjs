// Draw many reports with WebCrypto, for the statistical tests: node draws.mjs < {document, records, n, scale} > doubles
import { webcrypto } from "node:crypto";
import { readFileSync } from "node:fs";

globalThis.crypto ??= webcrypto;
const { Randomizer } = await import("./streamdp.js");
const { document, records, n, change } = JSON.parse(readFileSync(0, "utf8"));
const randomizer = await Randomizer.of(document);
for (const [name, factor] of Object.entries(change)) randomizer.noise[name] *= factor;
const out = [];
for (const [x, y] of records)
  for (let i = 0; i < n; i++) {
    const { gradient, bit, statistic, answer } = randomizer.report(x, y, { id: "r" });
    out.push(...(gradient ?? [answer ? 1000 * statistic + answer[0] : Number(bit)]));
  }
process.stdout.write(new Uint8Array(Float64Array.from(out).buffer));
