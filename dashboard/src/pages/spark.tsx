/** Spark: the nodes' feeds, the jobs that read them with their lag, and what audits found. */
import type { JSX } from "preact";
import { get } from "../api";
import { bytes, count, duration, exact, milliseconds } from "../format";
import { type NodeRow, type Picture, isAlive } from "../model";
import { State, Trouble } from "../parts/facts";
import { usePolled } from "../parts/polled";
import { Table } from "../parts/table";

interface ReaderRow {
  reader: string;
  node: string;
  started: number | null;
  offset: number | null;
  lag: number | null;
  lost: number;
  connections: number;
}

interface Audit {
  node: string;
  at: number;
  took_s: number;
  nodes: string[];
  not_audited: string[];
  window: string;
  subscriptions: number;
  violations: number;
  expected: number;
  delivered: number;
  waiting: number;
  dropped: number;
  lost: number;
  duplicated: number;
  reordered: number;
  max_ms: number | null;
  worst: Subscription[];
}

interface Subscription {
  client: string;
  node: string;
  filter: string;
  qos: number;
  expected: number;
  delivered: number;
  lost: number;
  duplicated: number;
  reordered: number;
  violation: boolean;
}

/** A job has a name of its own at every node: "archive-" and 32 digits. */
const jobOf = (reader: string): string => reader.replace(/-[0-9a-f]{32}$/, "");

interface Job {
  reader: string;
  nodes: ReaderRow[];
}

function jobsOf(rows: ReaderRow[]): Job[] {
  const found = new Map<string, ReaderRow[]>();
  for (const row of rows) found.set(row.reader, [...(found.get(row.reader) ?? []), row]);
  return [...found].map(([reader, nodes]) => ({ reader, nodes }));
}

const sum = (rows: ReaderRow[], read: (row: ReaderRow) => number | null): number => rows.reduce((all, row) => all + (read(row) ?? 0), 0);

function Jobs(given: { rows: ReaderRow[] }): JSX.Element {
  return (
    <Table
      label="Jobs"
      rows={jobsOf(given.rows)}
      rowKey={(job) => job.reader}
      empty="No job reads, and none has been registered."
      columns={[
        { title: "job", heads: true, cell: (job) => <span title={job.reader}>{jobOf(job.reader)}</span> },
        {
          title: "state",
          cell: (job) =>
            sum(job.nodes, (row) => row.connections) > 0 ? <State level="good">reading</State> : <State level="warning">not connected</State>,
        },
        { title: "lag", number: true, cell: (job) => (job.nodes.every((row) => row.lag === null) ? "not told" : exact(sum(job.nodes, (row) => row.lag))) },
        { title: "read", number: true, cell: (job) => (job.nodes.every((row) => row.offset === null) ? "–" : count(sum(job.nodes, (row) => (row.offset ?? 0) - (row.started ?? 0)))) },
        { title: "lost to retention", number: true, cell: (job) => exact(sum(job.nodes, (row) => row.lost)) },
        { title: "lag by node", wide: true, cell: (job) => job.nodes.map((row) => `${row.node} ${row.lag === null ? "–" : exact(row.lag)}`).join(", ") },
      ]}
    />
  );
}

