// The form of a job: its answers become a noisy report in this browser.
// The address may end with #agreement=DIGEST&token=TOKEN: what follows # is not sent to the service.
import { Device, StreamDPError, keepOf, storedNotes } from "/device.js";

const at = (id) => document.getElementById(id);
const job = decodeURIComponent(location.pathname.split("/").at(-1));
const given = new URLSearchParams(location.hash.slice(1));
const notes = storedNotes(localStorage);
const device = new Device(location.origin, job, { notes, agreement: given.get("agreement"), token: given.get("token") });
const ID = `form:${job}`; // one report for this browser
const percent = (p) => `${(100 * p).toFixed(1)} %`;

function part(name, text, className = "") {
  const element = document.createElement(name);
  element.textContent = text;
  element.className = className;
  return element;
}

/** A question: its label, its unit and range, a sentence of help, and the input. */
function field(name, column, { bounds, categories, cyclic, hash }, { label, unit, help } = {}) {
  const outer = part("label", label ?? column.replaceAll("_", " ")), input = document.createElement(categories ? "select" : "input");
  const range = [...(bounds ? [`${bounds[0].toLocaleString("en")} to ${bounds[1].toLocaleString("en")}`] : []), ...(unit ? [unit] : [])].join(" ");
  Object.assign(input, { name, required: true });
  if (categories) input.append(new Option("choose", ""), ...categories.map((c) => new Option(c, c)));
  else if (typeof cyclic === "string") input.type = "datetime-local";
  else if (name === "subject") Object.assign(input, { type: "text", maxLength: 1000 });
  else if (!hash) {
    Object.assign(input, { type: "number", step: "any", inputMode: "decimal" });
    if (bounds) [input.min, input.max] = bounds;
  }
  outer.append(...[range, help].filter(Boolean).map((text) => part("small", text)), input);
  return outer;
}

function form({ schema }, words) {
  const { target = null, features, subject } = schema, inputs = new Map(); // by column, which several features may share
  for (const feature of features) if (!feature.product) inputs.set(feature.column ?? feature.name, feature);
  for (const [column, feature] of inputs) at("fields").append(field(`x:${column}`, column, feature, words.features[column]));
  if (target) at("fields").append(field("y", target.name, { bounds: target.bounds, categories: target.classes }, words.target));
  at("identity").hidden = subject === null;
  if (subject !== null) at("identity").append(field("subject", "Your identifier", {}, words.subject));
}

/** A statistic in words. */
function described({ name, kind, by, of, quantile }) {
  const columns = by.map(({ column }) => column.replaceAll("_", " ")).join(" and "), number = of?.replaceAll("_", " ");
  const words = { heavy_hitters: "frequent texts", quantile: `quantile ${quantile}` }[kind] ?? kind;
  return `${name}: ${words} of ${number ?? columns}${number && columns ? ` by ${columns}` : ""}`;
}

function agreed({ budget, mechanism, loss, statistics, job }, digest) {
  const parts = { Job: job, "Your report spends": budget };
  Object.assign(parts, statistics ? { "Your report is about one of": statistics.map(described).join("; ") } : { Noise: mechanism, Loss: loss.name });
  at("agreed").replaceChildren(...Object.entries(parts).map(([name, value]) => {
    const box = document.createElement("div");
    box.append(part("dt", name), part("dd", value));
    return box;
  }));
  at("digest").textContent = digest;
}

/** The logarithm of the density of a report for a true answer, up to a constant. */
function likelihood({ noise, budget }, truth, report) {
  if (typeof truth === "boolean") return Math.log(report.bit === truth ? noise.keep : 1 - noise.keep);
  const off = report.gradient.map((g, j) => g - truth[j]);
  if (noise.mechanism === "laplace") return -off.reduce((sum, v) => sum + Math.abs(v), 0) / noise.scale;
  if (noise.mechanism === "gaussian") return -off.reduce((sum, v) => sum + v * v, 0) / (2 * noise.scale ** 2);
  const norm = Math.hypot(...truth), along = norm && report.gradient.reduce((sum, g, j) => sum + (g * truth[j]) / norm, 0) / Math.hypot(...report.gradient);
  const share = norm / noise.bound, inCap = (cosine) => (cosine >= noise.gamma ? Math.exp(budget.amount) : 1);
  return Math.log(((1 + share) / 2) * inCap(along) + ((1 - share) / 2) * inCap(-along));
}

