/** Where things are on the map: nodes find their places by their links, and keep them when little changes. */
import { forceCollide, forceLink, forceManyBody, forceSimulation, forceX, forceY, type SimulationNodeDatum } from "d3-force";
import { type Companion, type Picture, isAlive, missing, pair } from "../model";
import { type Box, type Point, around, clearest, crosses, nearestOn, overlap, passes } from "./plane";

export interface Place extends SimulationNodeDatum {
  id: string;
  kind: "node" | "missing" | "foreign" | Companion["kind"];
  x: number;
  y: number;
  /** The node that it stands beside, without a line. */
  beside?: string;
  /** It stands to the left of that node. */
  isLeft?: boolean;
  /** Where its words stand; below, if nothing is said. */
  side?: Side;
}

const SIDES = ["below", "above", "right", "left"] as const;
export type Side = (typeof SIDES)[number];

export interface Edge {
  key: string;
  from: string;
  to: string;
  kind: "link" | "down" | "foreign" | "companion";
}

export interface Layout {
  signature: string;
  places: Map<string, Place>;
  edges: Edge[];
  /** Key of a link -> where its label stands. */
  labels: Map<string, Point>;
  /** Marks and all labels: what is drawn later keeps clear of them. */
  taken: Box[];
}

/** The card that the map is drawn in. */
export interface Card {
  /** Width by height. */
  aspect: number;
  isSmall: boolean;
}

export const RADIUS = 38;
const TICKS = 200;
/** From one ring of a new layout to the next. */
const RING = 210;
/** Layouts that are tried for a small network; the one with the fewest crossings is taken. */
const TRIES = 12;
/** Tries cost by links times places: a big network is laid out once, in fewer steps. */
const SMALL_NETWORK = 30;
/** The way of a link around a node that is not its own. */
const CLEAR = 96;
const CLEAR_OF_MARK = 66;
const STRETCH_MAX = 1.9;
/** A link has room for its label and for the clients around its ends. */
const SHORT = 240;
const SHORT_SMALL = 150;
/** Where a label may stand on its link, the best first. */
const SHARES = [0.5, 0.35, 0.65, 0.42, 0.58, 0.28, 0.72, 0.22, 0.78];
const LABEL = { width: 82, height: 34 };
/** Between a link and its label. */
const GAP = 3;
/** Pieces of a line, which labels of other links keep clear of. */
const PIECE = 14;
const MARGIN = 14;

interface Wanted {
  kinds: Map<string, Place["kind"]>;
  edges: Map<string, Edge>;
  /** What stands beside a node -> that node. */
  beside: Map<string, string>;
}

function wanted(picture: Picture): Wanted {
  const kinds = new Map<string, Place["kind"]>();
  const edges = new Map<string, Edge>();
  const beside = new Map<string, string>();
  for (const row of picture.nodes) if (isAlive(row)) kinds.set(row.node, "node");
  for (const name of missing(picture)) kinds.set(name, "missing");
  for (const row of picture.nodes.filter(isAlive)) {
    for (const link of row.links) {
      if (!kinds.has(link.peer) || !link.held) continue;
      const key = pair(row.node, link.peer);
      const known = edges.get(key);
      if (link.connected || !known)
        edges.set(key, { key, from: row.node, to: link.peer, kind: link.connected ? "link" : "down" });
    }
    for (const peer of row.absent) {
      const last = picture.nodes.find((one) => one.node === peer);
      // Where it was, the last that was heard of it.
      if (last?.links.some((link) => link.peer === row.node)) {
        const key = pair(row.node, peer);
        if (!edges.has(key)) edges.set(key, { key, from: row.node, to: peer, kind: "down" });
      }
    }
    for (const one of row.companions) {
      const id = `${one.kind} ${one.name}`;
      // A worker gives its name to the node that it runs.
      if (one.kind === "worker" && kinds.has(one.name)) beside.set(id, one.name);
      else edges.set(pair(row.node, id), { key: pair(row.node, id), from: row.node, to: id, kind: "companion" });
      kinds.set(id, one.kind);
    }
    if (row.foreign) {
      const id = `foreign ${row.foreign.broker}`;
      kinds.set(id, "foreign");
      edges.set(pair(row.node, id), { key: pair(row.node, id), from: row.node, to: id, kind: "foreign" });
    }
  }
  return { kinds, edges, beside };
}

