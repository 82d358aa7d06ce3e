/** The map: nodes, links, brokers of other makes, gateways, and clients as they move. */
import type { JSX } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { bytes, count, duration, milliseconds, percent, rate } from "../format";
import { NO_RATES, type NodeRow, type Rates, type View, coordinatorsOf, isAlive, pair, pressuresOf, waitsFor } from "../model";
import { Facts, Panel } from "../parts/facts";
import { type Flight, flights, isDrawn } from "../parts/moving";
import { type Edge, type Layout, type Place, RADIUS, type Side, frame, layout } from "../parts/layout";
import { type Point, around, clearest } from "../parts/plane";
import { bendOf, onWay } from "../parts/ways";
import { Table } from "../parts/table";
import { EvacuateDialog } from "./orders";

/** Dots that stand for clients around a node, at most. */
const DOTS = 24;
/** The arc of the pressure, around the dots. */
const GAUGE = RADIUS + 18;

function shorter(name: string, most: number): string {
  return name.length <= most ? name : `${name.slice(0, most - 1)}…`;
}

const at = (place: { x: number; y: number }): string => `translate(${place.x.toFixed(1)} ${place.y.toFixed(1)})`;

/** The height of words on a phone, where the map is drawn smaller, and elsewhere. */
const textSize = (isSmall: boolean): number => (isSmall ? 19 : 13);

type Line = [kind: string, text: string];

/** Lines of text below `y`; letters have a rim, so that a line of the map that passes behind them disturbs nobody. */
function Words(given: { x?: number; y: number; lines: Line[]; size: number; anchor?: "start" | "middle" | "end" }): JSX.Element | null {
  const { lines, size } = given;
  if (lines.length === 0) return null;
  const step = size * 1.2;
  return (
    <g class="words" transform={at({ x: given.x ?? 0, y: given.y })}>
      {lines.map(([kind, text], number) => (
        <text class={kind} key={`${kind} ${number}`} y={size + 1 + step * number} font-size={size} text-anchor={given.anchor ?? "middle"}>
          {text}
        </text>
      ))}
    </g>
  );
}

/** Words at the side of a mark that its layout chose. */
function Beside(given: { side: Side; reach: number; lines: Line[]; size: number }): JSX.Element | null {
  const { side, reach, lines, size } = given;
  const height = size * 1.2 * lines.length + 4;
  if (side === "below") return <Words y={reach} lines={lines} size={size} />;
  if (side === "above") return <Words y={-reach - height} lines={lines} size={size} />;
  const isRight = side === "right";
  return <Words x={isRight ? reach : -reach} y={-height / 2} lines={lines} size={size} anchor={isRight ? "start" : "end"} />;
}

interface Drawn {
  map: Layout;
  view: View;
  isSmall: boolean;
}

function endsOf(edge: Edge, view: View): NodeRow["links"] {
  const ends = view.picture.nodes.filter((row) => isAlive(row) && (row.node === edge.from || row.node === edge.to));
  return ends.flatMap((row) => row.links.filter((link) => link.peer === edge.from || link.peer === edge.to));
}

function EdgeLine(given: Drawn & { edge: Edge }): JSX.Element | null {
  const { edge, map, view } = given;
  const from = map.places.get(edge.from);
  const to = map.places.get(edge.to);
  if (!from || !to) return null;
  const traffic = view.traffic.get(pair(edge.from, edge.to)) ?? 0;
  const width = edge.kind === "link" ? 1.5 + Math.min(6, Math.log10(1 + traffic / 100) * 1.6) : 1.5;
  const congested = endsOf(edge, view).some((link) => link.congested);
  return (
    <g class={`edge ${edge.kind} ${congested ? "congested" : ""}`} data-line={`${edge.from} ${edge.to}`}>
      <line x1={from.x} y1={from.y} x2={to.x} y2={to.y} stroke-width={width} />
    </g>
  );
}

