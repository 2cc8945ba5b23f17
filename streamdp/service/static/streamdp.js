// The device's side of streamdp's local reports, protocol 1: see docs/reports.md. No dependencies.
//
// A record and its gradient stay in this module. Only a noisy gradient or a noisy bit leaves it. The device trusts
// nothing that the service announces: every constant that privacy rests on is derived here from the agreement, and the
// point, the scales and the question have limits, within which each record has a finite report. The samplers are those of streamdp/privacy/samplers.pyx, word by word; the proofs
// are in streamdp/privacy/mechanisms and streamdp/privacy/entropy.py.

export const PROTOCOL = 1;
const MOST_BYTES = 8 << 20;
const ARITHMETIC = 1 + 2 ** -40;

// The numbers that a device accepts: streamdp/estimators/accepted.py owns the rule, docs/proofs/devices.md has the proof.
const LEAST = 1e-60, MOST = 1e60, LEAST_SHAPE = 1e-6, FURTHEST = 1e100, FINEST = 2 ** -40, MOST_QUESTION = 8;
const MOST_COLUMNS = 10_000;

/** An error that says what was expected. It never shows a value of a record. */
export class StreamDPError extends Error {}
/** The document is malformed or not the agreed one. */
export class RefusedError extends StreamDPError {}
/** A record does not fit the schema. */
export class SchemaError extends StreamDPError {}
/** The service did not take the report. It is kept, and the same report can be sent again. */
export class ServiceError extends StreamDPError {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const refuse = (condition, message) => {
  if (!condition) throw new RefusedError(`refused: ${message}`);
};

const finite = (v) => typeof v === "number" && Number.isFinite(v);
const pair = (v) => Array.isArray(v) && v.length === 2 && v.every(finite);
const isText = (v) => typeof v === "string" && !/\p{Surrogate}/u.test(v);
const isName = (v) => isText(v) && v.length > 0 && [...v].length <= 1000;
/** The text of a float: such a subject is nobody, as streamdp/data/subjects.py says. */
const FLOAT = /^[+-]?[0-9]+(\.[0-9]*([eE][+-]?[0-9]+)?|[eE]\+[0-9]+)$/;

function hasKeys(value, keys) {
  const plain = value !== null && typeof value === "object" && !Array.isArray(value);
  const found = plain ? Object.keys(value) : [];
  refuse(plain && found.length === keys.length && keys.every((key) => found.includes(key)), `expected an object with ${keys.join(", ")}`);
}

// -- numbers ----------------------------------------------------------------------------------------------------------

/** Round to the nearest whole number, ties to even. */
const rint = (x) => (Math.abs(x) < 2 ** 51 ? x + 6755399441055744 - 6755399441055744 : Math.round(x));

/** floor(log2(x)) of a positive, normal double. */
function exponent(x) {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, x);
  return ((view.getUint16(0) >> 4) & 0x7ff) - 1023;
}

/** e^(t^2/2) Phi(-t) for t >= 0: a continued fraction, or a series of positive terms. */
function scaledTail(t) {
  const x = t / Math.SQRT2;
  if (x < 1) {
    let term = x, sum = x;
    for (let n = 1; n < 60; n++) sum += term *= (2 * x * x) / (2 * n + 1);
    return (Math.exp(x * x) - (2 / Math.sqrt(Math.PI)) * sum) / 2;
  }
  let f = x;
  for (let k = 300; k > 0; k--) f = x + k / 2 / f;
  return 1 / (2 * f * Math.sqrt(Math.PI));
}

const phi = (z) => (z < 0 ? Math.exp((-z * z) / 2) * scaledTail(-z) : 1 - Math.exp((-z * z) / 2) * scaledTail(z));

/** delta_mu(eps) of mu-GDP (Dong, Roth, Su 2022, Corollary 1). */
function gaussianDelta(mu, eps) {
  const s = eps / mu - mu / 2;
  return phi(-s) - Math.exp((-s * s) / 2) * scaledTail(eps / mu + mu / 2);
}

/** The largest mu whose mu-GDP implies (eps, delta)-DP, from below. */
function muOf(eps, delta) {
  let low = 1, high = 1;
  while (gaussianDelta(low, eps) > delta) low /= 2;
  while (gaussianDelta(high, eps) <= delta) high *= 2;
  for (let i = 0; i < 200 && high - low > 1e-15 * high; i++) {
    const middle = (low + high) / 2;
    if (gaussianDelta(middle, eps) > delta) high = middle;
    else low = middle;
  }
  return low;
}

/** The share of the sphere of R^d in {<v, u> >= gamma}, gamma >= 0: half an incomplete beta function. */
function capShare(gamma, d) {
  const a = (d - 1) / 2, x = 1 - gamma * gamma, log = logBeta(d);
  const series = (p, q, z) => {
    let term = 1 / p, sum = term;
    for (let n = 0; n < 1e6 && term > sum * 1e-17; n++) sum += term *= ((p + q + n) / (p + 1 + n)) * z;
    return sum * Math.exp(p * Math.log(z) + q * Math.log1p(-z) - log);
  };
  return x < (a + 1) / (a + 2.5) ? series(a, 0.5, x) / 2 : (1 - series(0.5, a, gamma * gamma)) / 2;
}

/** ln B(1/2, (d-1)/2). */
function logBeta(d) {
  let log = Math.log(d % 2 ? 2 : Math.PI);
  for (let a = d % 2 ? 1 : 0.5; a < (d - 1) / 2 - 0.25; a++) log += Math.log(a / (a + 0.5));
  return log;
}

/** PrivUnit's cap: [1/m, gamma, p]. Any gamma is private with its p; the best one makes the least noise. */
export function cap(epsilon, d, gamma = undefined) {
  const eps = Math.min(epsilon, 300) * (1 - 1e-12);
  if (d === 1) {
    const p = 1 / (1 + Math.exp(-eps));
    return [1 / (2 * p - 1), 0, p];
  }
  const at = (g) => {
    const q = capShare(g, d), denominator = q + (1 - q) * Math.exp(-eps);
    const log = ((d - 1) / 2) * Math.log1p(-g * g) - Math.log(d - 1) - logBeta(d);
    return [(Math.exp(log) * -Math.expm1(-eps)) / denominator, q / denominator];
  };
  if (gamma === undefined) {
    const ratio = (Math.sqrt(5) - 1) / 2;
    let low = 0, high = 1 - 1e-9, a = high - ratio * (high - low), b = low + ratio * (high - low);
    let fa = at(a)[0], fb = at(b)[0];
    while (high - low > 1e-9) {
      if (fa > fb) {
        [high, b, fb] = [b, a, fa];
        fa = at((a = high - ratio * (high - low)))[0];
      } else {
        [low, a, fa] = [a, b, fb];
        fb = at((b = low + ratio * (high - low)))[0];
      }
    }
    gamma = (low + high) / 2;
  }
  const [m, p] = at(gamma);
  return [1 / m, gamma, p];
}

// -- budgets, losses and calibration ------------------------------------------------------------------------------------