const isNode = (place: Place): boolean => place.kind === "node" || place.kind === "missing";

/** The words of a place: how wide and high they are, and how far from its middle they begin. */
function wordsOf(place: Place, isSmall: boolean): { width: number; height: number; reach: number } {
  if (isNode(place)) return isSmall ? { width: 120, height: 50, reach: RADIUS + 22 } : { width: 124, height: 56, reach: RADIUS + 20 };
  return isSmall ? { width: 116, height: 28, reach: 25 } : { width: 142, height: 38, reach: 23 };
}

function wordsBox(place: Place, isSmall: boolean, side: Side): Box {
  const { width, height, reach } = wordsOf(place, isSmall);
  if (side === "right" || side === "left") return around(place.x + (side === "right" ? 1 : -1) * (reach + width / 2), place.y, width, height);
  return around(place.x, place.y + (side === "below" ? 1 : -1) * (reach + height / 2), width, height);
}

/** What a place covers: its mark, and its words. */
export function boxesOf(place: Place, isSmall: boolean): Box[] {
  if (place.beside !== undefined) return [around(place.x + (isSmall ? 0 : place.isLeft === true ? -24 : 24), place.y, isSmall ? 36 : 82, 34)];
  const ring = 2 * (RADIUS + 22);
  const mark = isNode(place) ? around(place.x, place.y, ring, ring) : around(place.x, place.y, 48, 46);
  return [mark, wordsBox(place, isSmall, place.side ?? "below")];
}

/** A link disturbs words that it passes behind more than a dotted line does. */
const weightOf = (edge: Edge): number => (edge.kind === "link" || edge.kind === "down" ? 2 : 1);

/** Lines that pass behind words. */
function worded(places: Place[], edges: Edge[], isSmall: boolean): number {
  const known = new Map(places.map((place) => [place.id, place]));
  const words = places.map((place) => wordsBox(place, isSmall, place.side ?? "below"));
  return edges.reduce((all, edge) => {
    const [from, to] = [known.get(edge.from), known.get(edge.to)];
    return from && to ? all + weightOf(edge) * words.filter((box) => passes(from, to, box)).length : all;
  }, 0);
}

/** Words stand where the fewest links pass behind them; on a phone rather not to the side, where there is no room. */
function turnWords(places: Map<string, Place>, edges: Edge[], isSmall: boolean): void {
  const lines = edges.flatMap((edge) => {
    const [from, to] = [places.get(edge.from), places.get(edge.to)];
    return from && to ? [{ from, to, weight: weightOf(edge) }] : [];
  });
  const boxes = new Map([...places.values()].map((place) => [place, boxesOf(place, isSmall)]));
  const covers = (place: Place, box: Box): number => {
    let found = 0;
    for (const [other, taken] of boxes) if (other !== place) for (const one of taken) if (overlap(one, box)) found += 1;
    return found;
  };
  for (const place of places.values()) {
    let least = Infinity;
    for (const side of SIDES) {
      const box = wordsBox(place, isSmall, side);
      const passing = lines.reduce((all, line) => (passes(line.from, line.to, box) ? all + line.weight : all), 0);
      const bad = passing + 4 * covers(place, box) + (isSmall && (side === "left" || side === "right") ? 1 : 0);
      if (bad < least) [least, place.side] = [bad, side];
    }
    boxes.set(place, boxesOf(place, isSmall));
  }
}

const nudge = (place: Place, dx: number, dy: number): void => {
  place.vx = (place.vx ?? 0) + dx;
  place.vy = (place.vy ?? 0) + dy;
};

/** Most places are: this is all that is asked of them. */
const isFar = (place: Place, from: Place, to: Place): boolean =>
  place.x < Math.min(from.x, to.x) - CLEAR ||
  place.x > Math.max(from.x, to.x) + CLEAR ||
  place.y < Math.min(from.y, to.y) - CLEAR - 16 ||
  place.y > Math.max(from.y, to.y) + CLEAR;