/** How often a guess between two equally likely answers is right at most, if it is made with the report. */
function surest({ budget }) {
  if (budget.kind === "mu") return keepOf(budget.kind, budget.amount); // Phi(mu / 2)
  const ratio = Math.exp(budget.amount);
  return Number.isFinite(ratio) ? (ratio + budget.delta) / (1 + ratio) : 1;
}

function conclude(randomizer, x, y, report) {
  const { target } = randomizer.document.schema;
  const guesses = target.classes ?? target.bounds ?? [];
  const logs = guesses.map((guess) => likelihood(randomizer, randomizer.truth(x, guess), report)), top = Math.max(...logs);
  const weights = logs.map((log) => Math.exp(log - top)), total = weights.reduce((a, b) => a + b, 0);
  at("guess").textContent = words.target.label ?? target.name.replaceAll("_", " ");
  at("belief-rows").replaceChildren(...guesses.map((guess, k) => {
    const row = document.createElement("tr");
    const answer = typeof guess === "number" ? guess.toLocaleString("en") : guess;
    row.append(part("td", answer), part("td", percent(1 / guesses.length), "number"), part("td", percent(weights[k] / total), "number"));
    return row;
  }));
  at("beliefs").hidden = !guesses.length;
}

function told({ outcome, reason }) {
  const said = { learned: "Your report was learned. You are done.", refused: "Your report was not learned: you have given as many reports as was agreed.", dead: `Your report was not learned: ${reason}. It was sent, so it is not made again.` };
  at("outcome").textContent = said[outcome] ?? "Your report is made, and was not answered yet. Send it again: it will be the same report.";
  at("send").disabled = Boolean(outcome);
  at("fields").disabled = at("identity").disabled = true; // the report is made, so other answers change nothing
  if (!outcome) at("send").textContent = "Send the same report again";
}

/** What the form holds. Throws SchemaError if it does not fit. */
function answered() {
  const values = new FormData(at("form")), x = {};
  for (const [name, value] of values) if (name.startsWith("x:")) x[name.slice(2)] = value;
  current.truth(x, values.get("y"));
  return { x, y: values.get("y"), subject: values.get("subject") };
}

async function send(event) {
  event.preventDefault();
  at("trouble").textContent = "";
  at("send").disabled = true;
  try {
    answers ??= at("fields").disabled ? {} : answered();
    const { x, y, subject } = answers;
    const note = await device.report(x, y, { id: ID, subject });
    told(note);
    const randomizer = await device.last(note.report.version);
    at("report").textContent = JSON.stringify(note.report, null, 1);
    if (randomizer && x) {
      const truth = randomizer.truth(x, y);
      at("truth").textContent = typeof truth === "boolean" ? `The question: ${JSON.stringify(note.report.ask)}\nThe true answer: ${truth ? "yes" : "no"}` : JSON.stringify(truth, null, 1);
      if (!randomizer.statistics) conclude(randomizer, x, y, note.report);
    }
    at("result").hidden = false;
  } catch (error) {
    at("send").disabled = false;
    at("trouble").textContent = error instanceof StreamDPError ? error.message : "Something else went wrong.";
    const note = await device.note(ID);
    if (note) told(note);
    else answers = null; // nothing was made of them
  }
}

/** What the schema says about the columns, in words. */
async function texts() {
  const token = given.get("token");
  const response = await fetch(`/page/words/${encodeURIComponent(job)}`, { headers: token ? { Authorization: `Bearer ${token}` } : {} });
  if (!response.ok) throw new StreamDPError("the service does not answer");
  return response.json();
}

let current, words, answers = null;
try {
  current = await device.randomizer();
  words = await texts();
  at("title").textContent = `Take part: ${job}`;
  document.title = `Take part: ${job}`;
  agreed(current.document, current.agreement);
  at("bound").textContent = `Somebody who has to guess between two answers of yours, and thinks both equally likely, is right in 50 % of the cases without your report, and with it in at most ${percent(surest(current))}, whatever else they know.`;
  form(current.document, words);
  at("main").hidden = false;
  const note = await device.note(ID);
  if (note) {
    told(note);
    if (note.outcome) at("form").hidden = true;
  }
  at("form").addEventListener("submit", send);
} catch (error) {
  at("trouble").textContent = error instanceof StreamDPError ? error.message : "This page cannot be shown.";
}
