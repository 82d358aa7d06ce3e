/** The picture of the network as a node's admin port sends it once a second, and what follows from two of them. */

export interface Link {
  peer: string;
  /** There is to be a link; without it the overlay has given it up. */
  held: boolean;
  connected: boolean;
  congested: boolean;
  unacknowledged_bytes: number;
  messages: number;
  bytes_sent: number;
  bytes_received: number;
  round_trip_ms: number | null;
}

export interface Leaving {
  client: string;
  to: string;
  state: string;
  by_plan: boolean;
  seconds: number;
}

export interface Arriving {
  client: string;
  from: string;
  state: string;
  by_plan: boolean;
  seconds: number;
}

export interface Moved {
  client: string;
  to: string;
  took_s: number;
  seconds: number;
}

export interface NotMoved {
  client: string;
  to: string;
  reason: string;
  seconds: number;
}

export interface Evacuation {
  total: number;
  left: number;
  moved: number;
  sent_away: number;
  failed: number;
  staying: number;
  rate: number;
}

export interface Companion {
  kind: "control" | "coordinator" | "worker" | "gateway";
  name: string;
  clients: number;
}

export interface Foreign {
  broker: string;
  /** What people call it; may be empty. */
  name: string;
  mode: string;
  state: string;
  trouble: string | null;
  taken: number;
  injected: number;
  round_trip_ms: number | null;
  sessions_lost: number;
  connections: number;
  held_back: number;
  not_injected: number;
  in_doubt: number;
  held_topics: number;
}

export interface ShownWorker {
  worker: string;
  site: string;
  state: string;
  fixed: boolean;
  gateways: number;
  others: number;
  cpu: number;
  pressure: number | null;
  is_needed: boolean;
  trouble: string;
}

/** A coordinator, as it tells the node that it is connected to. */
export interface ShownCoordinator {
  coordinator: string;
  region: string;
  leads: boolean;
  leader: string;
  term: number;
  acts: boolean;
  dry_run: boolean;
  frozen: boolean;
  model: string;
  up: number;
  down: number;
  gateways: number;
  unserved: number;
  orders: number;
  workers: ShownWorker[];
  lost: string[];
  decisions: { seconds_ago: number; decision: string; not_ordered: string }[];
  /** Since it said so. */
  seconds: number;
}

export interface Feed {
  connections: number;
  readers: number;
  lag: number;
  rows_sent: number;
  bytes_sent: number;
  lost: number;
  parquet_files: number;
}

export interface Alarm {
  level: "error" | "warning";
  text: string;
}

export interface Totals {
  publish_received: number;
  publish_sent: number;
  publish_bytes_received: number;
  publish_bytes_sent: number;
  connections: number;
  sessions_expired: number;
  clients_connected: number;
  sessions: number;
  subscriptions: number;
  shared_subscriptions: number;
  expressions: number;
  expression_results: number;
  retained: number;
  inflight: number;
  queued: number;
  journal_next_offset: number;
  journal_bytes: number;
  journal_lost: number;
}

export interface Away {
  away_s: number;
  /** Messages, */
  waiting: number;
  /** the first of them so long ago. */
  oldest_s: number;
}

/** Messages that a node carries for others. */
export interface Carried {
  carry: string;
  messages: number;
  bytes: number;
  oldest_s: number;
  handed_on: number;
  evicted: number;
  for: string[];
}

export interface NodeRow {
  node: string;
  network: string;
  epoch: number;
  version: string;
  compiled: boolean;
  strategy: string;
  overlay: string | null;
  root: string | null;
  parent: string | null;
  uptime_s: number;
  cpu_s: number;
  rss_bytes: number;
  not_ready: string | null;
  totals: Totals;
  dropped: Record<string, number>;
  refused: Record<string, number>;
  links: Link[];
  absent: string[];
  unsynced: string[];
  leaving: Leaving[];
  arriving: Arriving[];
  moved: Moved[];
  not_moved: NotMoved[];
  evacuation: Evacuation | null;
  move_counters: Record<string, number>;
  feed: Feed | null;
  foreign: Foreign | null;
  companions: Companion[];
  coordinators: ShownCoordinator[];
  /** Only with nodes that move: node -> how long it cannot be reached, and what entered here for it meanwhile. */
  away: Record<string, Away>;
  carried?: Carried | null;
  alarms: Alarm[];
  age_s: number;
}