/** Read `eps=1`, `eps=1,delta=1e-6` or `mu=0.5`. */
export function parseBudget(text) {
  const found = {};
  for (const item of String(text).split(",")) {
    const match = /^\s*(eps|delta|mu)\s*=\s*([0-9.eE+-]+)\s*$/.exec(item);
    refuse(match && !(match[1] in found) && Number.isFinite(Number(match[2])), "expected a budget: eps=E, eps=E,delta=D or mu=M");
    found[match[1]] = Number(match[2]);
  }
  const names = Object.keys(found).sort().join();
  refuse(["eps", "delta,eps", "mu"].includes(names), "expected a budget: eps=E, eps=E,delta=D or mu=M");
  const amount = found.eps ?? found.mu, delta = found.delta ?? 0;
  refuse(amount >= 2 ** -20 && amount <= 2 ** 20 && delta >= 0 && delta < 1, "expected a budget that can be served");
  return { kind: names === "mu" ? "mu" : delta ? "approx" : "eps", amount, delta };
}

/** The losses that estimate a scale, the last number of theta. */
const SCALED = ["huber", "squared"];

/** The bound and the sensitivity of a loss's gradient: see streamdp/optim/losses. */
export function constants(name, given) {
  const { clip, weighting } = given;
  let bound = Math.SQRT2, sensitivity, kappa = 0;
  if (SCALED.includes(name)) {
    const c = given.c, density = Math.exp((-c * c) / 2) / Math.sqrt(2 * Math.PI);
    kappa = c ** 2 / (weighting === "norm" ? 9 : 400);
    if (name === "huber") kappa = 1 - 2 * phi(-c) - 2 * c * density + 2 * c * c * phi(-c);
    bound = Math.sqrt(2 * c ** 2 + (kappa - c ** 2) ** 2 / 4);
    sensitivity = Math.sqrt(8 * c ** 2 + (weighting === "norm" ? (c ** 2 - kappa) ** 2 / 4 : 0));
  } else if (name === "softmax") bound = 2;
  else if (name === "quantile") bound = Math.SQRT2 * Math.max(given.tau, 1 - given.tau);
  return clip === null ? { bound, sensitivity: sensitivity ?? 2 * bound, kappa } : { bound: clip, sensitivity: 2 * clip, kappa };
}

function checkLoss(given) {
  hasKeys(given, ["name", "parameters", "bound", "sensitivity"]);
  const { name, parameters, bound, sensitivity } = given;
  const own = new Map(Object.entries({
    squared: ["c", "sigma_min"], huber: ["c", "sigma_min"], logistic: [], softmax: [], quantile: ["tau"], hinge: [],
  })).get(name);
  refuse(own && finite(bound) && finite(sensitivity), "expected a loss that this module knows");
  hasKeys(parameters, ["clip", "weighting", ...own]);
  const { clip, weighting } = parameters;
  refuse(clip === null || (typeof clip === "number" && weighting === null), "expected a positive clip, without a weighting");
  refuse([null, "mallows", "norm"].includes(weighting), "expected a weighting that this module knows");
  const within = (x, low, high) => typeof x === "number" && x >= low && x <= high;
  refuse(Object.values(parameters).every((x) => typeof x !== "number" || within(x, LEAST, MOST)), "expected parameters of the loss from 1e-60 to 1e60");
  const number = (x) => typeof x === "number";
  refuse(!SCALED.includes(name) || (within(parameters.c, LEAST_SHAPE, 2) && number(parameters.sigma_min)), "expected c and sigma_min");
  refuse(name !== "quantile" || (number(parameters.tau) && parameters.tau < 1), "expected a tau in (0, 1)");
  const derived = constants(name, parameters);
  const near = (a, b) => Math.abs(a - b) <= 1e-12 * b;
  refuse(near(bound, derived.bound) && near(sensitivity, derived.sensitivity), `the loss ${name} has another bound than announced`);
  refuse(within(derived.bound, LEAST, MOST), "expected a bound from 1e-60 to 1e60");
  return { name, ...parameters, ...derived };
}

/** An amount cut to 10 bits after the leading one, as `round_down` of the library does. */
const roundDown = (amount) => {
  const unit = 2 ** (exponent(amount) - 10);
  return Math.floor(amount / unit) * unit;
};

/** The probability of a true answer: `truth` of streamdp/privacy/mechanisms/response.py. */
export function keepOf(kind, amount) {
  const told = kind === "mu" ? phi(amount / 2) * (1 - 2 ** -40) : (1 / (1 + Math.exp(-amount))) * (1 - 2 ** -50);
  return Math.max(0.5, Math.min(told, 1 - 2 ** -50));
}

/** What the samplers need: the noise of a mechanism for a budget, as `Mechanism.rows` derives it. */
export function calibrate(mechanism, budget, loss, d, own = false) {
  const { kind } = budget;
  refuse(mechanism === "gaussian" ? kind !== "eps" : ["laplace", "privunit"].includes(mechanism) && kind === "eps", `${mechanism} does not serve this budget`);
  const rounded = own && (mechanism === "privunit" || kind === "approx");
  const amount = rounded ? roundDown(budget.amount) : budget.amount;
  const keep = keepOf(kind, amount);
  if (mechanism === "privunit") {
    const [inverse, gamma, p] = cap(amount, d), bound = loss.bound * ARITHMETIC;
    const radial = d > 2 ? (1 - gamma ** 2) ** ((d - 2) / 2) : 1;
    return { mechanism, keep, scale: bound * inverse, grid: 2 ** -16, p, gamma, radial, angle: Math.acos(gamma), bound };
  }
  const mu = kind === "approx" ? muOf(amount, budget.delta) : amount;
  const scaleOf = (s) => (mechanism === "laplace" ? (Math.sqrt(d) * s) / amount : s / mu);
  const grid = 2 ** (exponent(scaleOf(loss.sensitivity)) - 20);
  return { mechanism, keep, grid, scale: scaleOf(loss.sensitivity * ARITHMETIC + Math.sqrt(d) * grid) };
}

// -- random words and samplers ------------------------------------------------------------------------------------------

/** Random words of 64 bits from WebCrypto, as two halves. A used word is overwritten. */
export class Words {
  #buffer = new Uint32Array(512);
  #at = 512;