/** Pushes places off the lines of links that are not theirs, and those lines away from them. */
function keepClear(edges: Edge[]): { (alpha: number): void; initialize: (places: Place[]) => void } {
  let all: Place[] = [];
  let ends: [Place, Place][] = [];
  const force = (alpha: number): void => {
    for (const [from, to] of ends)
      for (const place of all) {
        if (place === from || place === to || isFar(place, from, to)) continue;
        const clear = isNode(place) ? CLEAR : CLEAR_OF_MARK;
        const middle = { x: place.x, y: place.y + 16 };
        const near = nearestOn(from, to, middle);
        if (near.distance >= clear || near.share <= 0.05 || near.share >= 0.95) continue;
        // A place right on the line leaves it to the side.
        const [ux, uy] = near.distance > 1 ? [(middle.x - near.x) / near.distance, (middle.y - near.y) / near.distance] : [near.ny, -near.nx];
        const push = (clear - near.distance) * alpha * 0.6;
        nudge(place, ux * push, uy * push);
        nudge(from, -0.3 * ux * push, -0.3 * uy * push);
        nudge(to, -0.3 * ux * push, -0.3 * uy * push);
      }
  };
  force.initialize = (places: Place[]): void => {
    all = places;
    const known = new Map(places.map((place) => [place.id, place]));
    ends = edges.flatMap((one) => {
      const [from, to] = [known.get(one.from), known.get(one.to)];
      return from && to ? [[from, to] as [Place, Place]] : [];
    });
  };
  return force;
}

/** Numbers from 0 to 1 that are the same at each look. */
function dice(seed: number): () => number {
  let state = seed * 7919 + 17;
  return () => {
    state = (state * 1103515245 + 12345) % 2147483648;
    return state / 2147483648;
  };
}

/** A tree that reaches all from one of them, breadth first: each -> those behind it. */
function branches(names: string[], edges: Edge[], roll: () => number): { roots: string[]; behind: Map<string, string[]> } {
  const beside = new Map(names.map((id) => [id, [] as string[]]));
  for (const { from, to } of edges) {
    beside.get(from)?.push(to);
    beside.get(to)?.push(from);
  }
  const weight = new Map(names.map((id) => [id, (beside.get(id)?.length ?? 0) * 2 + 3 * roll()]));
  const heaviest = (ids: string[]): string[] => ids.sort((one, other) => (weight.get(other) ?? 0) - (weight.get(one) ?? 0));
  const behind = new Map<string, string[]>();
  const roots: string[] = [];
  for (const root of heaviest([...names])) {
    if (behind.has(root)) continue;
    roots.push(root);
    behind.set(root, []);
    const queue = [root];
    for (let id = queue.shift(); id !== undefined; id = queue.shift())
      for (const next of (beside.get(id) ?? []).map((one) => [roll(), one] as const).sort(([one], [other]) => one - other)) {
        if (behind.has(next[1])) continue;
        behind.set(next[1], []);
        behind.get(id)?.push(next[1]);
        queue.push(next[1]);
      }
  }
  return { roots, behind };
}

/** Places as the rings of a tree: no branch crosses another.  `seed` turns and mixes the branches. */
function rings(names: string[], edges: Edge[], seed: number, aspect: number): Map<string, Point> {
  const roll = dice(seed);
  const { roots, behind } = branches(names, edges, roll);
  const leaves = new Map<string, number>();
  const size = (id: string): number => {
    const of = Math.max(1, (behind.get(id) ?? []).reduce((all, one) => all + size(one), 0));
    leaves.set(id, of);
    return of;
  };
  const found = new Map<string, Point>();
  const [wide, high] = [RING * Math.sqrt(aspect), RING / Math.sqrt(aspect)];
  const spread = (ids: string[], from: number, to: number, depth: number): void => {
    const all = ids.reduce((sum, id) => sum + (leaves.get(id) ?? 1), 0);
    let at = from;
    for (const id of ids) {
      const end = at + ((to - from) * (leaves.get(id) ?? 1)) / all;
      const turn = (at + end) / 2;
      found.set(id, { x: wide * depth * Math.cos(turn), y: high * depth * Math.sin(turn) });
      spread(behind.get(id) ?? [], at, end, depth + 1);
      at = end;
    }
  };
  roots.forEach(size);
  const turned = 2 * Math.PI * roll();
  spread(roots, turned, turned + 2 * Math.PI, roots.length > 1 ? 1 : 0);
  return found;
}

