// The test vectors of local reports, and what a device must refuse: node --test clients/js
// STREAMDP_DEVICE=./streamdp.min.js tests the minified module.
import assert from "node:assert/strict";
import { createHash, webcrypto } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";

globalThis.crypto ??= webcrypto;
const { Device, Randomizer, RefusedError, SchemaError, ServiceError, StreamDPError, calibrate, parseBudget, storedNotes } =
  await import(process.env.STREAMDP_DEVICE ?? "./streamdp.js");
const vectors = JSON.parse(readFileSync(new URL("../vectors/reports-1.json", import.meta.url)));

const near = (found, expected, relative, what) =>
  assert.ok(Math.abs(found - expected) <= relative * Math.max(Math.abs(expected), 1e-300), `${what}: ${found}, expected ${expected}`);
const nearAll = (found, expected, relative, what) => {
  assert.equal(found.length, expected.length, what);
  expected.forEach((value, j) => Math.abs(value) < 1e-15 || near(found[j], value, relative, `${what} ${j}`));
};

/** The words of draw n: see tests/support/vectors.py. */
const given = (job, n) => {
  let at = 0;
  return { next: () => {
    const bytes = createHash("sha256").update(`streamdp/1/${job}/${n}/${at++}`).digest();
    return [bytes.readUInt32BE(4), bytes.readUInt32BE(0)];
  } };
};

for (const { job, document, x, y, columns, target, truth, reports } of vectors.cases)
  test(`${job}, version ${document.version}`, async () => {
    const randomizer = await Randomizer.of(document, document.agreement);
    const { encode } = await import(process.env.STREAMDP_DEVICE ?? "./streamdp.js");
    const record = encode(document.schema, x, y);
    assert.deepEqual(record.columns, columns);
    assert.equal(record.target, target);
    const found = randomizer.truth(x, y);
    if (typeof truth === "boolean") assert.equal(found, truth);
    else nearAll(found, truth, 1e-12, "gradient");
    for (const { n, report } of reports) {
      const made = randomizer.report(x, y, { id: report.id, words: given(job, n) });
      if (report.gradient) nearAll(made.gradient, report.gradient, 1e-12, `draw ${n}`);
      assert.deepEqual({ ...made, gradient: null }, { ...report, gradient: null });
    }
  });

for (const { job, document, reports } of vectors.statistics)
  test(`${job}, version ${document.version}`, async () => {
    const randomizer = await Randomizer.of(document, document.agreement);
    for (const { n, x, report } of reports)
      assert.deepEqual(randomizer.report(x, null, { id: report.id, words: given(job, n) }), report, `draw ${n}`);
  });

test("columns of transforms at the edges of their constants", async () => {
  const { encode } = await import(process.env.STREAMDP_DEVICE ?? "./streamdp.js"), { document } = first("transforms");
  for (const { x, columns } of vectors.records) {
    const what = JSON.stringify(x);
    if (columns === null) assert.throws(() => encode(document.schema, x, 1), SchemaError, what);
    else encode(document.schema, x, 1).columns.forEach((v, j) => assert.ok(Math.abs(v - columns[j]) <= 1e-13, `${what} ${j}: ${v}, expected ${columns[j]}`));
  }
});

test("calibrations", () => {
  for (const { mechanism, budget, d, own, ...expected } of vectors.calibrations) {
    const what = `${mechanism} ${budget} d=${d} own=${own}`;
    const noise = calibrate(mechanism, parseBudget(budget), { bound: 1, sensitivity: 2 }, d, own);
    assert.equal(noise.grid, expected.grid, what);
    near(noise.scale, expected.scale, parseBudget(budget).amount > 100 ? 1e-7 : 1e-11, what);
    near(noise.keep, expected.keep, 1e-11, what);
    if (mechanism === "privunit") near(noise.gamma, expected.gamma, 1e-5, what);
    if (mechanism === "privunit" && d === 1) near(noise.p, expected.p, 1e-12, what);
  }
  for (const { budget, keep } of vectors.keep) {
    const gaussian = budget.startsWith("mu");
    const noise = calibrate(gaussian ? "gaussian" : "laplace", parseBudget(budget), { bound: 1, sensitivity: 2 }, 1);
    near(noise.keep, keep, 1e-12, budget);
    assert.ok(noise.keep < 1);
  }
});