  /** @returns {[number, number]} the low and the high half */
  next() {
    if (this.#at >= this.#buffer.length) {
      globalThis.crypto.getRandomValues(this.#buffer);
      this.#at = 0;
    }
    const halves = [this.#buffer[this.#at], this.#buffer[this.#at + 1]];
    this.#buffer[this.#at++] = this.#buffer[this.#at++] = 0;
    return halves;
  }
}

const unit = ([low, high]) => (high * 2097152 + (low >>> 11)) * 2 ** -53;

function ziggurat(edge, area, density, inverse) {
  const span = 2 ** 52, base = area / density(edge);
  const accept = new Float64Array(256), width = new Float64Array(256), height = new Float64Array(256);
  accept[0] = Math.floor((edge / base) * span);
  [width[0], width[255], height[0], height[255]] = [base / span, edge / span, 1, density(edge)];
  for (let layer = 254, right = edge; layer > 0; layer--) {
    const x = inverse(area / right + density(right));
    accept[layer + 1] = Math.floor((x / right) * span);
    [height[layer], width[layer], right] = [density(x), x / span, x];
  }
  return { edge, accept, width, height };
}

const NORMAL = ziggurat(3.6541528853610088, 0.004928673233974658, (x) => Math.exp((-x * x) / 2), (f) => Math.sqrt(-2 * Math.log(f)));
const LAPLACE = ziggurat(7.69711747013105, 0.003949659822581557, (x) => Math.exp(-x), (f) => -Math.log(f));

/** A variate of a ziggurat. The tail of Laplace noise is the edge and a fresh exponential; that of the normal, Marsaglia's. */
function variate({ edge, accept, width, height }, words, density, normal) {
  for (let start = 0; ; ) {
    const [low, high] = words.next();
    const layer = low & 0xff, sign = low & 0x100 ? -1 : 1, abscissa = (high & 0x1fffffff) * 8388608 + (low >>> 9);
    let x = abscissa * width[layer];
    if (abscissa < accept[layer]) return sign * (start + x);
    if (layer === 0 && normal) {
      do x = -Math.log1p(-unit(words.next())) / edge;
      while (!(-2 * Math.log1p(-unit(words.next())) > x * x));
      return sign * (edge + x);
    }
    if (layer === 0) start += edge;
    else if (height[layer] + unit(words.next()) * (height[layer - 1] - height[layer]) < density(x)) return sign * (start + x);
  }
}

const normalVariate = (words) => variate(NORMAL, words, (x) => Math.exp(-0.5 * x * x), true);
const laplaceVariate = (words) => variate(LAPLACE, words, (x) => Math.exp(-x), false);

function cosine(d, inCap, { gamma, radial, angle }, words) {
  if (d === 1) return inCap ? 1 : -1;
  if (d === 2) {
    const v = unit(words.next());
    return Math.cos(inCap ? v * angle : angle + v * (Math.PI - angle));
  }
  for (;;) {
    const radius = Math.sqrt(1 - ((inCap ? radial : 1) * unit(words.next())) ** (2 / (d - 2)));
    const found = radius * Math.cos((inCap ? angle : Math.PI) * unit(words.next()));
    if (found >= gamma === inCap) return found;
  }
}

function privunit(noise, gradient, words) {
  const d = gradient.length, top = gradient.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
  const squared = (v) => v.reduce((sum, x) => sum + x * x, 0);
  const plain = squared(gradient), scaled = plain > 1e-280 && plain < 1e300;
  const g = scaled || top === 0 ? [...gradient] : gradient.map((x) => x / top);
  let norm = Math.sqrt(squared(g));
  const share = ((scaled || top === 0 ? 1 : top) * norm) / noise.bound;
  let sign = 2 * unit(words.next()) < 1 + share ? 1 : -1;
  const inCap = unit(words.next()) < noise.p;
  const along = cosine(d, inCap, noise, words);
  if (norm === 0) g[0] = norm = 1;
  const side = g.map(() => normalVariate(words));
  sign /= norm;
  const u = g.map((x) => x * sign);
  const overlap = side.reduce((sum, x, j) => sum + x * u[j], 0);
  const across = side.map((x, j) => x - overlap * u[j]);
  const square = squared(across);
  const stretch = square > 0 && d > 1 ? Math.sqrt(Math.max(0, 1 - along * along) / square) : 0;
  return u.map((x, j) => rint((along * x + stretch * across[j]) / noise.grid) * (noise.scale * noise.grid));
}

/** A noisy gradient: `noise` is what `calibrate` returns. */
export function randomize(noise, gradient, words = new Words()) {
  if (noise.mechanism === "privunit") return privunit(noise, gradient, words);
  const draw = noise.mechanism === "gaussian" ? normalVariate : laplaceVariate, scale = noise.scale / noise.grid;
  return gradient.map((g) => (rint(g / noise.grid) + rint(draw(words) * scale)) * noise.grid);
}

/** A noisy bit: the true one with probability `keep`. */
export const respond = (truth, keep, words = new Words()) => truth === unit(words.next()) < keep;

// -- reports about statistics -------------------------------------------------------------------------------------------

const CAREFUL = 1 - 2 ** -30, MOST_CELLS = 2 ** 16;

/** The noise of a report of one of several cells: `Oracle` of streamdp/learners/local_counts.py. */
export function oracle(cells, { kind, amount }, unary = undefined) {
  const p = keepOf(kind, amount), epsilon = Math.log(p / (1 - p));
  if (unary ?? cells > 3 * Math.exp(Math.min(epsilon, 50)) + 2) {
    const other = Math.ceil((2 ** 16 / (Math.exp(epsilon) + 1)) * (2 - CAREFUL));
    refuse(other < 2 ** 15, "expected a larger budget or fewer cells");
    return { cells, other, words: Math.ceil(cells / 4) };
  }
  return { cells, keep: (Math.expm1(epsilon) / (Math.expm1(epsilon) + cells)) * CAREFUL, words: 2 };
}

/** The cells that a report of one cell counts for. */
function noisyCells({ cells, other, keep }, cell, words) {
  if (other === undefined) {
    const kept = BigInt(Math.floor(Math.min(keep * 2 ** 64, 2 ** 64 - 4096)));
    return [((BigInt(words[0][1]) << 32n) | BigInt(words[0][0])) < kept ? cell : Math.floor(unit(words[1]) * cells)];
  }
  const bits = (j) => (words[j >> 2][(j >> 1) & 1] >>> (16 * (j & 1))) & 0xffff;
  return Array.from({ length: cells }, (_, j) => j).filter((j) => bits(j) < (j === cell ? 2 ** 15 : other));
}

const WHOLE = 0.2, MOST_BITS = 5, NO_BYTE = 255; // see streamdp/learners/hitters.py

/** The noise of a report of a text: of the most bits with the least variance. */
function textOracle(budget) {
  const several = Array.from({ length: MOST_BITS }, (_, k) => oracle(2 ** (k + 1), budget, false));
  const worth = ({ cells, keep }) => (cells - 1) * keep ** 2;
  return several.reduce((best, each) => (worth(each) > worth(best) ? each : best));
}

/** The length, the hash and the noisy value that are reported of the bytes of a text. */
function noisyText(noise, bytes, words) {
  const mixed = (hash, factor) => BigInt.asUintN(64, hash * factor), odd = (n) => { let sum = 0; for (; n; n >>= 1) sum ^= n & 1; return sum; };
  const digits = [...bytes.flatMap((byte) => [byte >> 4, byte & 15]), 0], last = digits.length - 1;
  const at = Math.min(Math.floor(unit(words[0]) * (last / (1 - WHOLE))), last);
  let hash = 0xcbf29ce484222325n;
  for (const digit of digits.slice(0, at + 1)) hash = mixed(hash ^ BigInt(digit), 0x100000001b3n);
  for (const [shift, factor] of [[30n, 0xbf58476d1ce4e5b9n], [27n, 0x94d049bb133111ebn]]) hash = mixed(hash ^ (hash >> shift), factor);
  const cell = Number((hash ^ (hash >> 31n)) >> 50n);
  const rows = [words[1], words[2]].flatMap(([low, high]) => [low, low >>> 16, high, high >>> 16].map((n) => (n & 0xffff) >> 2)).slice(0, Math.log2(noise.cells));
  const value = rows.reduce((sum, row, k) => sum | (odd(row & cell) << k), 0);
  return [at, ...rows, ...noisyCells(noise, value, words.slice(3))];
}

/** The true cell of a record whose `values` are coded; `word` rounds a number. */
function cellOf({ by, of, levels, quantile, thresholds, kinds }, values, word) {
  const cell = by.reduce((at, { column, edges }, k) => at * kinds[k] + (edges === null ? values[column] : edges.filter((edge) => !(values[column] < edge)).length), 0);
  if (quantile !== null) return 2 * cell + (values[of] > thresholds[cell] ? 1 : 0);
  if (levels === null) return cell;
  const at = ((values[of] + 1) / 2) * (levels - 1), low = Math.min(Math.floor(at), levels - 2);
  return cell * levels + low + (unit(word) < at - low ? 1 : 0);
}

// -- records ------------------------------------------------------------------------------------------------------------

const text = (value, name) => {
  if (!["string", "number", "boolean"].includes(typeof value)) throw new SchemaError(`${name}: expected a number or a text`);
  return String(value);
};

function number(value, name) {
  const found = text(value, name).trim();
  if (!/^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/.test(found) || !Number.isFinite(Number(found)))
    throw new SchemaError(`${name}: expected a finite number`);
  return Number(found);
}

const clip = (x, low, high) => Math.min(Math.max(x, low), high);

function classIndex(classes, label, name) {
  const no = ["false", "False", "FALSE", "0"], yes = ["true", "True", "TRUE", "1"];
  let index = classes.indexOf(label);
  if (classes.length === 2)
    for (const [a, b] of [[no, yes], [yes, no]])
      if (a.includes(classes[0]) && b.includes(classes[1])) index = a.includes(label) ? 0 : b.includes(label) ? 1 : -1;
  if (index < 0) throw new SchemaError(`${name}: expected one of the ${classes.length} declared classes`);
  return index;
}

const CURVES = {
  linear: (v) => v, log: (v) => Math.log(v), asinh: (v, scale) => Math.asinh(v / scale), power: (v, exponent) => v ** exponent,
};
const PERIODS = { month: 12, day: 31, weekday: 7, hour: 24, minute: 60 };

/** A number in a name, as Python writes it. */
const shown = (v) => {
  const size = Math.abs(v), exponential = size !== 0 && (size < 1e-4 || size >= 1e16);
  return exponential ? v.toExponential().replace(/e([+-])(\d)$/, "e$10$2") : String(v);
};

/** The encoded columns of a feature that is no product: see streamdp/data/transforms.py. */
function piecesOf({ name, bounds = null, categories = null, transform = null, knots = null, bins = null, cyclic = null, hash = null, per = null }) {
  const first = per ? 0 : 1;
  if (categories) return categories.slice(first).map((c, k) => ({ name: `${name}=${c}`, of: (code) => (code === k + first ? 1 : 0) }));
  if (hash) return Array.from({ length: hash - 1 }, (_, k) => ({ name: `${name}#${k + 1}`, of: (code) => (code === k + 1 ? 1 : 0) }));
  if (cyclic) {
    const period = PERIODS[cyclic] ?? cyclic;
    const turned = (v) => { const r = v % period; return (r < 0 ? r + period : r) * ((2 * Math.PI) / period); };
    return ["sin", "cos"].map((kind) => ({ name: `${kind}(${name})`, numeric: true, of: (v) => Math[kind](turned(v)) }));
  }
  if (bins) return bins.map((low, k) => ({ name: `${name}=[${shown(low)},${k + 1 < bins.length ? shown(bins[k + 1]) : "inf"})`, of: (v) => (v >= low && !(v >= bins[k + 1]) ? 1 : 0) }));
  if (knots)
    return [bounds[0], ...knots].map((at, k) => ({ ...piecesOf({ name, bounds: [at, bounds[1]] })[0], name: k ? `${name} above ${shown(at)}` : name }));
  const [kind, given] = Object.entries(transform ?? { linear: null })[0], constant = given ?? 1;
  const curve = (v) => CURVES[kind](clip(v, bounds[0], bounds[1]), constant), ends = bounds.map(curve);
  const low = Math.min(...ends), high = Math.max(...ends);
  const label = { linear: name, log: `log(${name})`, asinh: `asinh(${name}/${shown(constant)})`, power: `${name}^${shown(constant)}` }[kind];
  return [{ name: label, numeric: true, ends: [low, high], of: (v) => clip(((curve(v) - low) / (high - low)) * 2 - 1, -1, 1) }];
}

/** All encoded columns: those of products come last, and have `factors`, the indices of other columns. */
function columnsOf({ features }) {
  const columns = [], places = new Map();
  for (const feature of features.filter(({ product }) => !product)) {
    const pieces = piecesOf(feature);
    places.set(feature.name, pieces.map((_, k) => columns.length + k));
    columns.push(...pieces.map((piece) => ({ ...piece, feature })));
  }
  const own = features.flatMap(({ name, per }) => (per ?? []).map((other) => ({ product: [name, other], own: true })));
  for (const { product, own: ofGroup } of [...features.filter((feature) => feature.product), ...own]) {
    let found = [[]];
    for (const factor of product) found = found.flatMap((at) => places.get(factor).map((k) => [...at, k]));
    for (const factors of found)
      columns.push({ name: factors.map((k) => columns[k].name).join(" x "), numeric: !ofGroup && factors.some((k) => columns[k].numeric), factors });
  }
  return columns;
}

/** A part of a date or time in ISO 8601, as it is written. */
function partOf(value, part, name) {
  const zone = "(?:Z|[+-]\\d{2}(?::?\\d{2})?)?", clock = `\\d{2}:\\d{2}(?::\\d{2}(?:[.,]\\d+)?)?${zone}`;
  const written = text(value, name).trim(), match = new RegExp(`^(\\d{4})-(\\d{2})-(\\d{2})(?:[T ]${clock})?$`).exec(written);
  const time = /(?:^|[T ])(\d{2}):(\d{2})/.exec(written), bad = new SchemaError(`${name}: expected a date or time in ISO 8601`);
  if (part === "hour" || part === "minute") {
    if (!time || !(match || new RegExp(`^${clock}$`).test(written)) || Number(time[1]) > 23 || Number(time[2]) > 59) throw bad;
    return Number(time[part === "hour" ? 1 : 2]);
  }
  if (!match) throw bad;
  const [year, month, day] = match.slice(1).map(Number), date = new Date(0);
  date.setUTCFullYear(year, month - 1, day);
  if (year < 1 || date.getUTCMonth() !== month - 1 || date.getUTCDate() !== day) throw bad;
  return { month, day, weekday: date.getUTCDay() || 7 }[part];
}

/** The bucket of a text: FNV-1a of 32 bits. */
function bucket(written, count) {
  let hash = 2166136261;
  for (const byte of new TextEncoder().encode(written)) hash = Math.imul(hash ^ byte, 16777619);
  return (hash >>> 0) % count;
}

/** The value of a feature in a record: a number, or the code of a category or bucket. */
function valueOf({ name, column, categories, cyclic, hash }, x) {
  const raw = x[column ?? name];
  if (cyclic in PERIODS) return partOf(raw, cyclic, name);
  if (!categories && !hash) return number(raw, name);
  const written = text(raw, name);
  if (hash && (written === "" || !isText(written))) throw new SchemaError(`${name}: expected a text`);
  const code = hash ? bucket(written, hash) : categories.indexOf(written);
  if (code < 0) throw new SchemaError(`${name}: expected one of the ${categories.length} declared categories`);
  return code;
}

/** A record as its columns and its target, as `Schema.encode_one` makes them. */
export function encode(schema, x, y) {
  const columns = [], values = new Map();
  for (const feature of schema.features) if (!feature.product) values.set(feature, valueOf(feature, x));
  for (const { of, feature, factors } of columnsOf(schema))
    columns.push(factors ? factors.reduce((product, k) => product * columns[k], 1) : of(values.get(feature)));
  const { name, classes, bounds, scale } = schema.target;
  if (classes) return { columns, target: classIndex(classes, text(y, name), name) };
  const value = number(y, name);
  return { columns, target: clip((bounds ? clip(value, bounds[0], bounds[1]) : value) / scale, -FURTHEST, FURTHEST) };
}

/** The first bytes of a text, whole characters only, as the statistics read them. */
function bytesOf({ name, text: length }, x) {
  const written = text(x[name], name), bytes = [...new TextEncoder().encode(written)];
  if (written === "" || !isText(written)) throw new SchemaError(`${name}: expected a text`);
  let n = Math.min(bytes.length, length);
  while (n > 0 && n < bytes.length && bytes[n] >> 6 === 2) n--;
  return Array.from({ length }, (_, k) => (k < n ? bytes[k] : NO_BYTE));
}

/** A record as statistics read it: the index of a category, a number in [-1, 1], or bytes, by feature. */
export const coded = ({ features }, x) =>
  Object.fromEntries(features.map((feature) => {
    if (feature.text) return [feature.name, bytesOf(feature, x)];
    const value = valueOf(feature, x);
    return [feature.name, feature.categories ? value : piecesOf(feature)[0].of(value)];
  }));

/** The bounded gradient of one record: see streamdp/optim/loops.pyx. `x` has its constant 1, if there is one. */
export function gradient(loss, theta, x, y) {
  const q = x.length, limit = loss.clip ?? Infinity, dot = (k) => x.reduce((sum, v, j) => sum + theta[k * q + j] * v, 0);
  const square = x.reduce((sum, v) => sum + v * v, 0);
  const heavy = square <= 2 || loss.clip !== null;
  const weight = heavy ? 1 : loss.weighting === "norm" ? Math.sqrt(2 / square) : 2 / square;
  if (loss.name === "softmax") {
    const u = Array.from({ length: theta.length / q }, (_, k) => dot(k));
    const top = u.reduce((a, b) => Math.max(a, b)), e = u.map((v) => Math.exp(v - top)), total = e.reduce((a, b) => a + b, 0);
    const slopes = e.map((v, k) => (v / total - (k === y ? 1 : 0)) * weight);
    const size = slopes.reduce((sum, a) => sum + a * a * square, 0);
    const shrink = !(square > 1e-280 && square < 1e300 && size < 1e300) ? 0 : size > limit * limit ? limit / Math.sqrt(size) : 1;
    return slopes.flatMap((a) => x.map((v) => (shrink ? a * v * shrink : 0)));
  }
  const u = dot(0), sign = 2 * y - 1;
  let a = 0, scale = 0;
  if (loss.name === "logistic") a = 1 / (1 + Math.exp(-clip(u, -700, 700))) - y;
  else if (SCALED.includes(loss.name)) {
    a = -clip((y - u) / theta[theta.length - 1], -loss.c, loss.c);
    scale = 0.5 * (loss.kappa - a * a) * weight;
  } else if (loss.name === "quantile") a = (y < u ? 1 : 0) - loss.tau;
  else a = sign * u < 1 ? -sign : 0;
  a = square > 1e-280 && Math.abs(a) > 1e-140 ? a * weight : 0;
  const size = a * a * square + scale * scale;
  const shrink = !(square < 1e300 && size < 1e300) ? 0 : size > limit * limit ? limit / Math.sqrt(size) : 1;
  const g = x.map((v) => (shrink ? a * shrink * v : 0));
  return SCALED.includes(loss.name) ? [...g, shrink * scale] : g;
}

// -- the document -------------------------------------------------------------------------------------------------------

/** Canonical JSON (RFC 8785) of plain JSON values. */
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join()}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`).join()}}`;
}