function settle(start: Map<string, Point>, kinds: Wanted["kinds"], edges: Edge[], card: Card): Place[] {
  const places: Place[] = [...start].map(([id, { x, y }]) => ({ id, kind: kinds.get(id) ?? "node", x, y }));
  const strings = edges.map((one) => ({ source: one.from, target: one.to, kind: one.kind }));
  const isWide = card.aspect >= 1;
  const pull = [0.06 / card.aspect, 0.06 * card.aspect];
  const [long, near] = card.isSmall ? [160, 105] : [280, 140];
  forceSimulation<Place>(places)
    .force("link", forceLink<Place, (typeof strings)[number]>(strings).id((place) => place.id)
      .distance((one) => (one.kind === "link" || one.kind === "down" ? long : near)).strength(0.7))
    .force("charge", forceManyBody<Place>().strength((place) => (isNode(place) ? (isWide ? -2200 : -1300) : -420)))
    .force("collide", forceCollide<Place>((place) => (isNode(place) ? 92 : 62)))
    .force("x", forceX<Place>(0).strength(pull[0] ?? 0))
    .force("y", forceY<Place>(0).strength(pull[1] ?? 0))
    .force("clear", keepClear(edges))
    .stop()
    .tick(places.length > SMALL_NETWORK ? TICKS / 2 : TICKS);
  return places;
}

/** How bad a layout is: links that cross, and places on links that are not theirs. */
function faults(places: Place[], edges: Edge[]): number {
  const known = new Map(places.map((place) => [place.id, place]));
  const lines = edges.flatMap((one) => {
    const [from, to] = [known.get(one.from), known.get(one.to)];
    return from && to ? [{ from, to }] : [];
  });
  let found = 0;
  lines.forEach((one, number) => {
    for (const other of lines.slice(number + 1)) if (crosses(one.from, one.to, other.from, other.to)) found += 2;
    for (const place of places) {
      if (place === one.from || place === one.to) continue;
      const near = nearestOn(one.from, one.to, { x: place.x, y: place.y + 16 });
      if (near.distance < (isNode(place) ? 70 : 40)) found += 1;
    }
  });
  return found;
}

/** Places of which one covers the other, or its words. */
function crowded(places: Place[], isSmall: boolean): number {
  const boxes = places.map((place) => boxesOf(place, isSmall));
  let found = 0;
  boxes.forEach((one, number) => {
    for (const other of boxes.slice(number + 1)) if (one.some((box) => other.some((there) => overlap(box, there)))) found += 1;
  });
  return found;
}

/** The rectangle that holds all boxes. */
export function extent(boxes: Box[]): Box {
  return {
    left: Math.min(...boxes.map((one) => one.left)),
    top: Math.min(...boxes.map((one) => one.top)),
    right: Math.max(...boxes.map((one) => one.right)),
    bottom: Math.max(...boxes.map((one) => one.bottom)),
  };
}

/** Fills the card: places go apart in the direction in which there is room. */
function stretch(places: Place[], card: Card): void {
  if (places.length < 2) return;
  const points = extent(places.map((place) => around(place.x, place.y, 0, 0)));
  const all = extent(places.flatMap((place) => boxesOf(place, card.isSmall)));
  const [width, height] = [points.right - points.left, points.bottom - points.top];
  const [edgeX, edgeY] = [all.right - all.left - width + 2 * MARGIN, all.bottom - all.top - height + 2 * MARGIN];
  const limited = (share: number): number => Math.min(STRETCH_MAX, Math.max(1, share));
  const byX = width > 1 ? limited((card.aspect * (height + edgeY) - edgeX) / width) : 1;
  const byY = height > 1 ? limited(((width + edgeX) / card.aspect - edgeY) / height) : 1;
  for (const place of places) {
    place.x *= byX;
    place.y *= byY;
  }
}