const first = (job) => structuredClone(vectors.cases.find((c) => c.job === job));
const changed = (document, path, value) => {
  const copy = structuredClone(document), way = path.split("."), last = way.pop();
  way.reduce((inner, step) => inner[step], copy)[last] = value;
  return copy;
};

test("a device refuses another agreement", async () => {
  const { document } = first("huber");
  for (const [path, value] of [
    ["job", "other"], ["budget", "eps=40"], ["mechanism", "laplace"], ["loss.bound", 100], ["loss.sensitivity", 1e-3],
    ["loss.parameters.c", 0.5], ["loss.name", "squared"], ["schema.target.scale", 1e-9], ["schema.target.bounds", [-1e9, 1e9]],
    ["schema.features.0.bounds", [0, 1e-9]], ["schema.intercept", false], ["schema.subject", "text"], ["agreement", "0".repeat(64)],
  ])
    await assert.rejects(Randomizer.of(changed(document, path, value), document.agreement), RefusedError, path);
});

test("a device refuses constants that do not follow from the agreement, also at first sight", async () => {
  const { digest } = await import(process.env.STREAMDP_DEVICE ?? "./streamdp.js");
  for (const [job, path, value] of [
    ["huber", "loss.bound", 0.1], ["huber", "loss.sensitivity", 0.1], ["huber", "loss.parameters.c", 50], ["privunit", "mechanism", "none"],
    ["privunit", "budget", "eps=1e9"], ["privunit", "budget", "mu=1"], ["privunit", "loss.name", "cube"], ["squared", "loss.parameters.c", null],
    ["softmax", "schema.target.classes", ["early"]], ["privunit", "schema.features", []], ["privunit", "protocol", 2],
  ]) {
    const lie = changed(first(job).document, path, value);
    lie.agreement = await digest(lie);
    await assert.rejects(Randomizer.of(lie), RefusedError, `${job} ${path}`);
  }
});

test("a device refuses a malformed point", async () => {
  const { document } = first("huber");
  for (const [path, value] of [
    ["theta", [0]], ["theta.0", null], ["theta.0", "1"], ["theta.5", 0], ["scales", [[0, 1]]], ["scales.0", [0, 0]], ["scales.1", [0, -1]],
    ["ask", { column: "origin", below: 0.5 }], ["ask", { column: "nobody", below: 0.5 }], ["ask", { column: "delay", centre: 0, within: 0 }],
    ["ask", "everything"], ["ask", null], ["version", -1], ["expires_at", null],
  ])
    await assert.rejects(Randomizer.of(changed(document, path, value), document.agreement), RefusedError, path);
  await assert.rejects(Randomizer.of(null), RefusedError);
});

test("a device refuses numbers outside of the limits, before a record", async () => {
  for (const [job, path, value] of [
    ["huber", "scales.0", [0, 5e-324]], ["huber", "scales.5", [0, 5e-324]], ["huber", "scales.0", [3, 1]], ["huber", "scales.0", [0, 2 ** 41]],
    ["huber", "theta.0", 1.1e100], ["huber", "ask", { column: "delay", below: 9 }], ["privunit", "scales.4", [-1, 1]], ["privunit", "scales.4", [0, 0.5]],
    ["privunit", "more", 1],
  ])
    await assert.rejects(Randomizer.of(changed(first(job).document, path, value)), RefusedError, `${job} ${path}`);
});

test("a device refuses statistics that contradict themselves", async () => {
  const { digest } = await import(process.env.STREAMDP_DEVICE ?? "./streamdp.js"), [{ document }] = vectors.statistics;
  for (const [path, value] of [
    ["more", 1], ["loss", null], ["thresholds", []], ["thresholds.2", [0]], ["thresholds.0", [0]], ["thresholds.2", [0, 0, 2]], ["version", -1],
    ["schema.features.0.bounds", [3, 3]], ["schema.features.0.name", "hours"], ["schema.features.4.text", 65], ["schema.features.3.categories", ["one"]],
    ["statistics", []], ["statistics.0.by.0.edges", [0.5, 0.25]], ["statistics.0.by.0.edges", [2]], ["statistics.0.by.0.edges", null],
    ["statistics.0.by.0.column", "nobody"], ["statistics.0.by.0.column", "word"], ["statistics.0.levels", 3], ["statistics.1.levels", 40],
    ["statistics.1.levels", null], ["statistics.1.of", "sector"], ["statistics.1.of", null], ["statistics.1.share", 0], ["statistics.2.quantile", 1],
    ["statistics.2.kind", "mean"], ["statistics.7.of", "age"], ["statistics.7.of", null], ["budget", "eps=0"],
  ]) {
    const lie = changed(document, path, value);
    lie.agreement = await digest(lie);
    await assert.rejects(Randomizer.of(lie), RefusedError, path);
    if (!path.startsWith("more")) await assert.rejects(Randomizer.of(changed(document, path, value), document.agreement), RefusedError, path);
  }
});