function EdgeLabel(given: Drawn & { edge: Edge }): JSX.Element | null {
  const { edge, map, view } = given;
  const place = map.labels.get(edge.key);
  if (!place) return null;
  const trips = endsOf(edge, view).map((link) => link.round_trip_ms).filter((one) => one !== null);
  const traffic = view.traffic.get(pair(edge.from, edge.to)) ?? 0;
  const lines: Line[] = edge.kind === "down" ? [["", "no link"]] : [["", `${bytes(Math.round(traffic))}/s`]];
  if (edge.kind === "link" && trips.length) lines.unshift(["", milliseconds(Math.min(...trips))]);
  return (
    <g class="edge-label" data-link={`${edge.from} ${edge.to}`}>
      <Words x={place.x} y={place.y - 9 * lines.length} lines={lines} size={12} />
    </g>
  );
}

interface NodePressure {
  value: number;
  up: number;
  state: string;
}

/** An arc that is closed when the pressure is at the threshold at which a further node starts. */
function Gauge(given: { pressure: NodePressure }): JSX.Element {
  const { value, up } = given.pressure;
  const share = up > 0 ? Math.min(1, Math.max(0, value / up)) : 0;
  return (
    <g class={`gauge ${value > up ? "high" : ""}`}>
      <title>{`pressure ${value.toPrecision(2)}; a further node starts above ${up.toPrecision(2)}`}</title>
      <circle class="trough" r={GAUGE} />
      {share > 0 && <circle class="filled" r={GAUGE} pathLength="100" stroke-dasharray={`${(100 * share).toFixed(1)} 100`} transform="rotate(-90)" />}
    </g>
  );
}

/** Beside a node: its rates, and what else there is to say of it. */
function remarks(row: NodeRow, rates: Rates, pressure: NodePressure | undefined, isSmall: boolean): Line[] {
  const clients = row.totals.clients_connected;
  const found: Line[] = isSmall
    ? [["", `${count(clients)} ${clients === 1 ? "client" : "clients"}`]]
    : [["", `↓ ${rate(rates.received)} ↑ ${rate(rates.sent)}`]];
  if (row.totals.queued > 0) found.push(["waiting", `${count(row.totals.queued)} waiting`]);
  if (row.evacuation) found.push(["waiting", `${count(row.evacuation.left)} of ${count(row.evacuation.total)} to go`]);
  if (pressure && !isSmall) found.push(["", `pressure ${pressure.value === 0 ? "0" : pressure.value.toPrecision(2)}`]);
  return found;
}

function NodeMark(given: Drawn & {
  row: NodeRow;
  place: Place;
  pressure: NodePressure | undefined;
  chosen: boolean;
  choose: () => void;
}): JSX.Element {
  const { row, place, view, pressure, isSmall } = given;
  const clients = row.totals.clients_connected;
  const dots = Math.min(DOTS, clients);
  const level = row.alarms.some((one) => one.level === "error") ? "error" : row.alarms.length ? "warning" : "";
  const isRoot = row.root === row.node;
  const size = isSmall ? (row.node.length > 6 ? 14.5 : 17) : 13;
  return (
    <g
      class={`node ${level} ${given.chosen ? "chosen" : ""} ${row.evacuation ? "emptied" : ""}`}
      transform={at(place)}
      role="button"
      tabindex={0}
      data-node={row.node}
      onClick={given.choose}
      onKeyDown={(event: KeyboardEvent) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          given.choose();
        }
      }}
    >
      <circle class="halo" r={GAUGE + 5} />
      {pressure && <Gauge pressure={pressure} />}
      {dots > 0 && <circle class="clients" r={RADIUS + 10} pathLength={dots} stroke-dasharray="0 1" transform="rotate(-90)" />}
      <circle class="body" r={RADIUS} />
      {isRoot && <path class="root" d="M-9 -22 l4 6 5 -8 5 8 4 -6 v9 h-18 z" aria-hidden="true" />}
      <text class="name" y={isSmall ? (isRoot ? 12 : 6) : isRoot ? 6 : 0} font-size={size} text-anchor="middle">
        {shorter(row.node, isSmall ? 8 : 9)}
      </text>
      {!isSmall && (
        <text class="figure" y={isRoot ? 21 : 15} font-size={12.5} text-anchor="middle">
          {count(clients)} {clients === 1 ? "client" : "clients"}
        </text>
      )}
      <Beside side={place.side ?? "below"} reach={GAUGE + 5} lines={remarks(row, view.rates.get(row.node) ?? NO_RATES, pressure, isSmall)} size={isSmall ? 20 : 12} />
    </g>
  );
}