const BUDGET = /^(eps=N|eps=N,delta=N|mu=N)$/.source.replaceAll("N", "[0-9]+(\\.[0-9]+)?(e[+-]?[0-9]+)?");
const AGREED = ["protocol", "job", "schema", "loss", "mechanism", "budget"];
const AGREED_STATISTICS = ["protocol", "job", "schema", "statistics", "budget"];
const isOfStatistics = (document) => Object.hasOwn(document, "statistics");

/** The digest of a document's agreement: what a person agrees to once, in hexadecimal. */
export async function digest(document) {
  refuse(globalThis.crypto?.subtle, "WebCrypto is missing: a page needs HTTPS, or localhost");
  const agreed = Object.fromEntries((isOfStatistics(document) ? AGREED_STATISTICS : AGREED).map((name) => [name, document[name]]));
  const bytes = await globalThis.crypto.subtle.digest("SHA-256", new TextEncoder().encode(canonical(agreed)));
  return Array.from(new Uint8Array(bytes), (b) => b.toString(16).padStart(2, "0")).join("");
}

/** The middle of bounds and half their distance, after a division by a scale. */
function middleAndHalf(bounds, scale = 1) {
  const [low, high] = bounds.map((b) => b / scale), middle = (low + high) / 2, half = (high - low) / 2;
  refuse(Math.abs(middle) <= MOST && half >= LEAST && half <= MOST, "expected bounds within 1e60, at a distance of at least 2e-60");
  return [middle, half];
}

