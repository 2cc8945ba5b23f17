// What a device makes of hostile documents, for the tests: node hostile.mjs < {words, documents} > one line a document.
// A line has null if the document is refused, else for each record its answer, or the text of an error.
import { webcrypto } from "node:crypto";
import { readFileSync } from "node:fs";

globalThis.crypto ??= webcrypto;
const { Randomizer, StreamDPError } = await import(process.env.STREAMDP_DEVICE ?? "./streamdp.js");
const { words, documents } = JSON.parse(readFileSync(0, "utf8"));

const from = (at) => ({ next: () => {
  if (at >= words.length) throw new Error("a draw needs more words than it has");
  return [...words[at++]];
} });

for (const { text, pinned, records, at } of documents) {
  let randomizer = null, out = null;
  try {
    randomizer = await Randomizer.of(JSON.parse(text), pinned);
  } catch (error) {
    if (!(error instanceof StreamDPError || error instanceof SyntaxError)) out = String(error);
  }
  if (randomizer)
    out = records.map(([x, y, subject]) => {
      try {
        const made = randomizer.report(x, y, { id: "r", subject, words: from(at) });
        return made.gradient ?? made.bit ?? [made.statistic, ...made.answer];
      } catch (error) {
        return String(error);
      }
    });
  console.log(JSON.stringify(out));
}
