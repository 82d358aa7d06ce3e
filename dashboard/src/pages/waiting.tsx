/** Waiting: who cannot be reached, who is behind, and for which sessions, readers and brokers messages wait. */
import type { JSX } from "preact";
import { get } from "../api";
import { bytes, count, duration } from "../format";
import { type Away, type NodeRow, type View, type Waits, isAlive, missing, waitsFor } from "../model";
import { State, Trouble } from "../parts/facts";
import { usePolled } from "../parts/polled";
import { Table } from "../parts/table";
import type { ClientRow } from "./clients";

interface Absence {
  node: string;
  missedBy: string[];
  lastSeen: string;
  waits: string;
  carriedBy: string[];
}

/** The node remembers the last row of another for so long. */
const REMEMBERED = "10 min";

function lastSeen(known: NodeRow | undefined, away: Away[]): string {
  if (known) return `${duration(known.age_s)} ago`;
  if (away.length) return `${duration(Math.max(...away.map((one) => one.away_s)))} ago`;
  return `more than ${REMEMBERED} ago, or before the node of this page looked for it`;
}

function waits(found: Waits | null): string {
  if (!found) return "what was published meanwhile, in the journals where it entered";
  const { messages, isBound, oldest_s } = found;
  if (messages === 0) return "nothing yet";
  const number = `${isBound ? "up to " : ""}${count(messages)} ${messages === 1 ? "message" : "messages"}`;
  if (isBound) return `${number}, in the journals where they entered`;
  return `${number}, the first for ${duration(oldest_s ?? 0)}`;
}

function absences(view: View): Absence[] {
  const { picture } = view;
  const alive = picture.nodes.filter(isAlive);
  return missing(picture).map((node) => {
    const away = alive.flatMap((row) => row.away[node] ?? []);
    const found = waitsFor(view, node);
    return {
      node,
      missedBy: alive.filter((row) => row.absent.includes(node)).map((row) => row.node),
      lastSeen: lastSeen(picture.nodes.find((row) => row.node === node), away),
      waits: waits(found),
      carriedBy: found?.carriedBy ?? [],
    };
  });
}

/** What nodes carry for others on the way, where nodes move. */
function CarriedFor(given: { rows: NodeRow[] }): JSX.Element | null {
  const rows = given.rows.flatMap((row) => (row.carried ? [{ node: row.node, ...row.carried }] : []));
  if (rows.length === 0) return null;
  return (
    <>
      <h2>Carried for others</h2>
      <Table
        label="Carried for others"
        rows={rows}
        rowKey={(row) => row.node}
        columns={[
          { title: "node", heads: true, cell: (row) => row.node },
          { title: "for", cell: (row) => (row.carry === "all" ? "every node" : row.for.join(", ") || "nobody now") },
          { title: "messages", number: true, cell: (row) => count(row.messages) },
          { title: "bytes", number: true, cell: (row) => bytes(row.bytes) },
          { title: "oldest", number: true, cell: (row) => (row.messages ? duration(row.oldest_s) : "–") },
          { title: "handed on", number: true, cell: (row) => count(row.handed_on) },
          { title: "dropped for room or age", number: true, cell: (row) => count(row.evicted) },
        ]}
      />
    </>
  );
}

interface Behind {
  who: string;
  what: string;
  at: string;
  state: JSX.Element;
}

function behind(row: NodeRow): Behind[] {
  const found: Behind[] = row.unsynced.map((origin) => ({
    who: `node ${row.node}`,
    what: `messages of ${origin}`,
    at: origin,
    state: row.absent.includes(origin) ? <State level="error">it cannot be reached</State> : <State level="warning">being fetched</State>,
  }));
  for (const link of row.links)
    if (link.held && (!link.connected || link.congested || link.unacknowledged_bytes > 65536))
      found.push({
        who: `node ${link.peer}`,
        what: `${bytes(link.unacknowledged_bytes)} on the link`,
        at: row.node,
        state: <State level={link.connected ? "warning" : "error"}>{link.connected ? (link.congested ? "congested" : "on the way") : "no link"}</State>,
      });
  const foreign = row.foreign;
  if (foreign && (foreign.state !== "attached" || foreign.held_topics > 0 || foreign.in_doubt > 0))
    found.push({
      who: `broker ${foreign.broker}`,
      what: foreign.held_topics > 0 ? `${count(foreign.held_topics)} topics are held back` : "what is published for it",
      at: row.node,
      state: <State level={foreign.state === "attached" ? "warning" : "error"}>{foreign.trouble ?? foreign.state}</State>,
    });
  if (row.feed && row.feed.lag > 0 && row.feed.connections === 0)
    found.push({ who: "readers of the feed", what: `${count(row.feed.lag)} messages`, at: row.node, state: <State level="warning">not connected</State> });
  return found;
}

export function WaitingPage(given: { view: View }): JSX.Element {
  const { picture } = given.view;
  const [found, trouble] = usePolled(() => get("/dashboard/waiting") as Promise<{ rows: ClientRow[]; is_cut: boolean }>, []);
  const alive = picture.nodes.filter(isAlive);
  const sessions = (found?.rows ?? []).sort((one, other) => other.queued + other.inflight - one.queued - one.inflight).slice(0, 50);
  return (
    <>
      <h1>Waiting</h1>
      <h2>Partitions</h2>
      <p>
        <State level={missing(picture).length ? "warning" : "good"}>
          {alive.length === 1 ? "One node answers" : `${alive.length} nodes reach each other`}
        </State>
        : {alive.map((row) => row.node).join(", ")}.
      </p>
      <Table
        label="Nodes that cannot be reached"
        rows={absences(given.view)}
        rowKey={(row) => row.node}
        empty="Every node that is known can be reached."
        columns={[
          { title: "cannot be reached", heads: true, cell: (row) => row.node },
          { title: "last seen", cell: (row) => row.lastSeen },
          { title: "missed by", cell: (row) => row.missedBy.join(", ") || "–" },
          { title: "waits for it", cell: (row) => row.waits },
          { title: "carried by", cell: (row) => row.carriedBy.join(", ") || "–" },
        ]}
      />
      <CarriedFor rows={alive} />
      <h2>Nodes, brokers and readers that are behind</h2>
      <Table
        label="Behind"
        rows={alive.flatMap(behind)}
        rowKey={(row) => `${row.who} ${row.what} ${row.at}`}
        empty="None is behind."
        columns={[
          { title: "who", heads: true, cell: (row) => row.who },
          { title: "waits for", cell: (row) => row.what },
          { title: "at", cell: (row) => row.at },
          { title: "state", cell: (row) => row.state },
        ]}
      />
      <h2>Sessions with messages</h2>
      <Trouble text={trouble} />
      {found && (
        <Table
          label="Sessions with messages"
          rows={sessions}
          rowKey={(row) => `${row.client} ${row.node}`}
          empty="No message waits for a client."
          columns={[
            { title: "session", heads: true, cell: (row) => row.client.replace(/^\$interwork\//, "foreign broker at ") },
            { title: "node", cell: (row) => row.node },
            { title: "state", cell: (row) => <State level={row.connected ? "good" : "warning"}>{row.connected ? "connected" : "away"}</State> },
            { title: "queued", number: true, cell: (row) => count(row.queued) },
            { title: "in flight", number: true, cell: (row) => count(row.inflight) },
          ]}
        />
      )}
      {found?.is_cut && <p class="faint">There are more; these are the longest queues.</p>}
    </>
  );
}