const isTexts = (v) => Array.isArray(v) && v.length > 1 && v.length <= MOST_COLUMNS && v.every((c) => isText(c) && c) && new Set(v).size === v.length;

const TRANSFORMED = ["name", "column", "bounds", "transform", "knots", "bins", "cyclic", "hash", "product"];
const areIncreasing = (v) => Array.isArray(v) && v.length > 0 && v.length <= MOST_COLUMNS && v.every((x, k) => finite(x) && (k === 0 || v[k - 1] < x));

/** Check a feature with a declared transform; `factors` has the numbers of columns of features by name. */
function checkTransformed(feature, factors) {
  const { bounds, transform, knots, bins, cyclic, hash, product, column } = feature;
  const kinds = [bounds, bins, cyclic, hash, product].filter((v) => v !== null);
  refuse(kinds.length === 1 && (product === null ? isName(column) : column === null), "expected one kind of a feature");
  refuse(bounds !== null || (transform === null && knots === null), "expected bounds with transform and knots");
  refuse(bins === null || areIncreasing(bins), "expected increasing bins");
  const turns = typeof cyclic === "string" ? Object.hasOwn(PERIODS, cyclic) : finite(cyclic) && cyclic >= LEAST && cyclic <= MOST;
  refuse(cyclic === null || turns, "expected a period");
  refuse(hash === null || (Number.isSafeInteger(hash) && hash > 1 && hash <= MOST_COLUMNS), "expected a number of buckets");
  if (product !== null) {
    const listed = Array.isArray(product) && product.length > 1 && new Set(product).size === product.length;
    refuse(listed && product.every((name) => factors.has(name)), "expected a product of other features");
  }
  if (bounds === null) return;
  refuse(pair(bounds) && (transform === null || knots === null), "expected transform or knots");
  middleAndHalf(bounds);
  refuse(knots === null || (areIncreasing(knots) && bounds[0] < knots[0] && knots.at(-1) < bounds[1]), "expected knots between the bounds");
  if (transform === null) return;
  const [[kind, constant], ...more] = [...Object.entries(Object(transform)), []], low = bounds[0];
  const fits = { log: constant === null && low > 0, asinh: constant === null || (finite(constant) && constant > 0),
    power: finite(constant) && constant !== 0 && constant !== 1 && (constant > 0 ? low >= 0 : low > 0) };
  refuse(more.length === 1 && Object.hasOwn(fits, kind) && fits[kind], "expected a transform that the bounds allow");
  middleAndHalf(piecesOf(feature)[0].ends);
}

