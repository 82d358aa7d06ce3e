/** Numbers as people read them. */

const UNITS = ["", "k", "M", "G", "T"];

function scaled(value: number, step: number, units: string[], digits: number): string {
  let unit = 0;
  while (Math.abs(value) >= step && unit < units.length - 1) {
    value /= step;
    unit += 1;
  }
  const shown = unit === 0 ? (Number.isInteger(value) ? value.toString() : value.toFixed(digits)) : value.toPrecision(3);
  return `${shown}${units[unit] ?? ""}`;
}

/** 12345 -> "12.3k" */
export const count = (value: number): string => scaled(value, 1000, UNITS, 1);

/** 12345 -> "12,345" */
export const exact = (value: number): string => Math.round(value).toLocaleString("en-US");

export const bytes = (value: number): string =>
  `${scaled(value, 1024, ["", " Ki", " Mi", " Gi", " Ti"], 0)}${value < 1024 ? " B" : "B"}`;

export const rate = (value: number): string => `${value < 10 ? value.toFixed(1) : count(Math.round(value))}/s`;

export const percent = (value: number): string => `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;

export function milliseconds(value: number | null): string {
  if (value === null) return "–";
  return value < 1 ? `${value.toFixed(2)} ms` : value < 100 ? `${value.toFixed(1)} ms` : `${value.toFixed(0)} ms`;
}

export function duration(seconds: number): string {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}