export interface Picture {
  at: number;
  nodes: NodeRow[];
  silent: string[];
}

export interface Rates {
  received: number;
  sent: number;
  bytesReceived: number;
  bytesSent: number;
  dropped: number;
  results: number;
  cpu: number;
}

export const NO_RATES: Rates = { received: 0, sent: 0, bytesReceived: 0, bytesSent: 0, dropped: 0, results: 0, cpu: 0 };

export interface Moment {
  at: number;
  rates: Rates;
}

/** Pictures that a chart shows: five minutes. */
export const HISTORY = 300;

export interface View {
  picture: Picture;
  /** Node -> what it did between the last two pictures, per second. */
  rates: Map<string, Rates>;
  /** `a\tb` (names in order) -> bytes per second over the link, both directions. */
  traffic: Map<string, number>;
  total: Rates;
  history: Moment[];
  /** Reason -> messages dropped per second. */
  dropping: Map<string, number>;
  /** Node that went while the page was open -> messages that entered the network on this side since. */
  entered: Map<string, number>;
}

const sum = (numbers: Record<string, number>): number => Object.values(numbers).reduce((all, one) => all + one, 0);

function ratesBetween(before: NodeRow, now: NodeRow, seconds: number): Rates {
  const of = (read: (row: NodeRow) => number): number => Math.max(0, read(now) - read(before)) / seconds;
  return {
    received: of((row) => row.totals.publish_received),
    sent: of((row) => row.totals.publish_sent),
    bytesReceived: of((row) => row.totals.publish_bytes_received),
    bytesSent: of((row) => row.totals.publish_bytes_sent),
    dropped: of((row) => sum(row.dropped)),
    results: of((row) => row.totals.expression_results),
    cpu: of((row) => row.cpu_s),
  };
}

export const pair = (one: string, other: string): string => (one < other ? `${one}\t${other}` : `${other}\t${one}`);

function trafficBetween(before: NodeRow, now: NodeRow, seconds: number, traffic: Map<string, number>): void {
  const old = new Map(before.links.map((link) => [link.peer, link]));
  for (const link of now.links) {
    const was = old.get(link.peer);
    if (!was) continue;
    const bytes = link.bytes_sent + link.bytes_received - was.bytes_sent - was.bytes_received;
    const key = pair(now.node, link.peer);
    traffic.set(key, Math.max(traffic.get(key) ?? 0, Math.max(0, bytes) / seconds));
  }
}

function droppingBetween(before: NodeRow, now: NodeRow, seconds: number, dropping: Map<string, number>): void {
  for (const [reason, count] of Object.entries(now.dropped)) {
    const more = count - (before.dropped[reason] ?? 0);
    if (more > 0) dropping.set(reason, (dropping.get(reason) ?? 0) + more / seconds);
  }
}

/** Counted for each node that is missing, from the last picture that it was in. */
function enteredSince(picture: Picture, before: View | null): Map<string, number> {
  if (!before) return new Map();
  const old = new Map(before.picture.nodes.map((row) => [row.node, row]));
  const more = picture.nodes.reduce((all, row) => {
    const was = old.get(row.node);
    if (!isAlive(row) || !was || was.epoch !== row.epoch) return all;
    return all + Math.max(0, row.totals.publish_received - was.totals.publish_received);
  }, 0);
  const found = new Map<string, number>();
  for (const node of missing(picture)) {
    const was = old.get(node);
    const known = before.entered.get(node) ?? (was && isAlive(was) ? 0 : undefined);
    if (known !== undefined) found.set(node, known + more);
  }
  return found;
}

