// The live page: the models of the service, from its routes and its events.
const at = (id) => document.getElementById(id);
const decimals = { maximumSignificantDigits: 4, signDisplay: "negative" }; // no -0
const format = (x) => (x === null || x === undefined ? "not settled" : x.toLocaleString("en", x && Math.abs(x) < 1e-6 ? { ...decimals, notation: "scientific" } : decimals));
const interval = (low, high) => (low === null && high === null ? "not settled" : `${format(low)} to ${format(high)}`);
/** The marks of an axis of time, in the reader's locale: the clock, and below it the date where it begins. */
function moments(_, times) {
  const step = times[1] - times[0], date = (time) => new Date(1000 * time).toLocaleDateString();
  const clock = { hour: "numeric", minute: "2-digit", second: step < 60 ? "2-digit" : undefined };
  return times.map((time, k) => {
    if (step >= 86400) return date(time);
    return new Date(1000 * time).toLocaleTimeString(undefined, clock) + (k && date(time) === date(times[k - 1]) ? "" : `\n${date(time)}`);
  });
}
const words = (name) => name.replaceAll("_", " ");
const dark = matchMedia("(prefers-color-scheme: dark)");
let reading = null, shown = null, described = 0, timer = null;

function make(name, text, className = "") {
  const element = document.createElement(name);
  element.textContent = text;
  element.className = className;
  return element;
}

const NS = "http://www.w3.org/2000/svg";
/** A value and its interval beside 0, for the eye: the cells have the numbers. */
function drawn(value, low, high) {
  const known = [0, value, low, high].filter((x) => x !== null && x !== undefined), least = Math.min(...known), span = Math.max(...known) - least || 1;
  const place = (x) => 6 + (108 * (x - least)) / span, svg = document.createElementNS(NS, "svg");
  const add = (name, given) => svg.append(Object.entries(given).reduce((shape, [key, v]) => (shape.setAttribute(key, v), shape), document.createElementNS(NS, name)));
  for (const [key, v] of Object.entries({ viewBox: "0 0 120 20", width: 120, height: 20, "aria-hidden": "true", class: "drawn" })) svg.setAttribute(key, v);
  if (low !== null && high !== null) add("rect", { x: place(low), y: 7, width: Math.max(1, place(high) - place(low)), height: 6 });
  add("line", { x1: place(0), x2: place(0), y1: 1, y2: 19 });
  if (value !== null) add("circle", { cx: place(value), cy: 10, r: 4 });
  return svg;
}

function fill(body, rows) {
  body.replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    for (const cell of cells) {
      const [text, small] = Array.isArray(cell) ? cell : [cell, ""], words = typeof text === "string";
      row.append(make("td", words ? text : format(text), words ? "" : "number"));
      if (small) row.lastChild.append(small instanceof Node ? small : make("small", small));
    }
    return row;
  }));
}

async function call(path, signal) {
  const token = sessionStorage.getItem("streamdp:token");
  const response = await fetch(path, { signal, headers: token ? { Authorization: `Bearer ${token}` } : {} });
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw Object.assign(new Error(problem.detail ?? `status ${response.status}`), { status: response.status });
}

/** The range of the times: a minute where there is only one. */
const minute = ({ data: [times] }, low, high) => (times.length === 1 ? [times[0] - 30, times[0] + 30] : [low, high]);

/** A chart of columns over time; the first column is the time. */
class Chart {
  constructor(place, names, colours, dashed = []) {
    this.place = place;
    this.data = [[], ...names.map(() => [])];
    const style = getComputedStyle(document.documentElement), axis = { stroke: getComputedStyle(document.body).color, grid: { stroke: style.getPropertyValue("--line") } };
    const series = names.map((label, j) => ({ label, stroke: style.getPropertyValue(colours[j]), width: 2, points: { fill: style.getPropertyValue(colours[j]) }, dash: dashed[j] ? [6, 4] : undefined, value: (_, v) => (v === null || v === undefined ? "" : format(v)) }));
    place.replaceChildren();
    this.plot = new uPlot({ width: place.clientWidth, height: 220, series: [{ label: "Time", value: (_, time) => (time ? new Date(1000 * time).toLocaleString() : "") }, ...series], axes: [{ ...axis, values: moments, space: 90 }, { ...axis, size: 70, values: (_, marks) => marks.map(format) }], scales: { x: { range: minute } } }, this.data, place);
    this.watcher = new ResizeObserver(() => this.plot.setSize({ width: place.clientWidth, height: 220 }));
    this.watcher.observe(place);
  }
  add(time, values) {
    if (this.data[0].length && time <= this.data[0].at(-1)) time = this.data[0].at(-1) + 0.001;
    [time, ...values].forEach((v, j) => this.data[j].push(v));
    if (this.data[0].length > 5000) for (const column of this.data) column.splice(0, 1000);
    this.plot.setData(this.data);
  }
  end() {
    this.watcher.disconnect();
    this.plot.destroy();
  }
}