function Audits(given: { audits: Audit[] }): JSX.Element {
  const kept = given.audits[0];
  return (
    <>
      <Table
        label="Audits"
        rows={given.audits}
        rowKey={(one) => `${one.node} ${one.at}`}
        empty="No audit has told its outcome yet: run sterna pipeline audit --nodes …"
        columns={[
          { title: "when", heads: true, cell: (one) => <span class="unbroken">{new Date(one.at * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" })}</span> },
          { title: "outcome", cell: (one) => (one.violations ? <State level="error">{one.violations} subscriptions broken</State> : <State level="good">kept</State>) },
          { title: "subscriptions", number: true, cell: (one) => count(one.subscriptions) },
          { title: "expected", number: true, cell: (one) => exact(one.expected) },
          { title: "delivered", number: true, cell: (one) => exact(one.delivered) },
          { title: "waiting", number: true, cell: (one) => exact(one.waiting) },
          { title: "dropped", number: true, cell: (one) => exact(one.dropped) },
          { title: "lost", number: true, cell: (one) => exact(one.lost) },
          { title: "twice", number: true, cell: (one) => exact(one.duplicated) },
          { title: "out of order", number: true, cell: (one) => exact(one.reordered) },
          { title: "slowest", number: true, cell: (one) => milliseconds(one.max_ms) },
          { title: "about", cell: (one) => <div class="remark">{`${one.window} at ${one.nodes.join(", ")}${one.not_audited.length ? `, not at ${one.not_audited.join(", ")}` : ""}; took ${duration(one.took_s)}`}</div> },
        ]}
      />
      {kept && kept.worst.length > 0 && (
        <>
          <h3>Subscriptions of the last one, the worst first</h3>
          <Table
            label="Audited subscriptions"
            rows={kept.worst}
            rowKey={(one) => `${one.client} ${one.node} ${one.filter} ${one.qos}`}
            columns={[
              { title: "client", heads: true, cell: (one) => one.client || "(shared)" },
              { title: "node", cell: (one) => one.node },
              { title: "filter", wide: true, cell: (one) => <code>{one.filter}</code> },
              { title: "QoS", number: true, cell: (one) => one.qos },
              { title: "outcome", cell: (one) => (one.violation ? <State level="error">broken</State> : <State level="good">kept</State>) },
              { title: "expected", number: true, cell: (one) => exact(one.expected) },
              { title: "delivered", number: true, cell: (one) => exact(one.delivered) },
              { title: "lost", number: true, cell: (one) => exact(one.lost) },
              { title: "twice", number: true, cell: (one) => exact(one.duplicated) },
            ]}
          />
          {kept.subscriptions > kept.worst.length && <p class="nothing">{kept.worst.length} of {count(kept.subscriptions)} are shown.</p>}
        </>
      )}
    </>
  );
}

function Feeds(given: { nodes: NodeRow[] }): JSX.Element {
  const feeds = given.nodes.flatMap((row) => (row.feed === null ? [] : [{ node: row.node, ...row.feed }]));
  return (
    <Table
      label="Feeds"
      rows={feeds}
      rowKey={(row) => row.node}
      empty="No node has a feed; add a table [feed]."
      columns={[
        { title: "feed of", heads: true, cell: (row) => row.node },
        { title: "connections", number: true, cell: (row) => count(row.connections) },
        { title: "readers", number: true, cell: (row) => count(row.readers) },
        { title: "greatest lag", number: true, cell: (row) => count(row.lag) },
        { title: "rows sent", number: true, cell: (row) => count(row.rows_sent) },
        { title: "bytes sent", number: true, cell: (row) => bytes(row.bytes_sent) },
        { title: "lost to retention", number: true, cell: (row) => count(row.lost) },
      ]}
    />
  );
}

export function SparkPage(given: { picture: Picture }): JSX.Element {
  const [readers, trouble] = usePolled(() => get("/dashboard/readers") as Promise<{ rows: ReaderRow[] }>, []);
  const [audits, auditTrouble] = usePolled(() => get("/dashboard/audits") as Promise<{ rows: Audit[] }>, [], 10_000);
  return (
    <>
      <h1>Spark</h1>
      <h2>Jobs</h2>
      <Trouble text={trouble} />
      {readers && <Jobs rows={readers.rows} />}
      <h2>Audits</h2>
      <Trouble text={auditTrouble} />
      {audits && <Audits audits={audits.rows.sort((one, other) => other.at - one.at)} />}
      <h2>Feeds</h2>
      <Feeds nodes={given.picture.nodes.filter(isAlive)} />
    </>
  );
}
