/** The topic tree with rates and last values, one topic in detail, publishing, and watching messages pass. */
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { get, post } from "../api";
import { bytes, count, duration, rate } from "../format";
import { Trouble } from "../parts/facts";
import { Choice, TextField, named } from "../parts/fields";
import { inWords, usePolled } from "../parts/polled";
import { pretty } from "../parts/pretty";
import { treeStep } from "../parts/tree_keys";

interface Level {
  name: string;
  topic: string;
  /** At least so many: nodes know different ones. */
  topics: number;
  has_children: boolean;
  messages: number;
  bytes: number;
  last: string | null;
  last_bytes: number;
  age_s: number | null;
  retained: string | null;
  retained_bytes: number;
  retained_age_s: number | null;
}

interface Answer {
  levels: Level[];
  is_cut: boolean;
  silent: string[];
  /** Every so many messages one was looked at. */
  stride: number;
  left_out: number;
  /** Retained messages are still being added. */
  is_counting: boolean;
}

interface Message {
  time: number;
  bytes: number;
  /** Of them so many are here. */
  kept: number;
  payload: string;
  node: string;
}

interface Seen {
  time: number;
  topic: string;
  payload: string;
  node: string;
  number: number;
}

/** Messages per second, from two answers. */
function useRates(answer: Answer | null): Map<string, number> {
  const before = useRef<{ at: number; answer: Answer; rates: Map<string, number> } | null>(null);
  if (answer && before.current?.answer !== answer) {
    const now = performance.now();
    const old = before.current;
    const seconds = old ? (now - old.at) / 1000 : 0;
    const was = new Map(old?.answer.levels.map((one) => [one.topic, one.messages]) ?? []);
    const rates = new Map<string, number>();
    if (seconds > 0)
      for (const one of answer.levels) rates.set(one.topic, Math.max(0, one.messages - (was.get(one.topic) ?? one.messages)) / seconds);
    before.current = { at: now, answer, rates };
  }
  return before.current?.rates ?? new Map<string, number>();
}

/** What the branches of the tree have in common. */
interface Choosing {
  chosen: string | null;
  choose: (topic: string) => void;
  /** Topics whose branches are open. */
  open: ReadonlySet<string>;
  toggle: (topic: string) => void;
}

/** An identifier has no spaces. */
const idOf = (topic: string): string => `topic-${encodeURIComponent(topic)}`;

const topics = (number: number): string => `at least ${count(number)} ${number === 1 ? "topic" : "topics"}`;

function Row(given: { level: Level; rate: number } & Choosing): JSX.Element {
  const { level, open } = given;
  return (
    <div class={`level ${given.chosen === level.topic ? "chosen" : ""}`} data-topic={level.topic}>
      {level.has_children ? (
        <button
          type="button"
          class="twig"
          tabIndex={-1}
          onClick={() => { given.toggle(level.topic); }}
          aria-label={`${open.has(level.topic) ? "Close" : "Open"} ${level.topic}`}
        >
          {open.has(level.topic) ? "▾" : "▸"}
        </button>
      ) : (
        <span class="twig" />
      )}
      <button type="button" class="link" tabIndex={-1} onClick={() => { given.choose(level.topic); }}>
        {level.name === "" ? "(empty)" : level.name}
      </button>
      {level.has_children && <span class="faint">{topics(level.topics)}</span>}
      {given.rate > 0 && <span class="faint">{rate(given.rate)}</span>}
      {level.last !== null && level.last !== level.retained && <code class="value">{level.last}</code>}
      {level.retained !== null && <span class="mark">retained</span>}
      {level.retained !== null && (
        // It is often short, and must not be squeezed by a long message before it.
        <code class="value" style={level.last === level.retained ? {} : { flexShrink: 0, maxWidth: "35%" }}>{level.retained}</code>
      )}
    </div>
  );
}