/** Brings places nearer to each other while nothing comes to cover anything: the nearer, the larger is what is drawn. */
function tighten(places: Place[], edges: Edge[], card: Card): void {
  const badness = (of: Place[]): number => faults(of, edges) + crowded(of, card.isSmall) + worded(of, edges, card.isSmall);
  const least = card.isSmall ? SHORT_SMALL : SHORT;
  const bad = badness(places);
  for (const share of [0.7, 0.75, 0.8, 0.85, 0.9, 0.95]) {
    const nearer = places.map((place) => ({ ...place, x: place.x * share, y: place.y * share }));
    if (shortest(nearer, edges) < least || badness(nearer) > bad) continue;
    places.forEach((place) => {
      place.x *= share;
      place.y *= share;
    });
    return;
  }
}

/** The length of the shortest link. */
function shortest(places: Place[], edges: Edge[]): number {
  const known = new Map(places.map((place) => [place.id, place]));
  return Math.min(...edges.filter((one) => one.kind === "link" || one.kind === "down").map((one) => {
    const [from, to] = [known.get(one.from), known.get(one.to)];
    return from && to ? Math.hypot(from.x - to.x, from.y - to.y) : Infinity;
  }));
}

/** Corners of a node, the best first. */
const CORNERS = [[1, -1], [-1, -1], [1, 1], [-1, 1]] as const;

/** A mark at the corner of a node that links leave free. */
function atCorner(id: string, kind: Place["kind"], host: Place, places: Map<string, Place>, edges: Edge[], taken: Box[]): Place {
  const lines = edges.filter((one) => one.from === host.id || one.to === host.id).flatMap((one) => {
    const other = places.get(one.from === host.id ? one.to : one.from);
    return other ? [other] : [];
  });
  const tried = CORNERS.map(([right, down]) => {
    const place: Place = { id, kind, x: host.x + 54 * right, y: host.y + 50 * down, beside: host.id, isLeft: right < 0 };
    const [box] = boxesOf(place, false);
    const middle = box ? { x: (box.left + box.right) / 2, y: place.y } : place;
    const hit = lines.filter((other) => nearestOn(host, other, middle).distance < 30 || nearestOn(host, other, place).distance < 24).length;
    return { place, bad: hit + taken.filter((one) => box && overlap(box, one)).length };
  });
  const least = Math.min(...tried.map((one) => one.bad));
  return (tried.find((one) => one.bad === least) ?? { place: host }).place;
}

/** As before if little changed: a new layout has to be better than the old places are. */
function arranged(found: Wanted, edges: Edge[], names: string[], before: Layout | null, card: Card): Place[] {
  const known = before ? new Map(names.map((id, number) => {
    const there = before.places.get(id);
    const turn = (2 * Math.PI * number) / names.length;
    return [id, there ?? { x: 260 * Math.cos(turn), y: 180 * Math.sin(turn) }];
  })) : null;
  let best: Place[] | null = null;
  let least = Infinity;
  const tries = names.length > SMALL_NETWORK ? 1 : TRIES;
  for (let seed = known ? -1 : 0; seed < tries && least > 0; seed += 1) {
    if (seed >= 0 && best && tries === 1) break;
    const places = settle(seed < 0 && known ? known : rings(names, edges, seed, card.aspect), found.kinds, edges, card);
    stretch(places, card);
    if (tries > 1) turnWords(new Map(places.map((place) => [place.id, place])), edges, card.isSmall);
    const bad = faults(places, edges) + (tries > 1 ? crowded(places, card.isSmall) + worded(places, edges, card.isSmall) : 0);
    if (bad < least) [best, least] = [places, bad];
  }
  return best ?? [];
}

/** A line as boxes along it. */
function pieces(from: Point, to: Point): Box[] {
  const number = Math.max(1, Math.round(Math.hypot(to.x - from.x, to.y - from.y) / PIECE));
  return Array.from({ length: number + 1 }, (_, place) =>
    around(from.x + ((to.x - from.x) * place) / number, from.y + ((to.y - from.y) * place) / number, 8, 8));
}

