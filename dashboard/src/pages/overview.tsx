/** The overview: how much goes through the network, what is dropped and why, and each node on a line. */
import type { JSX } from "preact";
import { bytes, count, duration, exact, percent, rate } from "../format";
import { NO_RATES, type NodeRow, type Rates, type View, isAlive, missing, totalOf } from "../model";
import { Chart, secondsOf } from "../parts/chart";
import { State, Tiles } from "../parts/facts";
import { Table } from "../parts/table";

function Reasons(given: { view: View }): JSX.Element {
  const all = new Map<string, number>();
  for (const row of given.view.picture.nodes)
    for (const [reason, number] of Object.entries(row.dropped)) all.set(reason, (all.get(reason) ?? 0) + number);
  return (
    <Table
      label="Dropped messages"
      rows={[...all].sort((one, other) => other[1] - one[1])}
      rowKey={([reason]) => reason}
      empty="No message was dropped since the nodes started."
      columns={[
        { title: "reason", cell: ([reason]) => reason },
        { title: "messages", number: true, cell: ([, number]) => exact(number) },
        { title: "now", number: true, cell: ([reason]) => rate(given.view.dropping.get(reason) ?? 0) },
      ]}
    />
  );
}

function NodeState(given: { row: NodeRow }): JSX.Element {
  const { row } = given;
  if (!isAlive(row)) return <State level="error">silent for {duration(row.age_s)}</State>;
  const level = row.not_ready !== null ? "error" : row.alarms.length ? "warning" : "good";
  return <State level={level}>{row.not_ready ?? (row.evacuation ? "being emptied" : "serving")}</State>;
}

const bytesRate = (value: number): string => `${bytes(Math.round(value))}/s`;

function Nodes(given: { view: View }): JSX.Element {
  const { view } = given;
  const rates = (row: NodeRow): Rates => view.rates.get(row.node) ?? NO_RATES;
  return (
    <Table
      label="Nodes"
      rows={view.picture.nodes}
      rowKey={(row) => row.node}
      rowClass={(row) => (isAlive(row) ? "" : "gone")}
      columns={[
        { title: "node", heads: true, cell: (row) => row.node },
        { title: "state", cell: (row) => <NodeState row={row} /> },
        { title: "clients", number: true, cell: (row) => count(row.totals.clients_connected) },
        { title: "sessions", number: true, cell: (row) => count(row.totals.sessions) },
        { title: "in", number: true, cell: (row) => rate(rates(row).received) },
        { title: "out", number: true, cell: (row) => rate(rates(row).sent) },
        { title: "waiting", number: true, cell: (row) => count(row.totals.queued) },
        { title: "CPU", number: true, cell: (row) => percent(rates(row).cpu) },
        { title: "up", number: true, cell: (row) => duration(row.uptime_s) },
      ]}
    />
  );
}

export function OverviewPage(given: { view: View }): JSX.Element {
  const { view } = given;
  const { picture, total, history } = view;
  const lost = missing(picture);
  const alive = picture.nodes.filter(isAlive).length;
  const [first, last] = [history[0]?.at ?? 0, history.at(-1)?.at ?? 0];
  // Pictures may be missing in between; a chart that has just begun is not full yet.
  const seconds = Math.max(secondsOf(history.length), Math.round(last - first));
  const line = (read: (rates: Rates) => number): number[] => history.map((moment) => read(moment.rates));
  return (
    <>
      <h1>Overview</h1>
      <Tiles
        tiles={[
          ["nodes", lost.length ? `${alive}, ${lost.length} missing` : `${alive}`],
          ["clients", count(totalOf(picture, (one) => one.clients_connected))],
          ["sessions", count(totalOf(picture, (one) => one.sessions))],
          ["subscriptions", count(totalOf(picture, (one) => one.subscriptions))],
          ["retained", count(Math.max(0, ...picture.nodes.map((row) => row.totals.retained)))],
          ["waiting", count(totalOf(picture, (one) => one.queued))],
          ["in flight", count(totalOf(picture, (one) => one.inflight))],
          ["journals", bytes(totalOf(picture, (one) => one.journal_bytes))],
        ]}
      />
      <div class="charts">
        <Chart title="from clients" values={line((one) => one.received)} now={total.received} write={rate} seconds={seconds} />
        <Chart title="to clients" values={line((one) => one.sent)} now={total.sent} write={rate} seconds={seconds} />
        <Chart title="payload in" values={line((one) => one.bytesReceived)} now={total.bytesReceived} write={bytesRate} seconds={seconds} />
        <Chart title="payload out" values={line((one) => one.bytesSent)} now={total.bytesSent} write={bytesRate} seconds={seconds} />
        <Chart title="dropped" kind="bad" values={line((one) => one.dropped)} now={total.dropped} write={rate} seconds={seconds} />
        <Chart title="results of expressions" values={line((one) => one.results)} now={total.results} write={rate} seconds={seconds} />
      </div>
      <h2>Nodes</h2>
      <Nodes view={view} />
      <h2>Dropped messages</h2>
      <Reasons view={view} />
    </>
  );
}
