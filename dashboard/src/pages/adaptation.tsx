/** Adaptation: who decides, the pressure on each worker beside the thresholds, and the last decisions. */
import type { JSX } from "preact";
import { duration, percent } from "../format";
import { type Picture, type ShownCoordinator, type ShownWorker, coordinatorsOf } from "../model";
import { inWords } from "../parts/decisions";
import { type Level, State, Tiles } from "../parts/facts";
import { Table } from "../parts/table";

const LEVELS: Record<string, Level> = { serving: "good", off: "off", stuck: "error", failed: "error" };

const BAR = 160;
/** Labels of thresholds that are nearer than this would cover each other. */
const APART = 34;

/** A bar from nothing to beyond both thresholds, which are marked and named. */
function Pressure(given: { worker: ShownWorker; up: number; down: number }): JSX.Element {
  const { worker, up, down } = given;
  if (worker.is_needed) return <>the last node: it stays</>;
  if (worker.pressure === null) return <>–</>;
  const most = Math.max(up * 1.5, worker.pressure, Number.MIN_VALUE);
  const at = (value: number): number => BAR * Math.min(1, Math.max(0, value / most));
  const level = worker.pressure > up ? "high" : worker.pressure < down ? "low" : "";
  const marks = at(up) - at(down) < APART ? [up] : [down, up];
  return (
    <span class="pressure">
      <span>{worker.pressure === 0 ? "0" : worker.pressure.toPrecision(2)}</span>
      <svg viewBox={`0 0 ${BAR} 28`} class={level} aria-hidden="true">
        <rect class="trough" y="2" width={BAR} height="10" />
        <rect class="filled" y="2" width={at(worker.pressure).toFixed(1)} height="10" />
        {marks.map((value) => (
          <g key={value}>
            <line x1={Math.max(1, at(value))} x2={Math.max(1, at(value))} y1="0" y2="15" />
            <text x={at(value) < APART / 2 ? 0 : at(value)} y="26" font-size="11" text-anchor={at(value) < APART / 2 ? "start" : "middle"}>
              {value}
            </text>
          </g>
        ))}
      </svg>
    </span>
  );
}

function Region(given: { region: string; coordinators: ShownCoordinator[] }): JSX.Element {
  const shown = given.coordinators.find((one) => one.leads) ?? given.coordinators[0];
  if (!shown) return <></>;
  const others = given.coordinators.filter((one) => one !== shown).map((one) => one.coordinator);
  return (
    <section aria-label={`Region ${given.region}`}>
      <h2>Region {given.region}</h2>
      <p>
        <State level={!shown.leads || shown.frozen ? "warning" : "good"}>
          {shown.leads ? `coordinator ${shown.coordinator} leads` : `nobody leads yet; coordinator ${shown.coordinator} stands by`}
        </State>
        {shown.frozen && ", and nothing changes: frozen by an operator"}
        {shown.dry_run && ", in a dry run: it gives no orders"}
        {others.length > 0 && `; ${others.join(", ")} stands by`}.
      </p>
      <Tiles
        tiles={[
          ["workers", `${shown.workers.length}`],
          ["nodes that run", `${shown.workers.filter((one) => one.state !== "off").length}`],
          ["gateways", `${shown.gateways}`],
          ["gateways without a node", `${shown.unserved}`],
          ["orders under way", `${shown.orders}`],
          ["term", `${shown.term}`],
        ]}
      />
      <Table
        label={`Workers of ${given.region}`}
        rows={shown.workers}
        rowKey={(row) => row.worker}
        empty="No worker has reported yet."
        mark={["worker", (row) => row.worker]}
        columns={[
          { title: "worker", heads: true, cell: (row) => row.worker },
          { title: "site", cell: (row) => row.site || "–" },
          { title: "its node", cell: (row) => <State level={LEVELS[row.state] ?? "warning"}>{row.fixed ? `${row.state}, fixed` : row.state}</State> },
          { title: "pressure", cell: (row) => <Pressure worker={row} up={shown.up} down={shown.down} /> },
          { title: "gateways", number: true, cell: (row) => row.gateways },
          { title: "other clients", number: true, cell: (row) => row.others },
          { title: "CPU", number: true, cell: (row) => percent(row.cpu) },
          { title: "trouble", cell: (row) => row.trouble },
        ]}
      />
      <p class="faint">
        The marks in the bars: a node is started where the pressure stays above {shown.up}, and stopped where it stays below {shown.down}; a fixed node is never stopped. Model: {shown.model}.
        {shown.lost.length > 0 && ` Lost: ${shown.lost.join(", ")}.`}
      </p>
      <h3>Last decisions</h3>
      <Table
        label={`Decisions of ${given.region}`}
        rows={shown.decisions}
        rowKey={(row) => `${row.decision} ${row.seconds_ago}`}
        empty="Nothing had to change yet."
        columns={[
          { title: "ago", number: true, cell: (row) => duration(row.seconds_ago + shown.seconds) },
          { title: "decision", wide: true, cell: (row) => inWords(row.decision).decision },
          { title: "because", wide: true, cell: (row) => inWords(row.decision).reason || "–" },
          { title: "ordered", cell: (row) => (row.not_ordered === "" ? <State level="good">ordered</State> : <State level="warning">not: {row.not_ordered}</State>) },
        ]}
      />
    </section>
  );
}

export function AdaptationPage(given: { picture: Picture }): JSX.Element {
  const found = coordinatorsOf(given.picture);
  const regions = [...new Set(found.map((one) => one.region))].sort();
  return (
    <>
      <h1>Adaptation</h1>
      {regions.length === 0 && <p class="nothing">No coordinator has spoken to a node of this network. Where sterna coordinator runs, this page says what it decides and why.</p>}
      {regions.map((region) => (
        <Region key={region} region={region} coordinators={found.filter((one) => one.region === region)} />
      ))}
    </>
  );
}
