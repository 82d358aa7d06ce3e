/** Alarms of all nodes: statements about the present that go when their cause goes. */
import type { JSX } from "preact";
import { type Alarm, type Picture, isAlive, missing } from "../model";

export interface NodeAlarm extends Alarm {
  node: string;
}

export function alarmsOf(picture: Picture): NodeAlarm[] {
  const found: NodeAlarm[] = picture.nodes.filter(isAlive).flatMap((row) => row.alarms.map((one) => ({ ...one, node: row.node })));
  for (const node of missing(picture))
    if (!found.some((one) => one.text === `node ${node} cannot be reached`))
      found.push({ level: "error", text: "it does not answer", node });
  return found.sort((one, other) => (one.level === other.level ? 0 : one.level === "error" ? -1 : 1));
}

export function AlarmsPage(given: { picture: Picture }): JSX.Element {
  const found = alarmsOf(given.picture);
  return (
    <>
      <h1>Alarms</h1>
      {found.length === 0 ? (
        <p class="nothing">Nothing is wrong.</p>
      ) : (
        <ul class="alarms">
          {found.map((one) => (
            <li key={`${one.node} ${one.text}`} class={`alarm ${one.level}`}>
              <span class="level">{one.level}</span> <strong>{one.node}</strong> {one.text}
            </li>
          ))}
        </ul>
      )}
    </>
  );
}
