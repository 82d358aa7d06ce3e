/** Small pieces that many pages have: facts with their names, tiles, a coloured state, a side panel. */
import type { ComponentChildren, JSX } from "preact";

export type Level = "good" | "warning" | "error" | "off";

export function State(given: { level: Level; children: ComponentChildren }): JSX.Element {
  return <span class={`state ${given.level}`}>{given.children}</span>;
}

export function Facts(given: { facts: [string, ComponentChildren][] }): JSX.Element {
  return (
    <dl>
      {given.facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Tiles(given: { tiles: [string, ComponentChildren][] }): JSX.Element {
  return (
    <ul class="tiles">
      {given.tiles.map(([name, value]) => (
        <li key={name}>
          <span>{name}</span>
          <strong>{value}</strong>
        </li>
      ))}
    </ul>
  );
}

export function Panel(given: { label: string; title: string; detail?: boolean; close: () => void; children: ComponentChildren }): JSX.Element {
  return (
    <section class={`panel ${given.detail === true ? "detail" : ""}`} aria-label={given.label}>
      <header>
        <h2>{given.title}</h2>
        <button type="button" onClick={given.close} aria-label="Close details">
          ✕
        </button>
      </header>
      {given.children}
    </section>
  );
}

export function Trouble(given: { text: string }): JSX.Element | null {
  return given.text === "" ? null : <p class="trouble" role="alert">{given.text}</p>;
}