/** Check features but for their transforms, and return those that have one. */
function checkFeatures(features, names, texts = false) {
  refuse(Array.isArray(features) && features.length > 0 && features.length <= MOST_COLUMNS, "expected features");
  return features.filter((feature) => {
    const has = (key) => feature !== null && typeof feature === "object" && key in feature;
    const isTransformed = has("transform"), isNumber = has("bounds"), isOpen = texts && has("text");
    hasKeys(feature, isTransformed ? TRANSFORMED : ["name", isOpen ? "text" : isNumber ? "bounds" : "categories", ...(!texts && has("per") && !isNumber ? ["per"] : [])]);
    refuse(isName(feature.name) && !names.has(feature.name), "expected features with distinct names");
    names.add(feature.name);
    if (isOpen) refuse(Number.isSafeInteger(feature.text) && feature.text > 0 && feature.text <= 64, "expected a number of bytes");
    else if (!isTransformed) refuse(isNumber ? pair(feature.bounds) : isTexts(feature.categories), "expected bounds or categories of each feature");
    if (!isTransformed && isNumber) middleAndHalf(feature.bounds);
    return isTransformed;
  });
}

function checkSchema(schema) {
  hasKeys(schema, ["features", "target", "intercept", "subject"]);
  const names = new Set(), transformed = checkFeatures(schema.features, names), factors = new Map();
  for (const feature of transformed) if (feature.product === null) checkTransformed(feature, factors);
  refuse(transformed.reduce((sum, { hash }) => sum + hash, 0) <= MOST_COLUMNS, "expected fewer buckets");
  for (const feature of schema.features) if (!feature.product) factors.set(feature.name, piecesOf(feature).length);
  for (const feature of transformed) if (feature.product !== null) checkTransformed(feature, factors);
  let total = [...factors.values()].reduce((sum, n) => sum + n, 0);
  for (const { product } of transformed) if (product) total += product.reduce((n, name) => n * factors.get(name), 1);
  for (const { name, per } of schema.features) if (per !== undefined) {
    refuse(Array.isArray(per) && per.length > 0 && new Set(per).size === per.length && !per.includes(name) && per.every((other) => factors.has(other)), "expected per to name other features");
    total += per.reduce((sum, other) => sum + factors.get(name) * factors.get(other), 0);
  }
  refuse(total <= MOST_COLUMNS, `expected at most ${MOST_COLUMNS} columns`);
  hasKeys(schema.target, ["name", "classes", "bounds", "scale"]);
  const { name, classes, bounds, scale } = schema.target;
  refuse(isName(name) && !names.has(name) && finite(scale) && scale >= LEAST && scale <= MOST, "expected a target with a name and a scale");
  refuse(classes === null || (isTexts(classes) && bounds === null && scale === 1), "expected classes or bounds");
  refuse(bounds === null || pair(bounds), "expected the bounds of the target");
  if (bounds) middleAndHalf(bounds);
  refuse(typeof schema.intercept === "boolean", "expected whether there is an intercept");
  refuse([null, "text", "integer"].includes(schema.subject), "expected which subjects reports have");
}

/** Check what a part of the records reports about, and return it with its noise. */
function statisticOf(given, thresholds, features, budget) {
  hasKeys(given, ["name", "kind", "share", "by", "of", "levels", "quantile"]);
  const { name, kind, share, by, of, levels, quantile } = given, text = kind === "heavy_hitters";
  const isRounded = ["mean", "sum"].includes(kind), isNumber = isRounded || kind === "quantile";
  refuse(isName(name) && (text || isNumber || ["count", "proportion", "histogram"].includes(kind)), "expected a statistic that this module knows");
  refuse(finite(share) && share > 0 && share <= 1 && Array.isArray(by) && by.length <= 100, "expected a share, and columns of groups");
  refuse((of !== null) === (isNumber || text) && (levels !== null) === isRounded && (quantile !== null) === (kind === "quantile") && !(text && by.length), "expected what belongs to a statistic of this kind");
  refuse(levels === null || (Number.isSafeInteger(levels) && levels >= 2 && levels <= 17), "expected 2 to 17 levels");
  refuse(quantile === null || (finite(quantile) && quantile > 0 && quantile < 1), "expected a quantile in (0, 1)");
  refuse(of === null || features.get(of)?.[text ? "text" : "bounds"], "expected statistics of the features of the schema");
  const kinds = by.map((sorter) => {
    hasKeys(sorter, ["column", "edges"]);
    const { column, edges } = sorter, inside = (v, k) => finite(v) && Math.abs(v) <= 1 && !(v < edges[k - 1]);
    refuse(edges === null || (Array.isArray(edges) && edges.length > 0 && edges.length <= MOST_CELLS && edges.every(inside)), "expected ascending edges");
    refuse(features.get(column)?.[edges === null ? "categories" : "bounds"], "expected statistics of the features of the schema");
    return edges === null ? features.get(column).categories.length : edges.length + 1;
  });
  const groups = kinds.reduce((a, b) => a * b, 1), cells = groups * (levels ?? (quantile === null ? 1 : 2));
  refuse(groups * (levels ?? 2) <= 2 * MOST_CELLS, `expected at most ${MOST_CELLS} cells`);
  const asked = quantile === null ? 0 : groups, within = (t) => finite(t) && Math.abs(t) <= 1;
  refuse(Array.isArray(thresholds) && thresholds.length === asked && thresholds.every(within), "expected a threshold for each group of a quantile");
  return { ...given, kinds, thresholds, noise: text ? textOracle(budget) : oracle(cells, budget) };
}