function charts(page, rows) {
  for (const chart of [shown?.records, shown?.errors, shown?.reasons]) chart?.end();
  shown = { ...page, records: new Chart(at("records"), ["learned", "refused", "left out", "not usable"], ["--learned", "--refused", "--left-out", "--dead"]), errors: null, rows };
  for (const row of rows) shown.records.add(row.at, [row.learned, row.refused, row.left_out, row.dead]);
  at("reasons-chart").hidden = true;
  reasonsChart(page.about.reasons_over_time);
}

function measures(version, measure) {
  const { constant } = shown.about, names = Object.keys(measure).filter((name) => typeof measure[name] === "number" && name !== "records");
  at("measured").hidden = false;
  at("measured-version").textContent = version;
  fill(at("measures"), names.map((name) => [words(name), measure[name], constant?.[name] ?? null]));
  const first = names[0];
  shown.errors ??= new Chart(at("errors"), [words(first), "best constant"], ["--accent", "--refused"], [false, true]);
  shown.errors.add(Date.now() / 1000, [measure[first], constant?.[first] ?? null]);
}

function validated({ recent, measure, sentence }) {
  at("validated").hidden = false;
  at("verdict").textContent = sentence;
  const rows = { [`${measure} of the model`]: recent.error, [`${measure} of the best constant`]: recent.constant, difference: recent.difference };
  if (recent.rate) Object.assign(rows, { "error rate of the model": recent.rate, "error rate of the best constant": recent.constant_rate });
  if (recent.auc) rows.AUC = recent.auc;
  fill(at("quality"), Object.entries(rows).map(([name, { value, low, high }]) => [name, value, interval(low, high)]));
}

function people(spent) {
  at("people").hidden = !spent;
  const percent = (share) => `${Math.round(100 * share)} %`;
  fill(at("spent"), (spent ?? []).map(({ share, people }, j) => [`${j ? `over ${percent(spent[j - 1].share)}, ` : ""}at most ${percent(share)}`, people]));
}

/** What the schema says about the columns, for people. */
function meanings({ features, target }) {
  const rows = Object.entries(Object.keys(target).length ? { ...features, "what is predicted": target } : features);
  at("columns").hidden = !rows.length;
  fill(at("meanings"), rows.map(([column, { label = "", unit = "", help = "" }]) => [column, [label, unit && `(${unit})`, help].filter(Boolean).join(" ")]));
}

/** The unusable records by reason: the most frequent reasons, at the times that the service noted. */
function reasonsChart(rows) {
  if (!shown || rows.length < 2 || rows.length === shown.reasonRows) return;
  const names = Object.entries(rows.at(-1).reasons).sort((a, b) => b[1] - a[1]).slice(0, 4).map(([name]) => name);
  at("reasons-chart").hidden = false;
  shown.reasons?.end();
  shown.reasonRows = rows.length;
  shown.reasons = new Chart(at("reasons-chart"), names.map(words), ["--dead", "--refused", "--accent", "--learned"]);
  for (const row of rows) shown.reasons.add(row.at, names.map((name) => row.reasons[name] ?? 0));
}

function numbers({ version, learned, refused, left_out, dead }) {
  const { about, guarantee } = shown;
  const spent = guarantee.private ? ["epsilon", "delta", "mu"].filter((k) => k in guarantee).map((k) => `${k}=${guarantee[k]}`).join(", ") || "nothing spent" : "NOT private";
  const found = { Version: version, Learned: learned, "Refused by a cap": refused, "Left out": left_out, "Not usable": dead, "Per record": spent, Waiting: about.waiting };
  if (about.lag !== null) found["Not read yet"] = about.lag;
  at("numbers").replaceChildren(...Object.entries(found).map(([name, value]) => {
    const box = document.createElement("div");
    box.append(make("dt", name), make("dd", typeof value === "number" ? value.toLocaleString("en") : value));
    box.lastChild.dataset.number = name;
    return box;
  }));
}

/** A category, a bin, or one of each of several columns. */
const shownKey = (part) => Array.isArray(part) ? part.map(shownKey).join(typeof part[0] === "number" ? " to " : " ") : part;

