/** Clients of all nodes: searched, filtered, page by page; one in detail, with the orders for it. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { get } from "../api";
import { bytes, count, duration } from "../format";
import { Facts, Panel, State, Trouble } from "../parts/facts";
import { Choice, Filters, TextField, named } from "../parts/fields";
import { usePolled } from "../parts/polled";
import { Table, type TableColumn } from "../parts/table";
import { BanDialog, KickDialog, LiftDialog, MoveDialog } from "./orders";

export interface ClientRow {
  client: string;
  node: string;
  connected: boolean;
  user: string | null;
  address: string | null;
  version: string | null;
  persistent: boolean;
  subscriptions: number;
  inflight: number;
  queued: number;
}

interface ClientDetail extends ClientRow {
  expiry_s: number;
  seconds: number;
  keep_alive_s: number | null;
  gateway: string | null;
  will: string | null;
  inflight_bytes: number;
  unreleased: number;
  dropped_by_retention: number;
  dropped_by_full_queue: number;
  leaving_for: string | null;
  filters: { filter: string; qos: number }[];
  in_flight: MessageInFlight[];
  waiting: WaitingMessage[];
}

interface Page {
  rows: ClientRow[];
  next: string | null;
  silent: string[];
}

interface Ban {
  /** Such as "client:meter" or "user:alice". */
  name: string;
  ends_in_s: number | null;
  reason: string;
}

const STATES: [string, string][] = [
  ["all", "all"],
  ["connected", "connected"],
  ["away", "away"],
  ["waiting", "with messages waiting"],
  ["moving", "moving"],
  ["control", "control lines"],
];
const PAGE = 50;
const NO_BREAK = "\u00a0";
type Order = "move" | "kick" | "ban";

function Orders(given: { row: ClientRow; nodes: string[]; done: () => void }): JSX.Element {
  const [order, setOrder] = useState<Order | "">("");
  const { row } = given;
  const close = (): void => {
    setOrder("");
    given.done();
  };
  const button = (name: Order, title: string, enabled: boolean): JSX.Element => (
    <button type="button" disabled={!enabled} onClick={() => { setOrder(name); }} aria-label={`${title} ${row.client}`}>
      {title}
    </button>
  );
  return (
    <span class="orders">
      {button("move", "Move", row.persistent && given.nodes.length > 1)}
      {button("kick", "Kick", row.connected)}
      {button("ban", "Ban", true)}
      {order === "move" && <MoveDialog client={row.client} from={row.node} nodes={given.nodes} close={close} />}
      {order === "kick" && <KickDialog client={row.client} close={close} />}
      {order === "ban" && <BanDialog client={row.client} close={close} />}
    </span>
  );
}

interface WaitingMessage {
  offset: number;
  topic: string;
  bytes: number;
  waits_s: number;
}

interface MessageInFlight {
  packet: number;
  /** None: the client has it, and has still to say the last word of QoS 2. */
  topic: string | null;
  qos: number;
  bytes: number;
}

function Messages(given: { row: ClientDetail }): JSX.Element {
  const { row } = given;
  return (
    <>
      <h3>In flight</h3>
      <Table
        label="Messages in flight"
        rows={row.in_flight}
        rowKey={(one) => `${one.packet}`}
        empty="none"
        columns={[
          { title: "packet", number: true, cell: (one) => one.packet },
          { title: "topic", cell: (one) => (one.topic === null ? "received, not completed" : <code>{one.topic}</code>) },
          { title: "QoS", number: true, cell: (one) => one.qos },
          { title: "size", number: true, cell: (one) => bytes(one.bytes) },
        ]}
      />
      {row.inflight > row.in_flight.length && <p class="nothing">{row.in_flight.length} of {count(row.inflight)} are shown.</p>}
      <h3>Queue</h3>
      <Table
        label="Queue"
        rows={row.waiting}
        rowKey={(one) => `${one.offset}`}
        empty="empty"
        columns={[
          { title: "topic", cell: (one) => <code>{one.topic}</code> },
          { title: "waits", number: true, cell: (one) => duration(one.waits_s) },
          { title: "size", number: true, cell: (one) => bytes(one.bytes) },
        ]}
      />
      {row.queued > row.waiting.length && <p class="nothing">The first {row.waiting.length} of {count(row.queued)} are shown.</p>}
    </>
  );
}

function Detail(given: { client: string; close: () => void }): JSX.Element {
  const [found, trouble] = usePolled(() => get("/client", { id: given.client }) as Promise<{ rows: ClientDetail[] }>, [given.client]);
  const row = found?.rows[0];
  return (
    <Panel label={`Client ${given.client}`} title={given.client} detail close={given.close}>
      <Trouble text={trouble} />
      {found && !row && <p class="nothing">No node has a session of it.</p>}
      {row && (
        <>
          <Facts
            facts={[
              ["node", row.leaving_for ? `${row.node}, moving to ${row.leaving_for}` : row.node],
              ["state", `${row.connected ? "connected" : "away"} for ${duration(row.seconds)}`],
              ["user", row.user ?? "none"],
              ["address", row.address ?? "–"],
              ["MQTT", `${row.version ?? "?"}${row.keep_alive_s === null ? "" : `, keep-alive ${row.keep_alive_s.toFixed(0)} s`}`],
              ["gateway", row.gateway ?? "none"],
              ["session", row.persistent ? `kept for ${row.expiry_s >= 0xffffffff ? "ever" : duration(row.expiry_s)}` : "ends with the connection"],
              ["queue", `${count(row.queued)} waiting, ${count(row.inflight)} in flight${row.inflight > 0 ? ` (${bytes(row.inflight_bytes).replace(" ", NO_BREAK)})` : ""}`],
              ["QoS 2 in", row.unreleased > 0 ? `${count(row.unreleased)} not completed` : "nothing open"],
              ["dropped", `${count(row.dropped_by_full_queue)} by a full queue, ${count(row.dropped_by_retention)} by retention`],
              ["will", row.will ?? "none"],
            ]}
          />
          <h3>Subscriptions</h3>
          {row.filters.length === 0 && <p class="nothing">none</p>}
          <ul class="plain">
            {row.filters.map((one) => (
              <li key={one.filter}>
                <code>{one.filter}</code> QoS {one.qos}
              </li>
            ))}
          </ul>
          {row.subscriptions > row.filters.length && <p class="nothing">{row.filters.length} of {row.subscriptions} are shown.</p>}
          <Messages row={row} />
        </>
      )}
    </Panel>
  );
}

