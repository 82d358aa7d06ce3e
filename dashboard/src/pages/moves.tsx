/** Moves under way, the last ones, evacuations with their progress, and what came of all of them. */
import type { ComponentChildren, JSX } from "preact";
import { duration, exact } from "../format";
import { type Evacuation, type Picture, isAlive } from "../model";
import { State, Tiles } from "../parts/facts";
import { Table } from "../parts/table";

const OUTCOMES: [string, string][] = [
  ["arrived", "arrived at a node"],
  ["departed", "left a node"],
  ["rolled_back", "stayed after all"],
  ["came_back", "client came back"],
  ["did_not_come", "client did not come"],
  ["given_up", "given up"],
  ["new_sessions", "new sessions for clients whose node was away"],
  ["fenced", "old sessions found later"],
  ["handed_over", "messages handed over from them"],
];

interface Journey {
  client: string;
  from: string;
  to: string;
  said: ComponentChildren;
  seconds: number;
}

function Journeys(given: { label: string; rows: Journey[]; empty: string; said: string; when: string }): JSX.Element {
  return (
    <Table
      label={given.label}
      rows={given.rows}
      rowKey={(row) => `${row.client}\t${row.from}\t${row.to}\t${row.seconds}`}
      empty={given.empty}
      columns={[
        { title: "client", heads: true, cell: (row) => row.client },
        { title: "from", cell: (row) => row.from },
        { title: "to", cell: (row) => row.to },
        { title: given.said, wide: true, cell: (row) => row.said },
        { title: given.when, number: true, cell: (row) => duration(row.seconds) },
      ]}
    />
  );
}

function Emptying(given: { node: string; found: Evacuation }): JSX.Element {
  const { node, found } = given;
  const done = Math.max(0, found.total - found.left);
  const left = found.rate > 0 ? ` About ${duration(found.left / found.rate)} to go.` : "";
  return (
    <div class="card">
      <label>
        {node} is being emptied: {done} of {found.total} sessions are done
        <progress max={Math.max(1, found.total)} value={done} />
      </label>
      <p class="faint">
        {found.moved} moved, {found.sent_away} sent away, {found.failed} to be tried again, {found.staying} stay;
        {" "}{found.rate} a second at most.{found.left > 0 ? left : ""}
      </p>
    </div>
  );
}

export function MovesPage(given: { picture: Picture }): JSX.Element {
  const rows = given.picture.nodes.filter(isAlive);
  const under = rows.flatMap((row) => row.leaving.map((one) => ({ ...one, from: row.node, said: one.state })));
  const moved: Journey[] = rows.flatMap((row) =>
    row.moved.map((one) => ({ ...one, from: row.node, said: <State level="good">moved in {duration(one.took_s)}</State> })),
  );
  const failed: Journey[] = rows.flatMap((row) =>
    row.not_moved.map((one) => ({ ...one, from: row.node, said: <State level="warning">not moved: {one.reason}</State> })),
  );
  return (
    <>
      <h1>Moves</h1>
      {rows.map((row) => row.evacuation && <Emptying key={row.node} node={row.node} found={row.evacuation} />)}
      <h2>Under way</h2>
      <Journeys label="Moves under way" rows={under} empty="No session is on its way." said="state" when="for" />
      <h2>Lately</h2>
      <Journeys
        label="Last moves"
        rows={[...failed, ...moved].sort((one, other) => one.seconds - other.seconds)}
        empty="No session has moved yet."
        said="outcome"
        when="ago"
      />
      <h2>Since the nodes started</h2>
      <Tiles tiles={OUTCOMES.map(([name, title]) => [title, exact(rows.reduce((all, row) => all + (row.move_counters[name] ?? 0), 0))])} />
    </>
  );
}
