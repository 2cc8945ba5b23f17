// Types of streamdp.js: the device's side of streamdp's local reports. docs/reports.md describes the messages.

export declare const PROTOCOL: 1;

/** An error that says what was expected. It never shows a value of a record. */
export declare class StreamDPError extends Error {}
/** The document is malformed or not the agreed one. */
export declare class RefusedError extends StreamDPError {}
/** A record does not fit the schema. */
export declare class SchemaError extends StreamDPError {}
/** The service did not take the report. It is kept, and the same report can be sent again. */
export declare class ServiceError extends StreamDPError {
  constructor(message: string, status?: number);
  /** The HTTP status; 0 if there was no answer. */
  status: number;
}

export type Value = string | number | boolean;
export type Ask = "gradient" | { column: string; below: number } | { column: string; centre: number; within: number };

/** A feature with a declared transform; what it has not is null. */
export interface Transformed {
  name: string;
  column: string | null;
  bounds: [number, number] | null;
  transform: { log: null } | { asinh: number | null } | { power: number } | null;
  knots: number[] | null;
  bins: number[] | null;
  cyclic: "month" | "day" | "weekday" | "hour" | "minute" | number | null;
  hash: number | null;
  product: string[] | null;
}

export interface Schema {
  features: ({ name: string; bounds: [number, number] } | { name: string; categories: string[] } | Transformed)[];
  target: { name: string; classes: string[] | null; bounds: [number, number] | null; scale: number };
  intercept: boolean;
  subject: "text" | "integer" | null;
}

export interface RandomizerDocument {
  protocol: 1;
  job: string;
  schema: Schema;
  loss: { name: string; parameters: Record<string, number | string | null>; bound: number; sensitivity: number };
  mechanism: "laplace" | "gaussian" | "privunit";
  budget: string;
  /** The digest of all fields above. */
  agreement: string;
  version: number;
  /** In seconds since 1970. */
  expires_at: number;
  theta: number[];
  /** Centre and scale of each column, and of the target. */
  scales: [number, number][];
  ask: Ask;
}

/** What a part of the records reports about; `by` sorts them into cells, or into the groups of the number `of`. */
export interface Statistic {
  name: string;
  kind: "mean" | "sum" | "count" | "proportion" | "histogram" | "quantile" | "heavy_hitters";
  share: number;
  by: { column: string; edges: number[] | null }[];
  of: string | null;
  levels: number | null;
  quantile: number | null;
}

export interface StatisticsDocument {
  protocol: 1;
  job: string;
  schema: { features: (Schema["features"][number] | { name: string; text: number })[]; subject: Schema["subject"] };
  statistics: Statistic[];
  budget: string;
  /** The digest of all fields above. */
  agreement: string;
  version: number;
  expires_at: number;
  /** Of each part: of a quantile the thresholds of its groups, else none. */
  thresholds: number[][];
}

export interface Report {
  version: number;
  budget: string;
  id: string;
  ask?: Ask;
  gradient?: number[];
  bit?: boolean;
  /** The index of the statistic that the report is about, and the noisy cells. */
  statistic?: number;
  answer?: number[];
  subject?: string;
}

export interface Budget {
  kind: "eps" | "approx" | "mu";
  amount: number;
  delta: number;
}

/** The constants of a mechanism's noise. */
export interface Noise {
  mechanism: string;
  keep: number;
  scale: number;
  grid: number;
  p?: number;
  gamma?: number;
  radial?: number;
  angle?: number;
  bound?: number;
}

/** Random words of 64 bits as [low, high] halves. */
export interface WordSource {
  next(): [number, number];
}
export declare class Words implements WordSource {
  next(): [number, number];
}

