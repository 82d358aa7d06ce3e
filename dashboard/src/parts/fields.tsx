/** Fields of forms, each with its label. */
import type { ComponentChildren, JSX } from "preact";

interface FieldOf {
  label: string;
  value: string;
  change: (value: string) => void;
  beside?: boolean;
}

interface InputWords {
  type?: "text" | "search" | "password" | "number";
  autocomplete?: "username" | "current-password" | "new-password" | "off";
  required?: boolean;
  disabled?: boolean;
  spellcheck?: boolean;
  min?: string;
  max?: string;
}

function Labelled(given: { label: string; beside?: boolean | undefined; children: ComponentChildren }): JSX.Element {
  return (
    <label class={given.beside === true ? "beside" : undefined}>
      {given.label}
      {given.children}
    </label>
  );
}

export function TextField({ label, value, change, beside, type, ...more }: FieldOf & InputWords): JSX.Element {
  const words = { ...more, type: type ?? "text" } as { type: "text" };
  return (
    <Labelled label={label} beside={beside}>
      <input {...words} value={value} onInput={(event) => { change(event.currentTarget.value); }} />
    </Labelled>
  );
}

/** Several values, one to a line. */
export function LinesField({ label, value, change, rows, optional }: FieldOf & { rows: number; optional?: boolean }): JSX.Element {
  return (
    <Labelled label={label}>
      <textarea rows={rows} required={optional !== true} spellcheck={false} value={value} onInput={(event) => { change(event.currentTarget.value); }} />
    </Labelled>
  );
}

/** `options`: values with what is shown for each. */
export function Choice({ label, value, change, beside, options }: FieldOf & { options: [string, string][] }): JSX.Element {
  return (
    <Labelled label={label} beside={beside}>
      <select value={value} onChange={(event) => { change(event.currentTarget.value); }}>
        {options.map(([one, title]) => (
          <option key={one} value={one}>
            {title}
          </option>
        ))}
      </select>
    </Labelled>
  );
}

export const named = (names: string[]): [string, string][] => names.map((name) => [name, name]);

/** Fields above a list; they act as they are changed. */
export function Filters(given: { children: ComponentChildren }): JSX.Element {
  return (
    <form class="filters" onSubmit={(event) => { event.preventDefault(); }}>
      {given.children}
    </form>
  );
}
