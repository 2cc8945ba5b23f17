// The form of a job: its answers become a noisy report in this browser.
// The address may end with #agreement=DIGEST&token=TOKEN: what follows # is not sent to the service.
import { Device, StreamDPError, encode, storedNotes } from "/device.js";

const at = (id) => document.getElementById(id);
const job = decodeURIComponent(location.pathname.split("/").at(-1));
const given = new URLSearchParams(location.hash.slice(1));
const notes = storedNotes(localStorage);
const device = new Device(location.origin, job, { notes, agreement: given.get("agreement"), token: given.get("token") });
const ID = `form:${job}`; // one report for this browser
const percent = (p) => `${(100 * p).toFixed(1)} %`;

function field(name, { bounds, categories, cyclic, hash }, label) {
  const outer = document.createElement("label"), input = document.createElement(categories ? "select" : "input");
  outer.textContent = label;
  input.name = name;
  input.required = true;
  if (categories) input.append(new Option("choose", ""), ...categories.map((c) => new Option(c, c)));
  else if (typeof cyclic === "string") input.type = "datetime-local";
  else if (!hash) {
    Object.assign(input, { type: "number", step: "any", inputMode: "decimal" });
    if (bounds) [input.min, input.max] = bounds;
  }
  outer.append(input);
  return outer;
}

function form({ schema }) {
  const { target, features, subject } = schema, between = ({ bounds }) => (bounds ? `, ${bounds[0]} to ${bounds[1]}` : "");
  const inputs = new Map(); // by column, which several features may share
  for (const feature of features) if (!feature.product) inputs.set(feature.column ?? feature.name, feature);
  for (const [name, feature] of inputs) at("fields").append(field(`x:${name}`, feature, name + between(feature)));
  at("fields").append(field("y", { bounds: target.bounds, categories: target.classes }, target.name + between(target)));
  if (subject === null) return;
  const person = field("subject", {}, "Your identifier, which is sent, so that your reports are counted together");
  Object.assign(person.lastChild, { type: "text", maxLength: 1000 });
  at("fields").append(person);
}

function agreed({ budget, mechanism, loss, job }, digest) {
  const parts = { Job: job, "Your report spends": budget, Noise: mechanism, Loss: loss.name };
  at("agreed").replaceChildren(...Object.entries(parts).map(([name, value]) => {
    const box = document.createElement("div"), dt = document.createElement("dt"), dd = document.createElement("dd");
    [dt.textContent, dd.textContent] = [name, value];
    box.append(dt, dd);
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

/** The most that a report makes somebody sure who thought two facts about you equally likely. */
function surest({ budget, noise }) {
  if (budget.kind === "mu") return noise.keep; // Phi(mu / 2)
  const ratio = Math.exp(budget.amount);
  return Number.isFinite(ratio) ? (ratio + budget.delta) / (1 + ratio) : 1;
}

function conclude(randomizer, x, y, report) {
  const { target } = randomizer.document.schema;
  const guesses = target.classes ?? target.bounds ?? [];
  const logs = guesses.map((guess) => likelihood(randomizer, randomizer.truth(x, guess), report)), top = Math.max(...logs);
  const weights = logs.map((log) => Math.exp(log - top)), total = weights.reduce((a, b) => a + b, 0);
  at("bound").textContent = `Who thought two facts about you equally likely can be right with at most ${percent(surest(randomizer))} after your report, whatever the facts are and whatever else they know. Without your report it is 50 %.`;
  at("guess").textContent = target.name;
  at("belief-rows").replaceChildren(...guesses.map((guess, k) => {
    const row = document.createElement("tr");
    for (const text of [String(guess), percent(1 / guesses.length), percent(weights[k] / total)]) row.insertCell().textContent = text;
    return row;
  }));
  at("beliefs").hidden = at("assumed").hidden = !guesses.length;
}

function told({ outcome, reason }) {
  const said = { learned: "Your report was learned. You are done.", refused: "Your report was not learned: your cap is reached.", dead: `Your report was not learned: ${reason}. It was sent, so it is not made again.` };
  at("outcome").textContent = said[outcome] ?? "Your report is made, and was not answered yet. Send it again: it will be the same report.";
  at("send").disabled = Boolean(outcome);
  at("fields").disabled = true; // the report is made, so other answers change nothing
  if (!outcome) at("send").textContent = "Send the same report again";
}

/** What the form holds. Throws SchemaError if it does not fit. */
function answered() {
  const values = new FormData(at("form")), x = {};
  for (const [name, value] of values) if (name.startsWith("x:")) x[name.slice(2)] = value;
  encode(current.document.schema, x, values.get("y"));
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
      conclude(randomizer, x, y, note.report);
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

let current, answers = null;
try {
  current = await device.randomizer();
  at("title").textContent = `Take part: ${job}`;
  document.title = `Take part: ${job}`;
  agreed(current.document, current.agreement);
  form(current.document);
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
