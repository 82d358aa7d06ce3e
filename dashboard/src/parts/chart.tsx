/** A line chart of five minutes at most: its time below, the greatest value as text. */
import type { JSX } from "preact";
import { duration } from "../format";

const WIDTH = 300;
const HEIGHT = 60;
/** Moments that fill the width at first; later as many as there are. */
const FIRST = 20;

/** The seconds that the width of charts stands for, with so many values, a second apart. */
export const secondsOf = (values: number): number => Math.max(FIRST, values) - 1;

/** `write` says a value in words: that of now, and the greatest, which is as high as the chart. */
export function Chart(given: { title: string; values: number[]; now: number; seconds: number; write: (value: number) => string; kind?: string }): JSX.Element {
  const { values, write } = given;
  const greatest = Math.max(0, ...values);
  const most = greatest || 1;
  const step = WIDTH / (Math.max(FIRST, values.length) - 1);
  const left = WIDTH - (values.length - 1) * step;
  const points = values.map((value, place) => {
    const x = left + place * step;
    const y = HEIGHT - 2 - (value / most) * (HEIGHT - 6);
    return `${x.toFixed(1)},${y.toFixed(1)}`;
  });
  const last = points.at(-1)?.split(",");
  return (
    <figure class={`chart ${given.kind ?? ""}`}>
      <figcaption>
        <span>{given.title}</span>
        <strong>{write(given.now)}</strong>
        <span class="most">{values.length > 0 && `max. ${write(greatest)}`}</span>
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
        {points.length > 1 && (
          <>
            <polygon class="area" points={`${left.toFixed(1)},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`} />
            <polyline class="line" points={points.join(" ")} />
          </>
        )}
        {last && points.length === 1 && <circle class="dot" cx={last[0]} cy={last[1]} r="2" />}
      </svg>
      <div class="axis" aria-hidden="true">
        <span>{duration(given.seconds)} ago</span>
        <span>now</span>
      </div>
    </figure>
  );
}