/** The rows below a prefix.  They stand in a list that the caller makes. */
function Branch(given: { prefix: string | null; depth: number } & Choosing): JSX.Element {
  const { prefix, depth, ...choosing } = given;
  const [after, setAfter] = useState<string[]>([]);
  const last = after.at(-1);
  const asked = { ...(prefix === null ? {} : { prefix }), ...(last === undefined ? {} : { after: last }) };
  const [found, trouble] = usePolled(() => get("/dashboard/topics", asked) as Promise<Answer>, [prefix, last]);
  const rates = useRates(found);
  if (trouble !== "") return <li role="treeitem" class="trouble">{trouble}</li>;
  if (!found) return <li role="treeitem" class="nothing">…</li>;
  if (found.levels.length === 0 && depth === 0)
    return (
      <li role="treeitem" class="nothing">
        {prefix === null ? "Nothing was published since you opened this page, and nothing is retained." : "No topic is known below this one."}
      </li>
    );
  return (
    <>
      {found.levels.map((level) => (
        <li
          key={level.name}
          id={idOf(level.topic)}
          role="treeitem"
          data-path={level.topic}
          aria-expanded={level.has_children ? given.open.has(level.topic) : undefined}
          aria-selected={given.chosen === level.topic}
        >
          <Row level={level} rate={rates.get(level.topic) ?? 0} {...choosing} />
          {given.open.has(level.topic) && (
            <ul class="tree" role="group">
              <Branch prefix={level.topic} depth={depth + 1} {...choosing} />
            </ul>
          )}
        </li>
      ))}
      {(found.is_cut || after.length > 0) && (
        <li role="treeitem">
          <p class="pager">
            <button type="button" disabled={after.length === 0} onClick={() => { setAfter(after.slice(0, -1)); }}>
              ← Before
            </button>
            <button type="button" disabled={!found.is_cut} onClick={() => { setAfter([...after, found.levels.at(-1)?.name ?? ""]); }}>
              After →
            </button>
          </p>
        </li>
      )}
      {depth === 0 && found.is_counting && <li role="none" class="faint">Retained topics are still being counted.</li>}
      {depth === 0 && found.stride > 1 && <li role="none" class="faint">Sampled: one of {found.stride} messages is looked at; rates are estimates.</li>}
      {depth === 0 && found.left_out > 0 && <li role="none" class="faint">There was no room for {count(found.left_out)} messages on further topics.</li>}
    </>
  );
}

/** The whole tree, or what is below a prefix. */
function Tree(given: { root: string | null; chosen: string | null; choose: (topic: string) => void }): JSX.Element {
  const [open, setOpen] = useState<ReadonlySet<string>>(new Set());
  const tree = useRef<HTMLUListElement>(null);
  const toggle = (topic: string): void => {
    const next = new Set(open);
    if (!next.delete(topic)) next.add(topic);
    setOpen(next);
  };
  useLayoutEffect(() => {
    // The row that is chosen may be on another page of its branch, or below one that is closed.
    const id = given.chosen === null ? null : idOf(given.chosen);
    if (id !== null && document.getElementById(id)) tree.current?.setAttribute("aria-activedescendant", id);
    else tree.current?.removeAttribute("aria-activedescendant");
  });
  const pressed = (event: KeyboardEvent): void => {
    if (!tree.current) return;
    const step = treeStep(event, tree.current, (item) => item.dataset["path"] === given.chosen);
    if (!step) return;
    event.preventDefault();
    if (step.toggle?.dataset["path"] !== undefined) toggle(step.toggle.dataset["path"]);
    if (step.choose?.dataset["path"] === undefined) return;
    tree.current.focus();
    step.choose.firstElementChild?.scrollIntoView({ block: "nearest" });
    given.choose(step.choose.dataset["path"]);
  };
  return (
    <ul ref={tree} class="tree" role="tree" aria-label="Topics" tabIndex={0} onKeyDown={pressed}>
      <Branch key={given.root} prefix={given.root} depth={0} chosen={given.chosen} choose={given.choose} open={open} toggle={toggle} />
    </ul>
  );
}

/** Shows a part of a large tree without paging to it. */
function Jump(given: { go: (prefix: string | null) => void }): JSX.Element {
  const [prefix, setPrefix] = useState("");
  const submit = (event: Event): void => {
    event.preventDefault();
    const plain = prefix.replace(/\/#?$/, "");
    given.go(plain === "" || plain === "#" ? null : plain);
  };
  return (
    <form class="row" role="search" onSubmit={submit}>
      <TextField label="Go to topic or prefix" type="search" spellcheck={false} value={prefix} change={setPrefix} />
      <button type="submit">Go</button>
    </form>
  );
}

const shownOf = (size: number, kept: number): string => `${bytes(size)}${size > kept ? `, the first ${bytes(kept)} shown` : ""}`;

const RETAINED_KEPT = 4096;

/** One topic as it is now. */
function Topic(given: { topic: string }): JSX.Element {
  const [found, trouble] = usePolled(
    () => get("/dashboard/topic", { topic: given.topic }) as Promise<{ level: Level | null; recent: Message[] }>,
    [given.topic],
    1000,
  );
  const level = found?.level;
  return (
    <section class="card" aria-label="Topic">
      <h2>
        <code>{given.topic}</code>
      </h2>
      <Trouble text={trouble} />
      {found && !level && <p class="nothing">Nothing was published on it since you opened this page.</p>}
      {level?.has_children === true && <p class="faint">{topics(level.topics)}; {count(level.messages)} {level.messages === 1 ? "message" : "messages"} at and below it</p>}
      {level && level.retained !== null && (
        <>
          <h3>Retained</h3>
          <pre tabIndex={0}>{pretty(level.retained)}</pre>
          <p class="faint">
            {shownOf(level.retained_bytes, RETAINED_KEPT)}, {duration(level.retained_age_s ?? 0)} old
          </p>
        </>
      )}
      {found && found.recent.length > 0 && (
        <>
          <h3>Last messages</h3>
          <ul class="messages" aria-label="Last messages" tabIndex={0}>
            {found.recent.map((one, at) => (
              <li key={`${one.node} ${one.time} ${at}`}>
                <span class="faint">
                  {new Date(one.time * 1000).toLocaleTimeString()} {one.node}, {shownOf(one.bytes, one.kept)}
                </span>
                <pre>{pretty(one.payload)}</pre>
              </li>
            ))}
          </ul>
        </>
      )}
    </section>
  );
}

function Publish(given: { topic: string }): JSX.Element {
  const [topic, setTopic] = useState(given.topic);
  const [payload, setPayload] = useState("");
  const [qos, setQos] = useState("1");
  const [retain, setRetain] = useState(false);
  const [said, setSaid] = useState("");
  const [trouble, setTrouble] = useState("");
  useEffect(() => { if (given.topic !== "") setTopic(given.topic); }, [given.topic]);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    try {
      await post("/publish", { topic, payload, qos: Number(qos), retain });
      setSaid(`published to ${topic}`);
      setTrouble("");
    } catch (error) {
      setSaid("");
      setTrouble(inWords(error));
    }
  };
  return (
    <form class="card" onSubmit={(event) => void submit(event)} aria-label="Publish">
      <h2>Publish</h2>
      <TextField label="Topic" required value={topic} change={setTopic} />
      <label>
        Payload
        <textarea rows={3} value={payload} onInput={(event) => { setPayload(event.currentTarget.value); }} />
      </label>
      <div class="row">
        <Choice label="QoS" beside value={qos} change={setQos} options={named(["0", "1", "2"])} />
        <label class="beside">
          <input type="checkbox" checked={retain} onChange={(event) => { setRetain(event.currentTarget.checked); }} />
          retain
        </label>
        <button type="submit" class="primary">
          Publish
        </button>
      </div>
      <Trouble text={trouble} />
      <p class="faint" role="status">{said}</p>
    </form>
  );
}