test("a record about statistics fits or is refused without its values, and answers once", async () => {
  const [{ document, reports: [{ x }] }] = vectors.statistics, randomizer = await Randomizer.of(document);
  for (const [bad, y] of [[{ ...x, age: "13572468x" }, null], [{ ...x, sector: "13572468" }, null], [{ ...x, word: "" }, null], [{}, null], [x, 13572468]])
    assert.throws(() => randomizer.report(bad, y, { id: "r" }), (error) => error instanceof SchemaError && !error.message.includes("13572468"));
  assert.throws(() => randomizer.report(x, null, { id: "r", budget: "eps=0.5" }), RefusedError);
  const { seen, fetch } = service(document, ["lost", 503]), device = new Device("http://x", "survey", { fetch });
  for (let i = 0; i < 2; i++) await assert.rejects(device.report(x, null, { id: "me" }), ServiceError);
  assert.equal((await device.report(x, null, { id: "me" })).outcome, "learned");
  assert.equal(seen.reports.length, 3);
  for (const report of seen.reports) assert.deepEqual(report, seen.reports[0]);
});

test("a clipped Huber loss has a finite gradient under each mechanism", async () => {
  const { digest } = await import(process.env.STREAMDP_DEVICE ?? "./streamdp.js"), { document, x, y } = first("huber");
  for (const [mechanism, budget] of [["privunit", "eps=1"], ["laplace", "eps=1"], ["gaussian", "mu=1"]]) {
    const given = { ...structuredClone(document), mechanism, budget, ask: "gradient" };
    Object.assign(given.loss, { bound: 1, sensitivity: 2 });
    Object.assign(given.loss.parameters, { clip: 1, weighting: null });
    given.agreement = await digest(given);
    const { gradient } = (await Randomizer.of(given)).report(x, y, { id: "r" });
    assert.ok(gradient.every(Number.isFinite), mechanism);
  }
});

test("records that do not fit are refused without their values", async () => {
  const { document, x, y } = first("huber"), randomizer = await Randomizer.of(document);
  for (const [bad, target] of [
    [{ ...x, delay: "13572468x" }, y], [{ ...x, origin: "13572468" }, y], [x, "n13572468"], [x, undefined], [{}, y], [x, NaN], [{ ...x, hour: "0x13572468" }, y], [{ ...x, hour: "" }, y],
  ])
    assert.throws(() => randomizer.report(bad, target, { id: "r" }), (error) => error instanceof SchemaError && !error.message.includes("13572468"));
  const dated = first("transforms"), other = await Randomizer.of(dated.document);
  assert.throws(() => other.report({ ...dated.x, when: "0000-07-05T17:59" }, dated.y, { id: "r" }), SchemaError); // as in Python
});

test("a device draws nothing for a subject that is nobody", async () => {
  const { digest } = await import(process.env.STREAMDP_DEVICE ?? "./streamdp.js"), { document, x, y } = first("privunit");
  for (const [kind, nobody, named] of [
    ["text", ["", "1.0", "1e+20", "z".repeat(1001), "\ud800", 1.5, true, 2 ** 53], ["z".repeat(1000), " ", "e\u0301", 7, 10n ** 299n]],
    ["integer", ["", " ", "1.0", "seven", "7".repeat(301), 1.5], [" 7", "+7", 7, 10n ** 299n]],
  ]) {
    const given = changed(document, "schema.subject", kind);
    given.agreement = await digest(given);
    const randomizer = await Randomizer.of(given);
    for (const subject of nobody) assert.throws(() => randomizer.report(x, y, { id: "r", subject }), SchemaError, `${kind} ${subject}`);
    for (const subject of named) assert.equal(randomizer.report(x, y, { id: "r", subject }).subject, String(subject).normalize("NFC"));
  }
});