export declare function cap(epsilon: number, d: number, gamma?: number): [inverse: number, gamma: number, p: number];
export declare function parseBudget(text: string): Budget;
export declare function constants(
  name: string,
  parameters: Record<string, number | string | null>,
): { bound: number; sensitivity: number; kappa?: number };
export declare function calibrate(
  mechanism: string,
  budget: Budget,
  loss: { bound: number; sensitivity: number },
  d: number,
  own?: boolean,
): Noise;
export declare function randomize(noise: Noise, gradient: number[], words?: WordSource): number[];
export declare const respond: (truth: boolean, keep: number, words?: WordSource) => boolean;
export declare function encode(schema: Schema, x: Record<string, Value>, y: Value): { columns: number[]; target: number };
export declare function gradient(loss: object, theta: number[], x: number[], y: number): number[];
/** The digest of a document's agreement, in hexadecimal: what a person agrees to once. */
export declare function digest(document: RandomizerDocument | StatisticsDocument): Promise<string>;
/** The probability of a true answer to one bit. */
export declare function keepOf(kind: Budget["kind"], amount: number): number;
/** The noise of a report of one of several cells. */
export declare function oracle(
  cells: number,
  budget: Budget,
  unary?: boolean,
): { cells: number; words: number; keep?: number; other?: number };
/** A record as statistics read it: the index of a category, a number in [-1, 1], or bytes, by feature. */
export declare const coded: (schema: StatisticsDocument["schema"], x: Record<string, Value>) => Record<string, number | number[]>;

/** What makes the reports about statistics. */
export declare class StatisticsRandomizer {
  readonly document: StatisticsDocument;
  readonly agreement: string;
  readonly statistics: (Statistic & { noise: { cells: number; words: number; keep?: number; other?: number } })[];
  readonly fresh: boolean;
  /** What the statistics read of a record. It must not leave the device. Throws SchemaError. */
  truth(x: Record<string, Value>): Record<string, number | number[]>;
  /** A report about one of the statistics. The noise is drawn now. Throws SchemaError and RefusedError. */
  report(
    x: Record<string, Value>,
    y: null | undefined,
    options: { id: string; subject?: string | number | bigint | null; budget?: string | null; words?: WordSource },
  ): Report;
}

/** What makes the reports to a model. */
export declare class Randomizer {
  /** Check a document against the digest of an agreement; null: agree to this document. Rejects with RefusedError. */
  static of(document: RandomizerDocument, agreement?: string | null): Promise<Randomizer>;
  static of(document: StatisticsDocument, agreement?: string | null): Promise<StatisticsRandomizer>;
  readonly document: RandomizerDocument;
  readonly agreement: string;
  readonly noise: Noise;
  /** Whether the document may still be answered. */
  readonly fresh: boolean;
  /** The true answer: a gradient or a bit. It must not leave the device. Throws SchemaError. */
  truth(x: Record<string, Value>, y: Value): number[] | boolean;
  /** A report on a record. The noise is drawn now. Throws SchemaError and RefusedError. */
  report(
    x: Record<string, Value>,
    y: Value,
    options: { id: string; subject?: string | number | bigint | null; budget?: string | null; words?: WordSource },
  ): Report;
}

export interface Note {
  report: Report;
  outcome?: "learned" | "refused" | "dead";
  /** Why the report is dead: see docs/reports.md. */
  reason?: string;
}

/** Where a device notes its reports before it sends them. */
export interface Notes {
  get(key: string): any | Promise<any>;
  set(key: string, note: any): void | Promise<void>;
}
export declare const storedNotes: (storage: { getItem(key: string): string | null; setItem(key: string, value: string): void }) => Notes;

/** One person's device. A record answers once: whatever fails, the same report is sent again, never a fresh draw. */
export declare class Device {
  constructor(
    url: string,
    job: string,
    options?: { agreement?: string | null; token?: string | null; notes?: Notes; fetch?: typeof fetch },
  );
  readonly job: string;
  readonly agreement: string | null;
  randomizer(): Promise<Randomizer | StatisticsRandomizer>;
  /** What is noted of a record; null without a report. */
  note(id: string): Note | null | Promise<Note | null>;
  /** The randomizer that this device used last, if it is of this version. */
  last(version: number): Randomizer | StatisticsRandomizer | null;
  /**
   * Report one record. `id` names the record in the notes and is not sent. With the same id, the same report is sent
   * again, and x and y are not looked at. Records of a job with statistics have no y.
   */
  report(
    x: Record<string, Value>,
    y?: Value | null,
    options?: { id?: string; subject?: string | number | bigint | null; budget?: string | null },
  ): Promise<Note>;
}