const MARKS: Record<Exclude<Place["kind"], "node">, string> = {
  missing: "not reachable",
  foreign: "foreign broker",
  gateway: "gateway",
  coordinator: "coordinator",
  worker: "worker",
  control: "control line",
};

/** What waits for a node that is missing, and who carries it. */
function waiting(name: string, view: View): Line[] {
  const found = waitsFor(view, name);
  if (!found) return [];
  const lines: Line[] = [];
  if (found.messages > 0)
    lines.push(["waiting", `${found.isBound ? "up to " : ""}${count(found.messages)} ${found.messages === 1 ? "message waits" : "messages wait"}`]);
  if (found.carriedBy.length > 0) lines.push(["waiting", `carried by ${shorter(found.carriedBy.join(", "), 20)}`]);
  return lines;
}

/** Beside the name of a mark: how it stands. */
function stateOf(place: Place, name: string, view: View): string {
  const { picture } = view;
  if (place.kind === "missing") {
    const last = picture.nodes.find((row) => row.node === name);
    return last ? `not reachable, seen ${duration(last.age_s)} ago` : MARKS.missing;
  }
  if (place.kind === "foreign") return `broker, ${picture.nodes.find((row) => row.foreign?.broker === name)?.foreign?.state ?? "unknown"}`;
  if (place.kind === "gateway") {
    const clients = picture.nodes.flatMap((row) => row.companions).filter((one) => one.kind === "gateway" && one.name === name);
    const number = clients.reduce((all, one) => all + one.clients, 0);
    return `gateway, ${number} ${number === 1 ? "client" : "clients"}`;
  }
  if (place.kind === "coordinator") {
    const shown = coordinatorsOf(picture).find((one) => one.coordinator === name);
    return shown?.leads === true ? "coordinator, leads" : "coordinator";
  }
  if (place.kind === "worker") {
    const found = pressuresOf(picture).get(name);
    return found && found.state === "off" ? `worker, pressure ${found.value.toPrecision(2)}` : "worker";
  }
  return MARKS[place.kind as "control"];
}

const SHAPES: Record<Exclude<Place["kind"], "node">, JSX.Element> = {
  missing: <circle class="body" r={RADIUS} />,
  foreign: <rect class="body" x="-21" y="-21" width="42" height="42" rx="6" />,
  gateway: <rect class="body" x="-13" y="-13" width="26" height="26" transform="rotate(45)" rx="3" />,
  coordinator: <polygon class="body" points="0,-18 17,-4 10,14 -10,14 -17,-4" />,
  worker: <polygon class="body" points="0,-14 13,9 -13,9" />,
  control: <polygon class="body" points="0,-16 15,10 -15,10" />,
};