function Bans(given: { operator: boolean }): JSX.Element | null {
  const [found, , again] = usePolled(() => get("/bans") as Promise<{ rows: Ban[] }>, []);
  const [lifted, setLifted] = useState<Ban | null>(null);
  if (!found || found.rows.length === 0) return null;
  return (
    <>
      <h2>Bans</h2>
      <Table
        label="Bans"
        rows={found.rows}
        rowKey={(ban) => ban.name}
        columns={[
          { title: "who", cell: (ban) => <code>{ban.name}</code> },
          { title: "reason", cell: (ban) => ban.reason },
          { title: "holds", cell: (ban) => (ban.ends_in_s === null ? "until it is lifted" : `for ${duration(ban.ends_in_s)}`) },
          {
            title: "orders",
            hidden: true,
            cell: (ban) => given.operator && <button type="button" onClick={() => { setLifted(ban); }} aria-label={`Lift the ban of ${ban.name}`}>Lift</button>,
          },
        ]}
      />
      {lifted && <LiftDialog name={lifted.name} close={() => { setLifted(null); again(); }} />}
    </>
  );
}

export function ClientsPage(given: { nodes: string[]; operator: boolean; total: number }): JSX.Element {
  const [text, setText] = useState("");
  const [state, setState] = useState("all");
  const [node, setNode] = useState("");
  /** The last identifiers of the pages before. */
  const [pages, setPages] = useState<string[]>([]);
  const [chosen, setChosen] = useState("");
  const after = pages.at(-1);
  const asked = { text, state, node, most: `${PAGE}`, ...(after === undefined ? {} : { after }) };
  const [found, trouble, again] = usePolled(() => get("/dashboard/clients", asked) as Promise<Page>, [text, state, node, after]);
  const narrowed = (set: (value: string) => void) => (value: string): void => {
    set(value);
    setPages([]);
  };
  const next = found?.next;
  const columns: TableColumn<ClientRow>[] = [
    {
      title: "client",
      cell: (row) => (
        <button type="button" class="link" onClick={() => { setChosen(row.client === chosen ? "" : row.client); }}>
          {row.client}
        </button>
      ),
    },
    { title: "node", cell: (row) => row.node },
    { title: "state", cell: (row) => <State level={row.connected ? "good" : "warning"}>{row.connected ? "connected" : "away"}</State> },
    // The open details have these, and orders need the room.
    ...(chosen === ""
      ? ([
          { title: "user", cell: (row) => row.user ?? "" },
          { title: "address", cell: (row) => row.address ?? "" },
          { title: "subscriptions", number: true, cell: (row) => row.subscriptions },
        ] satisfies TableColumn<ClientRow>[])
      : []),
    { title: "waiting", number: true, cell: (row) => count(row.queued) },
    { title: "in flight", number: true, cell: (row) => count(row.inflight) },
  ];
  if (given.operator) columns.push({ title: "orders", hidden: true, cell: (row) => <Orders row={row} nodes={given.nodes} done={again} /> });
  return (
    <>
      <h1>Clients</h1>
      <Filters>
        <TextField label="Identifier or user" type="search" value={text} change={narrowed(setText)} />
        <Choice label="State" value={state} change={narrowed(setState)} options={STATES} />
        <Choice label="Node" value={node} change={narrowed(setNode)} options={[["", "all"], ...named(given.nodes)]} />
      </Filters>
      <Trouble text={trouble} />
      <div class="with-detail">
        <div class="list">
          <Table
            label="List of clients"
            rows={found?.rows ?? []}
            rowKey={(row) => `${row.client} ${row.node}`}
            {...(found ? { empty: "No client is like that." } : {})}
            rowClass={(row) => (row.client === chosen ? "chosen" : "")}
            mark={["client", (row) => row.client]}
            columns={columns}
          />
        </div>
        {chosen !== "" && <Detail client={chosen} close={() => { setChosen(""); }} />}
      </div>
      <p class="pager">
        <button type="button" disabled={pages.length === 0} onClick={() => { setPages(pages.slice(0, -1)); }}>
          ← Before
        </button>
        <span>
          {found ? `${found.rows.length} shown, ${count(given.total)} sessions in all` : "…"}
          {found && found.silent.length > 0 && `; no answer from ${found.silent.join(", ")}`}
        </span>
        <button type="button" disabled={typeof next !== "string"} onClick={() => { if (typeof next === "string") setPages([...pages, next]); }}>
          After →
        </button>
      </p>
      <Bans operator={given.operator} />
    </>
  );
}