/** What a new picture shows, beside the one before.  A node that started again in between has no rates yet. */
export function viewOf(picture: Picture, before: View | null): View {
  if (before?.picture.at === picture.at) return before;
  const rates = new Map<string, Rates>();
  const traffic = new Map<string, number>();
  const dropping = new Map<string, number>();
  const total = { ...NO_RATES };
  const old = new Map(before?.picture.nodes.map((row) => [row.node, row]) ?? []);
  for (const row of picture.nodes) {
    const was = old.get(row.node);
    const seconds = was ? row.uptime_s - was.uptime_s : 0;
    if (!was || was.epoch !== row.epoch || row.age_s > 0 || seconds <= 0) {
      const last = row.age_s > 0 ? NO_RATES : (before?.rates.get(row.node) ?? NO_RATES);
      rates.set(row.node, seconds === 0 && was?.epoch === row.epoch ? last : NO_RATES);
    } else {
      rates.set(row.node, ratesBetween(was, row, seconds));
      trafficBetween(was, row, seconds, traffic);
      droppingBetween(was, row, seconds, dropping);
    }
    const one = rates.get(row.node) ?? NO_RATES;
    for (const key of Object.keys(total) as (keyof Rates)[]) total[key] += one[key];
  }
  const history = before ? [...before.history, { at: picture.at, rates: total }].slice(-HISTORY) : [];
  return { picture, rates, traffic, total, history, dropping, entered: enteredSince(picture, before) };
}

export const isAlive = (row: NodeRow): boolean => row.age_s === 0;

/** Each once, as it last spoke: a coordinator may have gone from one node to another. */
export function coordinatorsOf(picture: Picture): ShownCoordinator[] {
  const found = new Map<string, ShownCoordinator>();
  for (const one of picture.nodes.filter(isAlive).flatMap((row) => row.coordinators)) {
    const known = found.get(one.coordinator);
    if (!known || one.seconds < known.seconds) found.set(one.coordinator, one);
  }
  return [...found.values()].sort((one, other) => (one.coordinator < other.coordinator ? -1 : 1));
}

/** The pressure on workers and nodes beside the threshold at which a node is started, as leaders tell it. */
export function pressuresOf(picture: Picture): Map<string, { value: number; up: number; state: string }> {
  const found = new Map<string, { value: number; up: number; state: string }>();
  for (const one of coordinatorsOf(picture).filter((known) => known.leads))
    for (const worker of one.workers)
      if (worker.pressure !== null) found.set(worker.worker, { value: worker.pressure, up: one.up, state: worker.state });
  return found;
}

export function totalOf(picture: Picture, read: (totals: Totals) => number): number {
  return picture.nodes.filter(isAlive).reduce((all, row) => all + read(row.totals), 0);
}

/** Nodes that somebody misses: those the others cannot reach, and those that did not answer. */
export function missing(picture: Picture): string[] {
  const alive = new Set(picture.nodes.filter(isAlive).map((row) => row.node));
  const named = [...picture.silent, ...picture.nodes.flatMap((row) => (isAlive(row) ? row.absent : [row.node]))];
  return [...new Set(named)].filter((node) => !alive.has(node)).sort();
}

export interface Waits {
  messages: number;
  /** Nodes that do not move cannot tell what a missing one wants: no more than this. */
  isBound: boolean;
  /** The age of the first one, where it is known. */
  oldest_s: number | null;
  carriedBy: string[];
}

/** What waits for a node that is missing; null: nobody knows. */
export function waitsFor(view: View, node: string): Waits | null {
  const alive = view.picture.nodes.filter(isAlive);
  const carriedBy = alive.filter((row) => row.carried?.for.includes(node) === true).map((row) => row.node);
  const away = alive.flatMap((row) => row.away[node] ?? []);
  if (away.length) {
    const messages = away.reduce((all, one) => all + one.waiting, 0);
    return { messages, isBound: false, oldest_s: messages ? Math.max(...away.map((one) => one.oldest_s)) : null, carriedBy };
  }
  const entered = view.entered.get(node);
  return entered === undefined ? null : { messages: entered, isBound: true, oldest_s: null, carriedBy };
}