function OtherMark(given: Drawn & { place: Place }): JSX.Element | null {
  const { place, view, isSmall } = given;
  if (place.kind === "node") return null;
  const id = place.id.replace(/^(foreign|gateway|coordinator|worker|control) /, "");
  const state = stateOf(place, id, view);
  const bad = place.kind === "foreign" && !state.endsWith("attached");
  const name = (place.kind === "foreign" ? view.picture.nodes.find((row) => row.foreign?.broker === id)?.foreign?.name : "") || id;
  const size = textSize(isSmall);
  const lines: Line[] = [["name", shorter(name, isSmall ? 12 : 18)]];
  if (!isSmall || bad) lines.push(["below", state]);
  return (
    <g class={`other ${place.kind} ${bad ? "error" : ""}`} transform={at(place)} data-other={id}>
      <title>{`${MARKS[place.kind]} ${name}${name === id ? "" : ` at ${id}`}${place.beside === undefined ? "" : ", beside the node that it runs"}`}</title>
      {SHAPES[place.kind]}
      {place.kind === "missing" && <text class="name" y="4" font-size={size} text-anchor="middle">{shorter(name, 9)}</text>}
      {place.kind === "missing" && <Beside side={place.side ?? "below"} reach={RADIUS + 6} lines={[["below", state], ...waiting(id, view)]} size={size - 1} />}
      {place.beside !== undefined && !isSmall && <text class="below" x={place.isLeft === true ? -17 : 17} y="7" font-size="12" text-anchor={place.isLeft === true ? "end" : "start"}>worker</text>}
      {place.kind !== "missing" && place.beside === undefined && <Beside side={place.side ?? "below"} reach={24} lines={lines} size={isSmall ? 19 : 12.5} />}
    </g>
  );
}

/** So many clients that move have their names drawn; the list has more. */
const NAMED = 2;
const RECENT = 4;

/** Where the way to a point leaves a node. */
function atBorder(place: Place, to: Point): string {
  const length = Math.hypot(to.x - place.x, to.y - place.y) || 1;
  const share = Math.min(1, (RADIUS + 4) / length);
  return `${(place.x + (to.x - place.x) * share).toFixed(1)} ${(place.y + (to.y - place.y) * share).toFixed(1)}`;
}

const flightKey = (flight: Flight): string => `${flight.key}\t${flight.seenAt}`;

function FlightMark(given: { flight: Flight; map: Layout }): JSX.Element | null {
  const { flight, map } = given;
  const from = map.places.get(flight.from);
  const to = map.places.get(flight.to);
  if (!from || !to) return null;
  const bend = bendOf(map, from, to);
  const path = `M${atBorder(from, bend)} Q${bend.x.toFixed(1)} ${bend.y.toFixed(1)} ${atBorder(to, bend)}`;
  return (
    <g class={`flight ${flight.doneAt === null ? "leaving" : "done"}`} data-flight={`${flight.client} ${flight.from} ${flight.to}`}>
      <path d={path} />
      <circle r="7" style={{ offsetPath: `path("${path}")` }} />
    </g>
  );
}

interface NamedFlight {
  flight: Flight;
  at: Point;
  name: string;
}

/** The names of the last clients beside their ways, where they cover nothing and not each other. */
function namesOf(flying: Flight[], map: Layout, size: number): NamedFlight[] {
  const taken = [...map.taken];
  return flying.slice(-NAMED).flatMap((flight) => {
    const from = map.places.get(flight.from);
    const to = map.places.get(flight.to);
    if (!from || !to) return [];
    const bend = bendOf(map, from, to);
    const on = [0.5, 0.36, 0.64, 0.26, 0.74].flatMap((share) => {
      const { x, y } = onWay(from, bend, to, share);
      return [{ x, y: y - size * 1.4 }, { x, y: y + size * 1.4 }];
    });
    const name = shorter(flight.client, 20);
    const [width, height] = [name.length * size * 0.6 + 10, size * 1.5];
    const { at: place, covers } = clearest(on, width, height, taken);
    if (covers > 0) return [];
    taken.push(around(place.x, place.y, width, height));
    return [{ flight, at: place, name }];
  });
}

function FlightName(given: NamedFlight & { size: number }): JSX.Element {
  const { flight, at: place, name, size } = given;
  return (
    <g class={`flight-name ${flight.doneAt === null ? "leaving" : "done"}`}>
      <Words x={place.x} y={place.y - size * 0.7} lines={[["", name]]} size={size} />
    </g>
  );
}

