/** The ways of clients that move: curves that lead around nodes that are not their ends. */
import { type Layout, type Place, RADIUS, extent } from "./layout";
import { type Point, isIn } from "./plane";

/** How far a way bends to the side, by its length, the best first. */
const BENDS = [0.18, -0.18, 0.34, -0.34, 0.52, -0.52, 0.75, -0.75];
/** A straighter way may pass behind a few letters. */
const COST_OF_BEND = 8;
const STEPS = 24;
const CLEAR_OF_NODE = RADIUS + 20;

/** Labels stay the same as long as a layout does. */
const known = new WeakMap<Layout["labels"], Map<string, Point>>();

export function onWay(from: Point, bend: Point, to: Point, share: number): Point {
  const [first, middle, last] = [(1 - share) ** 2, 2 * share * (1 - share), share ** 2];
  return { x: first * from.x + middle * bend.x + last * to.x, y: first * from.y + middle * bend.y + last * to.y };
}

/** How much of a way lies on something, on nodes above all, or out of the map. */
function hits(from: Place, bend: Point, to: Place, map: Layout): number {
  const all = extent(map.taken);
  let found = 0;
  for (let step = 1; step < STEPS; step += 1) {
    const at = onWay(from, bend, to, step / STEPS);
    if (!isIn(at, all)) found += 3;
    found += map.taken.filter((box) => isIn(at, box)).length;
    for (const place of map.places.values()) {
      if (place === from || place === to || (place.kind !== "node" && place.kind !== "missing")) continue;
      if (Math.hypot(place.x - at.x, place.y - at.y) < CLEAR_OF_NODE) found += 5;
    }
  }
  return found;
}

/** The point that the way between two nodes bends to; it is looked for once in each layout. */
export function bendOf(map: Layout, from: Place, to: Place): Point {
  const bends = known.get(map.labels) ?? new Map<string, Point>();
  known.set(map.labels, bends);
  const key = `${from.id}\t${to.id}`;
  const before = bends.get(key);
  if (before) return before;
  let best = { x: 0, y: 0 };
  let least = Infinity;
  for (const share of BENDS) {
    const bend = { x: (from.x + to.x) / 2 - (to.y - from.y) * share, y: (from.y + to.y) / 2 + (to.x - from.x) * share };
    const bad = hits(from, bend, to, map) + COST_OF_BEND * Math.abs(share);
    if (bad < least) [best, least] = [bend, bad];
  }
  bends.set(key, best);
  return best;
}