/** Units are near the bounds, and neither too fine nor too coarse. */
const areUnits = ([centre, scale], middle = 0, half = 1) =>
  Math.abs(centre - middle) <= 2 * half && scale >= FINEST * half && scale <= half / FINEST;

/** What makes the reports of one document, which may come from an untrusted service; each kind has its own answers. */
class Half {
  constructor(document, agreement) {
    const { job, budget, version, expires_at: expires } = document;
    this.document = document;
    this.agreement = agreement;
    refuse(document.protocol === PROTOCOL && isName(job), `expected a document of protocol ${PROTOCOL}, with the name of its job`);
    refuse(isText(budget) && budget.length <= 100 && new RegExp(BUDGET).test(budget), "expected a budget: eps=E, eps=E,delta=D or mu=M");
    refuse(Number.isSafeInteger(version) && version >= 0 && finite(expires), "expected a version and its end");
    this.budget = parseBudget(budget);
  }

  /** Whether the document may still be answered. */
  get fresh() {
    return Date.now() / 1000 <= this.document.expires_at;
  }

  /** A report on a record, as JSON values. The noise is drawn now. */
  report(x, y, { id, subject = null, budget = null, words = new Words() }) {
    const { version, schema, budget: agreed } = this.document;
    if (!this.fresh) throw new RefusedError("refused: the document is too old; ask the service for a new one");
    if ((subject === null) !== ((schema.subject ?? null) === null))
      throw new SchemaError(subject === null ? "the job needs the subject of a report" : "the job takes no subject");
    const whole = typeof subject === "bigint" || Number.isSafeInteger(subject), person = String(subject).normalize("NFC");
    const named = { text: isName(person) && !FLOAT.test(person), integer: /^[+-]?[0-9]{1,300}$/.test(person.trim()) }[schema.subject];
    if (subject !== null && !((whole || typeof subject === "string") && named))
      throw new SchemaError("the subject: expected text, but no float, or a whole number; as text or BigInt from 2^53 on");
    const out = { version, budget: budget ?? agreed, id, ...this.answer(x, y, budget, words) };
    return subject === null ? out : { ...out, subject: person };
  }
}

/** The reports about statistics. */
export class StatisticsRandomizer extends Half {
  constructor(document, agreement) {
    hasKeys(document, [...AGREED_STATISTICS, "agreement", "version", "expires_at", "thresholds"]);
    super(document, agreement);
    const { schema, statistics, thresholds } = document;
    hasKeys(schema, ["features", "subject"]);
    refuse([null, "text", "integer"].includes(schema.subject), "expected which subjects reports have");
    for (const feature of checkFeatures(schema.features, new Set(), true)) {
      refuse(feature.bounds !== null && feature.knots === null, "expected numbers with bounds, and no other transforms");
      checkTransformed(feature, new Map());
    }
    const features = new Map(schema.features.map((feature) => [feature.name, feature]));
    refuse(Array.isArray(statistics) && statistics.length > 0 && statistics.length <= 200, "expected statistics");
    refuse(Array.isArray(thresholds) && thresholds.length === statistics.length, "expected thresholds, or none, of each statistic");
    this.statistics = statistics.map((given, k) => statisticOf(given, thresholds[k], features, this.budget));
  }

  /** What the statistics read of a record. It must not leave the device. */
  truth(x) {
    return coded(this.document.schema, x);
  }

  /** A noisy answer about one of the statistics, which is drawn by their shares. */
  answer(x, y, budget, words) {
    if ((y ?? null) !== null) throw new SchemaError("statistics have no target: leave it out");
    refuse(budget === null || budget === this.document.budget, "all reports about statistics spend the agreed budget");
    const values = this.truth(x), drawn = Array.from({ length: 4 + Math.max(...this.statistics.map(({ noise }) => noise.words)) }, () => words.next());
    const ends = this.statistics.slice(0, -1).reduce((sums, { share }) => [...sums, (sums.at(-1) ?? 0) + share], []);
    const statistic = ends.filter((end) => end <= unit(drawn[0])).length, part = this.statistics[statistic];
    if (part.kind === "heavy_hitters") return { statistic, answer: noisyText(part.noise, values[part.of], drawn.slice(1)) };
    return { statistic, answer: noisyCells(part.noise, cellOf(part, values, drawn[1]), drawn.slice(part.quantile === null ? 2 : 1)) };
  }
}

/** The reports to a model. */
export class Randomizer extends Half {
  /** Check a document against the digest of an agreement; null: agree to this document. Returns what its kind needs. */
  static async of(document, agreement = null) {
    refuse(document && document.protocol === PROTOCOL, `expected a document of protocol ${PROTOCOL}`);
    const found = await digest(document);
    refuse(found === document.agreement && (agreement === null || found === agreement),
      "the service announces another agreement than this device has (job, schema, loss, mechanism, statistics or budget)");
    return isOfStatistics(document) ? new StatisticsRandomizer(document, found) : new Randomizer(document, found);
  }

  constructor(document, agreement) {
    hasKeys(document, [...AGREED, "agreement", "version", "expires_at", "theta", "scales", "ask"]);
    super(document, agreement);
    const { schema, theta, scales, ask } = document;
    checkSchema(schema);
    this.loss = checkLoss(document.loss);
    const columns = columnsOf(schema);
    this.names = columns.map(({ name }) => name);
    refuse(new Set(this.names).size === this.names.length, "expected features whose columns have distinct names");
    const p = this.names.length, q = p + schema.intercept, classes = schema.target.classes?.length ?? 1;
    const d = this.loss.name === "softmax" ? q * Math.max(2, classes) : SCALED.includes(this.loss.name) ? q + 1 : q;
    const ofClasses = ["logistic", "softmax", "hinge"].includes(this.loss.name);
    refuse(ofClasses === (classes > 1), "expected a loss that fits the target");
    refuse(this.loss.name === "softmax" || classes <= 2, "expected the softmax loss for several classes");
    refuse(Array.isArray(theta) && theta.length === d && theta.every((v) => finite(v) && Math.abs(v) <= FURTHEST), `expected a point of ${d} numbers`);
    refuse(!SCALED.includes(this.loss.name) || theta[d - 1] >= this.loss.sigma_min * (1 - 1e-9), "expected a scale of at least sigma_min");
    const { bounds, scale } = schema.target;
    [this.middle, this.half] = bounds ? middleAndHalf(bounds, scale) : [0, Infinity];
    refuse(Array.isArray(scales) && scales.length === p + 1 && scales.every(pair), `expected ${p + 1} scales`);
    refuse(scales.slice(0, p).every((units) => areUnits(units)), "expected centres within twice the bounds, and scales from 2^-40 to 2^40");
    const plain = scales[p][0] === 0 && scales[p][1] === 1; // with classes or without bounds, the target is learned as it is
    refuse(plain || (!ofClasses && bounds && areUnits(scales[p], this.middle, this.half)), "expected units of the target near its bounds");
    if (ask !== "gradient") {
      const below = ask !== null && typeof ask === "object" && "below" in ask;
      hasKeys(ask, below ? ["column", "below"] : ["column", "centre", "within"]);
      const column = columns.findIndex(({ name, numeric }) => numeric && name === ask.column);
      refuse(column >= 0 || (ask.column === schema.target.name && bounds), "expected a question about a number with bounds");
      refuse(below ? finite(ask.below) : finite(ask.centre) && finite(ask.within) && ask.within > 0, "expected a question");
      [this.low, this.high] = below ? [-Infinity, ask.below] : [ask.centre - ask.within, ask.centre + ask.within];
      const near = Math.abs(this.high) <= MOST_QUESTION && (below || Math.abs(this.low) <= MOST_QUESTION);
      refuse(this.low < this.high && near, "expected a question about an interval within 8 times the bounds");
      this.column = column < 0 ? p : column;
    }
    this.noise = calibrate(document.mechanism, this.budget, this.loss, d);
  }