function NodePanel(given: { row: NodeRow; view: View; operator: boolean; close: () => void }): JSX.Element {
  const { row, view } = given;
  const [empties, setEmpties] = useState(false);
  const rates = view.rates.get(row.node) ?? NO_RATES;
  const links = row.links.filter((link) => link.held);
  const pressure = pressuresOf(view.picture).get(row.node);
  const facts: [string, string][] = [
    ["clients", `${count(row.totals.clients_connected)} connected, ${count(row.totals.sessions)} sessions`],
    ["messages", `${rate(rates.received)} in, ${rate(rates.sent)} out`],
    ["messages", `${count(row.totals.queued)} waiting, ${count(row.totals.inflight)} in flight`],
    ["subscriptions", `${count(row.totals.subscriptions)}, ${count(row.totals.expressions)} compute`],
    ["journal", `${bytes(row.totals.journal_bytes)}, next offset ${count(row.totals.journal_next_offset)}`],
    ["process", `${percent(rates.cpu)} CPU, at most ${bytes(row.rss_bytes)}, up ${duration(row.uptime_s)}`],
    ["overlay", `${row.overlay ?? "none"}${row.root ? `, root ${row.root}` : ""}${row.strategy ? `, ${row.strategy}` : ""}`],
    ...(pressure ? [["pressure", `${pressure.value.toPrecision(3)}; a further node starts above ${pressure.up.toPrecision(3)}`] as [string, string]] : []),
    ["version", `${row.version}, ${row.compiled ? "compiled" : "interpreted"}, start ${row.epoch}`],
  ];
  return (
    <Panel label={`Node ${row.node}`} title={row.node} close={given.close}>
      <Facts facts={facts} />
      {links.length > 0 && (
        <Table
          label={`Links of ${row.node}`}
          rows={links}
          rowKey={(link) => link.peer}
          columns={[
            { title: "link to", heads: true, cell: (link) => link.peer },
            { title: "state", cell: (link) => (link.connected ? (link.congested ? "congested" : "up") : "down") },
            { title: "round trip", number: true, cell: (link) => milliseconds(link.round_trip_ms) },
            { title: "waits", number: true, cell: (link) => bytes(link.unacknowledged_bytes) },
          ]}
        />
      )}
      {row.alarms.map((alarm) => (
        <p class={`alarm ${alarm.level}`} key={alarm.text}>
          {alarm.text}
        </p>
      ))}
      {given.operator && row.network !== "" && (
        <button type="button" onClick={() => { setEmpties(true); }}>
          {row.evacuation ? "Let clients in again…" : "Empty this node…"}
        </button>
      )}
      {empties && <EvacuateDialog node={row.node} stop={row.evacuation !== null} close={() => { setEmpties(false); }} />}
    </Panel>
  );
}

/** The last moves in words, in a strip of its own: it covers nothing. */
function Recent(given: { flights: Flight[] }): JSX.Element {
  return (
    <ul class="moves-seen" aria-live="polite" aria-label="Moves">
      {given.flights.length === 0 && <li class="none">No client moves just now.</li>}
      {given.flights.slice(-RECENT).map((flight) => (
        <li key={`${flight.key}\t${flight.seenAt}`}>
          <strong>{shorter(flight.client, 40)}</strong> {flight.from} → {flight.to} {flight.doneAt === null ? "on its way" : "moved"}
        </li>
      ))}
    </ul>
  );
}

/** Width and height of an element, as they are and as they change. */
function useSize(): [{ current: SVGSVGElement | null }, { width: number; height: number } | null] {
  const element = useRef<SVGSVGElement | null>(null);
  const [size, setSize] = useState<{ width: number; height: number } | null>(null);
  useLayoutEffect(() => {
    const found = element.current;
    if (!found) return;
    const measure = (): void => {
      const { width, height } = found.getBoundingClientRect();
      setSize({ width: Math.max(1, width), height: Math.max(1, height) });
    };
    const observer = new ResizeObserver(measure);
    observer.observe(found);
    measure();
    return () => {
      observer.disconnect();
    };
  }, []);
  return [element, size];
}

