/** Decisions of adaptation in plain words: a rule is a row. */

interface Decision {
  act: string;
  /** The gateway or worker that it is about. */
  who: string;
  source: string;
  target: string;
  /** The numbers that its rule looked at, by name. */
  of: (name: string) => string;
}

const REASONS: Record<string, (one: Decision) => string> = {
  balance: ({ source, target, who, of }) =>
    `the load is spread: ${source} had ${of("here")}, ${target} ${of("there")} of ${of("total")}, and ${who} brings ${of("own")}`,
  "lower-group": ({ target, of }) =>
    of("gain_ms") === "?" ? `${target} is in a nearer group, ${of("distance_ms")} ms away` : `${target} is nearer by ${of("gain_ms")} ms (at least ${of("needed_ms")} ms are wanted)`,
  evacuation: ({ source, of }) => `${source} is being emptied; the new node is ${of("distance_ms")} ms away`,
  pressure: ({ of }) => `the pressure of ${of("gateways")} gateways was ${of("pressure")}, above ${of("threshold")}`,
  overload: ({ of }) => `node ${of("node")} had too much to do: ${percent(of("cpu"))} of its processors, ${of("lag_ms")} ms late`,
  "low-pressure": ({ of }) => `its worth to ${of("gateways")} gateways was ${of("pressure")}, below ${of("threshold")}`,
};

const ACTS: Record<string, (one: Decision) => string> = {
  move: ({ who, source, target }) => `${who} goes from ${source} to ${target}`,
  start: ({ who }) => `the node of ${who} is started`,
  stop: ({ who }) => `the node of ${who} is emptied and stopped`,
  resume: ({ who }) => `the node of ${who} serves on`,
};

/** 6.0624 -> "6.06"; words and whole numbers stay as they are. */
const short = (text: string): string => (/^-?\d+\.\d+$/.test(text) ? `${Number(Number(text).toPrecision(3))}` : text);

const percent = (share: string): string => `${Math.round(100 * Number(share))} %`;

/** As coordinators write them: `move G from A to B (rule: name number, name number)`. */
const MOVE = /^(move) (.+) from (.+) to (.+) \(([a-z-]+)(?:: (.*))?\)$/s;
const OTHER = /^(start|stop|resume) (.+)() *() \(([a-z-]+)(?:: (.*))?\)$/s;

/** Decision and reason; a decision of another form as it is. */
export function inWords(text: string): { decision: string; reason: string } {
  const found = MOVE.exec(text) ?? OTHER.exec(text);
  const [, act = "", who = "", source = "", target = "", rule = "", list = ""] = found ?? [];
  const numbers = new Map(list.split(", ").map((one) => {
    const space = one.lastIndexOf(" ");
    return [one.slice(0, space), one.slice(space + 1)] as const;
  }));
  const one = { act, who, source, target, of: (name: string) => short(numbers.get(name) ?? "?") };
  const [acted, reason] = [ACTS[act], REASONS[rule]];
  return acted && reason ? { decision: acted(one), reason: reason(one) } : { decision: text, reason: "" };
}