/** Messages of a filter as they come, the newest first. */
function Passing(given: { filter: string }): JSX.Element {
  const [id] = useState(() => crypto.getRandomValues(new Uint32Array(4)).join("-"));
  const after = useRef<Record<string, number>>({});
  const seen = useRef<Seen[]>([]);
  const [, trouble] = usePolled(
    async () => {
      const asked = { id, filter: given.filter, after: JSON.stringify(after.current) };
      const { rows } = (await get("/dashboard/watch", asked)) as { rows: Seen[] };
      for (const row of rows) after.current[row.node] = Math.max(after.current[row.node] ?? 0, row.number);
      seen.current = [...rows.sort((one, other) => other.time - one.time), ...seen.current].slice(0, 100);
      return seen.current;
    },
    [id],
    700,
  );
  return (
    <>
      <Trouble text={trouble} />
      {seen.current.length === 0 && <p class="nothing">Nothing has come yet.</p>}
      <ul class="messages" aria-label="Messages">
        {seen.current.map((one) => (
          <li key={`${one.node} ${one.number}`}>
            <span class="faint">{new Date(one.time * 1000).toLocaleTimeString()} {one.node}</span> <code>{one.topic}</code> <code class="value">{one.payload}</code>
          </li>
        ))}
      </ul>
    </>
  );
}

function Watch(given: { filter: string }): JSX.Element {
  const [filter, setFilter] = useState("");
  const [watched, setWatched] = useState<string | null>(null);
  useEffect(() => { if (given.filter !== "" && watched === null) setFilter(given.filter); }, [given.filter]);
  return (
    <form class="card" aria-label="Subscribe" onSubmit={(event) => { event.preventDefault(); setWatched(watched === null ? filter : null); }}>
      <h2>Subscribe</h2>
      <TextField label="Topic filter" required disabled={watched !== null} value={filter} change={setFilter} />
      <button type="submit" class={watched === null ? "primary" : ""}>
        {watched === null ? "Show messages as they come" : "Stop"}
      </button>
      {watched !== null && <Passing filter={watched} />}
    </form>
  );
}

export function TopicsPage(given: { operator: boolean }): JSX.Element {
  const [root, setRoot] = useState<string | null>(null);
  const [chosen, setChosen] = useState<string | null>(null);
  const go = (prefix: string | null): void => {
    setRoot(prefix);
    setChosen(prefix);
  };
  return (
    <>
      <h1>Topics</h1>
      <div class="beside-tree">
        <section aria-label="Topic tree">
          <Jump go={go} />
          {root !== null && (
            <p class="pager">
              <span>Below <code>{root}</code></span>
              <button type="button" onClick={() => { go(null); }}>All topics</button>
            </p>
          )}
          <Tree root={root} chosen={chosen} choose={setChosen} />
        </section>
        <div>
          {chosen !== null && <Topic key={chosen} topic={chosen} />}
          {given.operator && <Publish topic={chosen ?? ""} />}
          <Watch filter={chosen === null ? "" : `${chosen}/#`} />
        </div>
      </div>
    </>
  );
}
