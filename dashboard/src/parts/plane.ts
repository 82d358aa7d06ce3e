/** Points, lines and boxes: how near, how far apart, and where there is room. */

export interface Point {
  x: number;
  y: number;
}

export interface Box {
  left: number;
  top: number;
  right: number;
  bottom: number;
}

export const around = (x: number, y: number, width: number, height: number): Box => ({
  left: x - width / 2,
  top: y - height / 2,
  right: x + width / 2,
  bottom: y + height / 2,
});

/** The area that two boxes share. */
const shared = (one: Box, other: Box): number =>
  Math.max(0, Math.min(one.right, other.right) - Math.max(one.left, other.left)) *
  Math.max(0, Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top));

export const overlap = (one: Box, other: Box): boolean => shared(one, other) > 0;

/** The first point around which a box is free, or the one where it covers least. */
export function clearest(points: Point[], width: number, height: number, taken: Box[]): { at: Point; covers: number } {
  let best = { at: points[0] ?? { x: 0, y: 0 }, covers: Infinity };
  for (const at of points) {
    const box = around(at.x, at.y, width, height);
    const covers = taken.reduce((all, one) => all + shared(box, one), 0);
    if (covers < best.covers) best = { at, covers };
    if (covers === 0) break;
  }
  return best;
}

export interface Near extends Point {
  distance: number;
  /** Of the line, from its beginning. */
  share: number;
  /** The direction of the line. */
  nx: number;
  ny: number;
}

/** The point of a line that is nearest to another. */
export function nearestOn(from: Point, to: Point, point: Point): Near {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const square = dx * dx + dy * dy || 1;
  const share = Math.min(1, Math.max(0, ((point.x - from.x) * dx + (point.y - from.y) * dy) / square));
  const [x, y] = [from.x + dx * share, from.y + dy * share];
  const length = Math.sqrt(square);
  return { x, y, share, distance: Math.hypot(point.x - x, point.y - y), nx: dx / length, ny: dy / length };
}

const side = (from: Point, to: Point, point: Point): number =>
  (to.x - from.x) * (point.y - from.y) - (to.y - from.y) * (point.x - from.x);

/** Lines that only meet at an end do not cross. */
export function crosses(from: Point, to: Point, other: Point, end: Point): boolean {
  if (from === other || from === end || to === other || to === end) return false;
  return side(from, to, other) * side(from, to, end) < 0 && side(other, end, from) * side(other, end, to) < 0;
}

export const isIn = (point: Point, box: Box): boolean =>
  point.x > box.left && point.x < box.right && point.y > box.top && point.y < box.bottom;

/** Does a line pass through a box? */
export function passes(from: Point, to: Point, box: Box): boolean {
  if (isIn(from, box) || isIn(to, box)) return true;
  const corner = (x: number, y: number): Point => ({ x, y });
  return (
    crosses(from, to, corner(box.left, box.top), corner(box.right, box.bottom)) ||
    crosses(from, to, corner(box.left, box.bottom), corner(box.right, box.top))
  );
}