function commit(event, job) {
  const { version, learned, refused, left_out, dead, measure, validation, weights, statistics } = event;
  shown.last = event;
  numbers(event);
  at("change").textContent = event.change ? `${event.change[0].toUpperCase()}${event.change.slice(1)}.` : "";
  if (version) {
    const row = { at: Date.now() / 1000, learned, refused, left_out, dead };
    shown.rows.push(row);
    shown.records.add(row.at, [learned, refused, left_out, dead]);
  }
  if (measure) measures(version, measure);
  if (validation) validated(validation);
  at("numbers-title").textContent = !statistics ? "Weights" : weights ? "Statistics and weights" : "Statistics";
  const last = statistics?.at(-1)?.window; // of windows of time, the latest one
  fill(at("weights"), [...(statistics ?? []).filter((s) => s.window === last).map((s) => [
    [[s.window, s.statistic, s.group, s.item].filter((part) => part !== null && part !== undefined).map(shownKey).join(" "), s.doubt], s.value ?? "not known yet", [interval(s.low, s.high), drawn(s.value, s.low, s.high)],
  ]), ...(weights ?? []).map((w) => [
    [w.class ? `${w.name} (${w.class})` : w.name, w.unit], w.value,
    [w.settles_at ? `not settled before about ${format(w.settles_at)} records` : interval(w.low, w.high), drawn(w.value, w.low, w.high)],
  ])]);
  document.title = `${job}: version ${version}`;
}

/** Read server-sent events with fetch, which can send a token. */
async function follow(job, signal) {
  const response = await call(`/v1/models/${encodeURIComponent(job)}/events`, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts)
      for (const line of part.split("\n")) {
        timer ??= setTimeout(() => describe(job, signal).catch(() => {}), described + 2000 - Date.now()); // also for a comment
        if (line.startsWith("data: ")) commit(JSON.parse(line.slice(6)), job);
      }
  }
}

async function describe(job, signal) {
  const path = encodeURIComponent(job);
  const [model, about] = await Promise.all([`v1/models/${path}`, `page/job/${path}`].map(async (p) => (await call(`/${p}`, signal)).json()));
  described = Date.now();
  clearTimeout(timer);
  timer = null;
  const said = model.statement.split("\n\n")[0].split("\n").slice(1).filter((line) => !line.startsWith("Until when"));
  at("promise").replaceChildren(...said.join("\n").replaceAll("\n  - ", " ").split("\n").map((line) => make("p", line)));
  at("statement").textContent = model.statement;
  if (shown) Object.assign(shown, { about, guarantee: model.guarantee });
  if (shown?.last) numbers(shown.last);
  at("trouble").textContent = about.trouble ?? "";
  const reasons = Object.entries(about.reasons).map(([reason, times]) => `${words(reason)} ${times.toLocaleString("en")}`);
  at("reasons").textContent = reasons.length ? `Records that were not usable since the service started, by reason: ${reasons.join(", ")}.` : "";
  people(about.spent);
  meanings(about.words);
  reasonsChart(about.reasons_over_time);
  return { about, guarantee: model.guarantee };
}

async function show(job) {
  reading?.abort();
  const { signal } = (reading = new AbortController());
  at("join").href = `/join/${encodeURIComponent(job)}`;
  at("join").hidden = at("measured").hidden = at("validated").hidden = true;
  for (let wait = 1000; !signal.aborted; wait = Math.min(2 * wait, 15000)) {
    try {
      const page = await describe(job, signal);
      at("main").hidden = false;
      charts(page, page.about.history);
      call(`/v1/models/${encodeURIComponent(job)}/randomizer`, signal).then(() => (at("join").hidden = false), () => {});
      await follow(job, signal);
    } catch (error) {
      if (signal.aborted) return;
      at("trouble").textContent = `The service does not answer: ${error.message}. Trying again.`;
      if (error.status === 401 || error.status === 403) {
        at("access").hidden = false;
        at("trouble").textContent = error.message;
        return;
      }
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

async function start() {
  try {
    const { models } = await (await call(`/v1/models`)).json();
    at("job").replaceChildren(...models.map(({ job }) => new Option(job, job)));
    at("trouble").textContent = models.length ? "" : "The service has no jobs.";
    if (models.length) show(at("job").value);
  } catch (error) {
    at("access").hidden = error.status !== 401 && error.status !== 403;
    at("trouble").textContent = error.message;
  }
}

at("job").addEventListener("change", () => show(at("job").value));
at("access").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("streamdp:token", at("token").value);
  start();
});
dark.addEventListener("change", () => shown && charts({ about: shown.about, guarantee: shown.guarantee }, shown.rows));
start();