/** A map that is this wide has room for less. */
const SMALL_PX = 600;

function Legend(given: { isSmall: boolean }): JSX.Element {
  const items = (
    <ul class="legend" aria-label="Legend">
      <li class="l-node">node, up to {DOTS} dots for clients</li>
      <li class="l-root">root of the tree</li>
      <li class="l-rates">messages in and out</li>
      <li class="l-link">link, thicker with more traffic</li>
      <li class="l-attached">attached to that node</li>
      <li class="l-missing">not reachable</li>
      <li class="l-waiting">messages that wait</li>
      <li class="l-gauge">pressure; a full ring is above the threshold</li>
      <li class="l-foreign">foreign broker</li>
      <li class="l-gateway">gateway</li>
      <li class="l-coordinator">coordinator</li>
      <li class="l-control">worker</li>
      <li class="l-flight">client that moves</li>
    </ul>
  );
  if (!given.isSmall) return items;
  return (
    <details class="legend-small">
      <summary>Legend</summary>
      {items}
    </details>
  );
}

export function MapPage(given: { view: View; operator: boolean }): JSX.Element {
  const { view } = given;
  const [chosen, setChosen] = useState("");
  const [svg, size] = useSize();
  const map = useRef<Layout | null>(null);
  const flying = useRef<Flight[]>([]);
  const seenAt = useRef(0);
  if (seenAt.current !== view.picture.at) {
    seenAt.current = view.picture.at;
    flying.current = flights(view.picture, flying.current, performance.now());
  }
  const isSmall = size !== null && size.width < SMALL_PX;
  if (size) map.current = layout(view.picture, map.current, { aspect: size.width / size.height, isSmall });
  const row = view.picture.nodes.find((one) => one.node === chosen && isAlive(one));
  return (
    <div class="map-page">
      <h1 class="unseen">Map</h1>
      <svg class="map" ref={svg} viewBox={map.current ? frame(map.current, isSmall) : "0 0 1 1"} role="group" aria-label="Map of the network">
        {map.current && <Network map={map.current} view={view} isSmall={isSmall} flights={flying.current} chosen={chosen} choose={setChosen} />}
      </svg>
      <Recent flights={flying.current} />
      {row && <NodePanel row={row} view={view} operator={given.operator} close={() => { setChosen(""); }} />}
      <Legend isSmall={isSmall} />
    </div>
  );
}

/** Three layers: lines, clients on their way, and above them marks and words. */
function Network(given: Drawn & { flights: Flight[]; chosen: string; choose: (node: string) => void }): JSX.Element {
  const { map, view, isSmall, chosen } = given;
  const drawn = { map, view, isSmall };
  const pressures = pressuresOf(view.picture);
  const now = performance.now();
  const flying = given.flights.filter((flight) => isDrawn(flight, now));
  const places = [...map.places.values()];
  return (
    <>
      <g>{map.edges.map((edge) => <EdgeLine key={edge.key} edge={edge} {...drawn} />)}</g>
      <g>{flying.map((flight) => <FlightMark key={flightKey(flight)} flight={flight} map={map} />)}</g>
      <g>
        {map.edges.map((edge) => <EdgeLabel key={edge.key} edge={edge} {...drawn} />)}
        {places.map((place) => <OtherMark key={place.id} place={place} {...drawn} />)}
        {view.picture.nodes.filter(isAlive).map((one) => {
          const place = map.places.get(one.node);
          return place && (
            <NodeMark
              key={one.node}
              row={one}
              place={place}
              pressure={pressures.get(one.node)}
              chosen={one.node === chosen}
              choose={() => { given.choose(one.node === chosen ? "" : one.node); }}
              {...drawn}
            />
          );
        })}
        {namesOf(flying, map, textSize(isSmall)).map((one) => <FlightName key={flightKey(one.flight)} size={textSize(isSmall)} {...one} />)}
      </g>
    </>
  );
}