  /** The true answer: a gradient, or a bit. It must not leave the device. */
  truth(x, y) {
    const { schema, ask, theta, scales } = this.document;
    const { columns, target } = encode(schema, x, y);
    const value = clip(target, this.middle - this.half, this.middle + this.half);
    if (ask !== "gradient") {
      const v = this.column < columns.length ? columns[this.column] : (value - this.middle) / this.half;
      return this.low <= v && v < this.high;
    }
    const scaled = [...columns, value].map((v, j) => clip((v - scales[j][0]) / scales[j][1], -FURTHEST, FURTHEST));
    const row = [...scaled.slice(0, -1), ...(schema.intercept ? [1] : [])];
    return gradient(this.loss, theta, row, scaled[scaled.length - 1]);
  }

  /** A noisy gradient or a noisy bit. */
  answer(x, y, budget, words) {
    const { ask, mechanism, theta } = this.document;
    let noise = this.noise;
    if (budget !== null) {
      const own = parseBudget(budget), { kind, amount, delta } = this.budget;
      refuse(own.kind === kind && own.delta === delta && own.amount <= amount, "expected at most the agreed budget, of the same kind");
      if (own.amount < amount) noise = calibrate(mechanism, own, this.loss, theta.length, true);
    }
    const truth = this.truth(x, y);
    return ask === "gradient" ? { gradient: randomize(noise, truth, words) } : { ask, bit: respond(truth, noise.keep, words) };
  }
}

// -- the device ---------------------------------------------------------------------------------------------------------

/** Notes of reports in a `Storage`, such as `localStorage`: they outlive the page. */
export const storedNotes = (storage) => ({
  get: (key) => JSON.parse(storage.getItem(`streamdp:${key}`)),
  set: (key, note) => storage.setItem(`streamdp:${key}`, JSON.stringify(note)),
});

const inMemory = () => {
  const notes = new Map();
  return { get: (key) => notes.get(key) ?? null, set: (key, note) => notes.set(key, note) };
};

/** The name of a report. It is random, so that no two devices give the same, and it tells nothing. */
const randomName = () => Array.from(globalThis.crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");

/**
 * One person's device. A record answers once: whatever fails, the same report is sent again, never a fresh draw. The
 * notes know a job by its name, which is a part of the agreement, and not by the address of its service.
 */
export class Device {
  #url;
  #place;
  #options;
  #etag = null;
  #randomizer = null;
  #busy = new Map();

  constructor(url, job, { agreement = null, token = null, notes = inMemory(), fetch = globalThis.fetch.bind(globalThis) } = {}) {
    this.#url = `${String(url).replace(/\/+$/, "")}/v1/models/${encodeURIComponent(job)}`;
    this.#place = encodeURIComponent(job);
    this.#options = { token, notes, fetch };
    this.job = job;
    this.agreement = agreement;
  }

  async #call(path, options = {}) {
    const { token, fetch } = this.#options;
    const headers = { ...options.headers, ...(token === null ? {} : { Authorization: `Bearer ${token}` }) };
    let response;
    try {
      response = await fetch(this.#url + path, { ...options, headers, credentials: "omit", referrerPolicy: "no-referrer" });
    } catch {
      throw new ServiceError("the service does not answer");
    }
    if (!response.ok && response.status !== 304) throw new ServiceError(`the service answers with status ${response.status}`, response.status);
    return response;
  }

  /** The newest randomizer of the service, checked against what this device agreed to. */
  async randomizer() {
    const known = this.#randomizer?.fresh && this.#etag;
    const response = await this.#call("/randomizer", { headers: known ? { "If-None-Match": this.#etag } : {} });
    if (response.status === 304) return this.#randomizer;
    const body = await response.text();
    refuse(body.length <= MOST_BYTES, "the document is too long");
    let document = null;
    try {
      document = JSON.parse(body);
    } catch {
      refuse(false, "expected a document as JSON");
    }
    refuse(document?.job === this.job, "the document is of another job");
    const { notes } = this.#options, place = `${this.#place}:agreement`, noted = await notes.get(place);
    const found = await Randomizer.of(document, this.agreement ?? noted);
    if (noted !== found.agreement) await notes.set(place, found.agreement);
    this.agreement = found.agreement;
    this.#etag = response.headers.get("ETag");
    return (this.#randomizer = found);
  }

  /** What is noted of a record: its report, and its outcome if there is one. */
  note(id) {
    return this.#options.notes.get(this.#key(id));
  }

  #key(id) {
    return `${this.#place}:record:${String(id).normalize("NFC")}`;
  }

  /** The randomizer that this device used last, if it is of this version. */
  last(version) {
    return this.#randomizer?.document.version === version ? this.#randomizer : null;
  }

  /** Report one record, and return {outcome: "learned" | "refused" | "dead", reason?, report}. See streamdp.d.ts. */
  report(x, y, { id = randomName(), subject = null, budget = null } = {}) {
    const key = this.#key(id), before = this.#busy.get(key) ?? Promise.resolve();
    const locks = globalThis.navigator?.locks; // of all tabs, which share the notes
    const run = () => this.#report(x, y, id, subject, budget);
    const mine = before.catch(() => {}).then(() => (locks ? locks.request(`streamdp:${key}`, run) : run()));
    this.#busy.set(key, mine);
    return mine;
  }

  async #report(x, y, id, subject, budget) {
    const { notes } = this.#options, key = this.#key(id);
    let note = await this.note(id);
    if (note?.outcome) return note;
    if (!note) {
      note = { report: (await this.randomizer()).report(x, y, { id: randomName(), subject, budget }) };
      await notes.set(key, note); // before anything leaves the device
    }
    const response = await this.#call("/reports", {
      method: "POST",
      headers: { "Content-Type": "application/json", "Idempotency-Key": note.report.id },
      body: JSON.stringify({ reports: [note.report] }),
    });
    const found = await response.json().catch(() => null);
    if (!Array.isArray(found?.dead)) throw new ServiceError("the service answered something else than what became of the report");
    const outcome = found.dead.length ? { outcome: "dead", reason: found.dead[0].reason } : { outcome: found.learned ? "learned" : "refused" };
    note = { ...note, ...outcome };
    await notes.set(key, note);
    return note;
  }
}
