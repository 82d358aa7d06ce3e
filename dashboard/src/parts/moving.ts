/** Moves as the map draws them: each is seen once as it happens, from the two ends' reports. */
import type { Picture } from "../model";

export interface Flight {
  key: string;
  client: string;
  from: string;
  to: string;
  /** When the page learnt of it, in its own time. */
  seenAt: number;
  /** When the session had changed hands; null: it is on its way. */
  doneAt: number | null;
}

/** A move that ended longer ago is history. */
export const FRESH_S = 5;
/** How long a finished one is told in words. */
export const TOLD_MS = 6000;
/** How long its way is drawn. */
const TRAIL_MS = 2000;
const FLIGHTS_MAX = 200;

export function flights(picture: Picture, before: Flight[], now: number): Flight[] {
  const found = new Map(before.map((one) => [one.key, one]));
  const under = new Set<string>();
  for (const row of picture.nodes) {
    if (row.age_s > 0) continue;
    for (const one of row.leaving) {
      const key = `${one.client}\t${row.node}\t${one.to}`;
      under.add(key);
      const known = found.get(key);
      if (!known || known.doneAt !== null)
        found.set(key, { key, client: one.client, from: row.node, to: one.to, seenAt: now, doneAt: null });
    }
    for (const one of row.moved) {
      const key = `${one.client}\t${row.node}\t${one.to}`;
      const known = found.get(key);
      const endedAt = now - one.seconds * 1000;
      if (known && (known.doneAt !== null ? endedAt > known.doneAt + 2000 : endedAt > known.seenAt - 2000))
        found.set(key, { ...known, seenAt: known.doneAt === null ? known.seenAt : now, doneAt: endedAt });
      else if (!known && one.seconds < FRESH_S)
        found.set(key, { key, client: one.client, from: row.node, to: one.to, seenAt: now, doneAt: endedAt });
    }
  }
  return [...found.values()]
    .filter((one) => (one.doneAt === null ? under.has(one.key) : now - Math.max(one.doneAt, one.seenAt) < TOLD_MS))
    .slice(-FLIGHTS_MAX);
}

/** It happens, or has just happened. */
export const isDrawn = (flight: Flight, now: number): boolean =>
  flight.doneAt === null || now - Math.max(flight.doneAt, flight.seenAt) < TRAIL_MS;
