/** Subscriptions that compute, with their cost, and a form that explains an expression as it is typed. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { get } from "../api";
import { bytes, count } from "../format";
import { State, Trouble } from "../parts/facts";
import { TextField } from "../parts/fields";
import { usePolled } from "../parts/polled";
import { Table } from "../parts/table";

interface ExpressionRow {
  expression: string;
  node: string;
  subscribers: number;
  holder: string;
  engine: string;
  messages: number;
  results: number;
  /** Of its state; null where it was not weighed. */
  bytes: number | null;
  waiting: number;
  /** Why it is silent; empty: it is not. */
  stopped: string;
}

interface Explained {
  accepted: boolean;
  error?: string;
  steps: { step: string; gives: string; remark: string }[];
}

function Explain(): JSX.Element {
  const [text, setText] = useState("$AVG/plant/+/temp");
  const [found, trouble] = usePolled(() => get("/dashboard/explain", { expression: text }) as Promise<Explained>, [text], 60_000);
  return (
    <section class="card" aria-label="Explain an expression">
      <h2>Explain</h2>
      <TextField label="Expression" value={text} change={setText} spellcheck={false} autocomplete="off" />
      <Trouble text={trouble} />
      {found && !found.accepted && (
        <p class="trouble" role="status">
          {found.error}
        </p>
      )}
      {found?.accepted && (
        <ol class="steps">
          {found.steps.map((one) => (
            <li key={one.step}>
              <code>{one.step}</code>{one.gives && <>: {one.gives}</>} {one.remark && <span class="faint">{one.remark}</span>}
            </li>
          ))}
        </ol>
      )}
    </section>
  );
}

export function ComputingPage(): JSX.Element {
  const [found, trouble] = usePolled(() => get("/dashboard/expressions") as Promise<{ rows: ExpressionRow[] }>, []);
  return (
    <>
      <h1>Computing subscriptions</h1>
      <Trouble text={trouble} />
      {found && (
        <Table
          label="Expressions"
          rows={found.rows}
          rowKey={(row) => `${row.expression} ${row.node}`}
          empty="Nobody has subscribed to an expression."
          columns={[
            { title: "expression", heads: true, cell: (row) => <code>{row.expression}</code> },
            { title: "node", cell: (row) => row.node },
            { title: "computed by", cell: (row) => (row.stopped === "" ? row.engine : <State level="error">stopped: {row.stopped}</State>) },
            { title: "subscribers", number: true, cell: (row) => count(row.subscribers) },
            { title: "messages", number: true, cell: (row) => count(row.messages) },
            { title: "state", number: true, cell: (row) => (row.bytes === null ? "–" : bytes(row.bytes)) },
            { title: "results at QoS 1, 2", number: true, cell: (row) => count(row.results) },
            { title: "waiting for functions", number: true, cell: (row) => count(row.waiting) },
            { title: "charged to", cell: (row) => row.holder },
          ]}
        />
      )}
      <Explain />
    </>
  );
}