/** The label of each link stands beside it, clear of marks, of other links and of other labels if there is room. */
function labelled(places: Map<string, Place>, edges: Edge[], taken: Box[], isSmall: boolean): Map<string, Point> {
  const found = new Map<string, Point>();
  if (isSmall) return found;
  const ends = edges.flatMap((edge) => {
    const [from, to] = [places.get(edge.from), places.get(edge.to)];
    return from && to ? [{ edge, from, to, boxes: places.size > SMALL_NETWORK ? [] : pieces(from, to) }] : [];
  });
  for (const { edge, from, to } of ends) {
    if (edge.kind !== "link" && edge.kind !== "down") continue;
    const { nx, ny } = nearestOn(from, to, from);
    const away = (Math.abs(ny) * LABEL.width + Math.abs(nx) * LABEL.height) / 2 + GAP;
    const beside = SHARES.flatMap((share) => {
      const on = { x: from.x + (to.x - from.x) * share, y: from.y + (to.y - from.y) * share };
      return [{ x: on.x + ny * away, y: on.y - nx * away }, { x: on.x - ny * away, y: on.y + nx * away }];
    });
    const others = ends.filter((one) => one.edge !== edge).flatMap((one) => one.boxes);
    const { at } = clearest(beside, LABEL.width, LABEL.height, [...taken, ...others]);
    found.set(edge.key, at);
    taken.push(around(at.x, at.y, LABEL.width, LABEL.height));
  }
  return found;
}

/** The shape of the card in steps: a few pixels more change nothing. */
const stepped = (aspect: number): number => 2 ** (Math.round(Math.log2(aspect) * 4) / 4);

export function layout(picture: Picture, before: Layout | null, shown: Card): Layout {
  const card = { aspect: shown.aspect, isSmall: shown.isSmall };
  const found = wanted(picture);
  const { kinds, beside } = found;
  const edges = [...found.edges.values()].sort((one, other) => (one.key < other.key ? -1 : 1));
  const names = [...kinds.keys()].filter((id) => !beside.has(id)).sort();
  const signature = JSON.stringify([stepped(card.aspect), card.isSmall, names, [...beside].sort(), edges.map((one) => one.key)]);
  if (before?.signature === signature) {
    const places = new Map([...before.places].map(([id, place]) => [id, { ...place, kind: kinds.get(id) ?? "node" }]));
    return { ...before, places, edges };
  }
  const places = new Map(arranged(found, edges, names, before, card).map((place) => [place.id, place]));
  turnWords(places, edges, card.isSmall);
  stretch([...places.values()], card);
  if (places.size <= SMALL_NETWORK) tighten([...places.values()], edges, card);
  turnWords(places, edges, card.isSmall);
  const boxes = new Map([...places.values()].map((place) => [place.id, boxesOf(place, card.isSmall)]));
  const taken = [...boxes.values()].flat();
  for (const [id, node] of beside) {
    const host = places.get(node);
    if (!host) continue;
    // It leans on the ring of its node.
    const others = taken.filter((box) => box !== boxes.get(node)?.[0]);
    const place = atCorner(id, kinds.get(id) ?? "worker", host, places, edges, others);
    places.set(id, place);
    taken.push(...boxesOf(place, card.isSmall));
  }
  const labels = labelled(places, edges, taken, card.isSmall);
  return { signature, places, edges, labels, taken };
}

/** The rectangle that shows everything, with a margin. */
export function frame(found: Layout, isSmall: boolean): string {
  const { taken } = found;
  const most = isSmall ? { width: 400, height: 460 } : { width: 760, height: 470 };
  const all = extent(taken);
  const box = { left: all.left - MARGIN, top: all.top - MARGIN, right: all.right + MARGIN, bottom: all.bottom + MARGIN };
  if (taken.length === 0) return "-300 -200 600 400";
  const width = Math.max(most.width, box.right - box.left);
  const height = Math.max(most.height, box.bottom - box.top);
  const [left, top] = [(box.left + box.right - width) / 2, (box.top + box.bottom - height) / 2];
  return [left, top, width, height].map((one) => one.toFixed(0)).join(" ");
}