test("an old document and a larger budget are refused, a smaller one is served", async () => {
  const { document, x, y } = first("privunit");
  const old = await Randomizer.of({ ...document, expires_at: 1 });
  assert.throws(() => old.report(x, y, { id: "r" }), RefusedError);
  const randomizer = await Randomizer.of(document);
  for (const budget of ["eps=2", "mu=0.1", "eps=0.5,delta=1e-6"]) assert.throws(() => randomizer.report(x, y, { id: "r", budget }), RefusedError);
  const norm = (budget) => Math.hypot(...randomizer.report(x, y, { id: "r", budget }).gradient);
  assert.ok(norm("eps=0.3") > 2 * norm(null));
});

/** A service that answers as told: `script` is a list of what happens to reports. */
const service = (document, script) => {
  const seen = { reports: [], documents: 0 };
  const fetch = async (url, { method = "GET", headers = {}, body } = {}) => {
    if (method === "GET") {
      seen.documents++;
      const same = headers["If-None-Match"] === '"1"';
      return new Response(same ? null : JSON.stringify(document), { status: same ? 304 : 200, headers: { ETag: '"1"' } });
    }
    seen.reports.push(JSON.parse(body).reports[0]);
    const next = script.shift() ?? { version: 1, learned: 1, refused: 0, dead: [] };
    if (next === "lost") throw new TypeError("network");
    return typeof next === "number" ? new Response("{}", { status: next }) : new Response(JSON.stringify(next), { status: 200 });
  };
  return { seen, fetch };
};

test("retries send the same report, and a record answers once", async () => {
  const { document, x, y } = first("privunit"), { seen, fetch } = service(document, ["lost", 503, 429]);
  const items = new Map(), storage = { getItem: (k) => items.get(k) ?? null, setItem: (k, v) => items.set(k, v) };
  let opened = 0; // each device spells the address in another way
  const open = () => new Device(["http://x/", "HTTP://x", "http://x/."][opened++ % 3], "privunit", { fetch, notes: storedNotes(storage) });
  await assert.rejects(open().report(x, y, { id: "me" }), ServiceError);
  for (const again of [open(), open()]) await assert.rejects(again.report({ ...x, delay: -30 }, "False", { id: "me" }), ServiceError);
  const device = open();
  const [one, two] = await Promise.all([device.report(x, y, { id: "me" }), device.report(x, y, { id: "me" })]);
  assert.equal(one.outcome, "learned");
  assert.deepEqual(two, one);
  assert.equal(seen.reports.length, 4);
  for (const report of seen.reports) assert.deepEqual(report, seen.reports[0]);
  assert.equal(seen.documents, 1);
});

test("two calls at once draw one report", async () => {
  const { document, x, y } = first("privunit"), { seen, fetch } = service(document, [503]);
  const device = new Device("http://x", "privunit", { fetch });
  const outcomes = await Promise.allSettled([1, 2, 3].map(() => device.report(x, y, { id: "me" })));
  assert.deepEqual(outcomes.map((o) => o.status), ["rejected", "fulfilled", "fulfilled"]);
  assert.equal(new Set(seen.reports.map((r) => JSON.stringify(r))).size, 1);
});

test("a device keeps to the first agreement, and asks with the tag of its document", async () => {
  const { document, x, y } = first("privunit"), { seen, fetch } = service(document, []);
  const device = new Device("http://x", "privunit", { fetch });
  await device.report(x, y);
  await device.report(x, y);
  assert.deepEqual([seen.documents, seen.reports.length], [2, 2]);
  assert.notDeepEqual(seen.reports[0].gradient, seen.reports[1].gradient);
  const { digest } = await import(process.env.STREAMDP_DEVICE ?? "./streamdp.js"), lie = changed(document, "budget", "eps=8");
  lie.agreement = await digest(lie);
  await assert.rejects(new Device("http://x", "privunit", { fetch: service(lie, []).fetch, agreement: device.agreement }).report(x, y), RefusedError);
  await assert.rejects(new Device("http://x", "other", { fetch }).report(x, y), RefusedError);
});

test("refused and dead reports are told, and errors are typed", async () => {
  const { document, x, y } = first("privunit");
  const outcome = async (answer) => new Device("http://x", "privunit", { fetch: service(document, [answer]).fetch }).report(x, y);
  assert.equal((await outcome({ learned: 0, refused: 1, dead: [] })).outcome, "refused");
  const dead = await outcome({ learned: 0, refused: 0, dead: [{ index: 0, reason: "stale" }] });
  assert.deepEqual([dead.outcome, dead.reason], ["dead", "stale"]);
  await assert.rejects(outcome(403), StreamDPError);
  for (const other of [{}, [], { learned: 1 }]) await assert.rejects(outcome(other), ServiceError);
});
