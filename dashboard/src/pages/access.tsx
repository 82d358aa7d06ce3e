/** Users and access rules of all nodes, and which rule decides; operators change them. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { get } from "../api";
import { State, Trouble } from "../parts/facts";
import { Choice, TextField } from "../parts/fields";
import { usePolled } from "../parts/polled";
import { Table, type TableColumn } from "../parts/table";
import { BarDialog, type ChangedAtNodes, PasswordDialog, RemoveRuleDialog, ResetDialog, RuleDialog, type RuleOrder } from "./access_orders";

interface UserRow {
  user: string;
  barred: boolean;
  set_by: "file" | "command";
}

/** The last row is the default, which has an effect only. */
interface RuleRow extends Partial<Omit<RuleOrder, "name" | "effect">> {
  number: number;
  name: string | null;
  effect: RuleOrder["effect"];
  set_by: "file" | "command" | "default";
}

interface Rows<Row> {
  rows: Row[];
}

type Order = "password" | "bar" | "reset";

interface Orderly {
  operator: boolean;
  told: (words: string) => void;
}

const inWords = (change: string, { rows, silent }: ChangedAtNodes): string => {
  const cut = rows.reduce((sum, row) => sum + row.disconnected, 0);
  const late = silent.length === 0 ? "" : `; ${silent.join(", ")} did not answer and will get it later`;
  return `${change}: done at ${rows.map((row) => row.node).sort().join(", ")}, ${cut} disconnected${late}`;
};

function Users(given: Orderly): JSX.Element {
  const [text, setText] = useState("");
  const [found, trouble, again] = usePolled(() => get("/users", { text }) as Promise<Rows<UserRow>>, [text]);
  const [order, setOrder] = useState<[Order, string] | null>(null);
  const ends = {
    close: (): void => { setOrder(null); },
    done: (change: string, answer: ChangedAtNodes): void => {
      given.told(inWords(change, answer));
      again();
    },
  };
  const button = (kind: Order, title: string, user: string, joint = " "): JSX.Element => (
    <button type="button" onClick={() => { setOrder([kind, user]); }} aria-label={`${title}${joint}${user}`}>
      {title}
    </button>
  );
  const columns: TableColumn<UserRow>[] = [
    { title: "user", heads: true, cell: (row) => row.user },
    { title: "state", cell: (row) => <State level={row.barred ? "error" : "good"}>{row.barred ? "barred" : "may come in"}</State> },
    { title: "set by", cell: (row) => row.set_by },
  ];
  const orders = (row: UserRow): JSX.Element => (
    <span class="orders">
      {button("password", "Set password", row.user, " of ")}
      {!row.barred && button("bar", "Bar", row.user)}
      {row.set_by === "command" && button("reset", "Reset", row.user)}
    </span>
  );
  if (given.operator) columns.push({ title: "orders", hidden: true, cell: orders });
  return (
    <section aria-label="Users">
      <h2>Users</h2>
      <TextField label="Name contains" type="search" value={text} change={setText} />
      <Trouble text={trouble} />
      {found && <Table label="List of users" rows={found.rows} rowKey={(row) => row.user} empty="No user has a password here." mark={["user", (row) => row.user]} columns={columns} />}
      {given.operator && (
        <p class="orders">
          <button type="button" onClick={() => { setOrder(["password", ""]); }}>Add a user…</button>
          <button type="button" onClick={() => { setOrder(["bar", ""]); }}>Bar a user…</button>
        </p>
      )}
      {order?.[0] === "password" && <PasswordDialog user={order[1]} {...ends} />}
      {order?.[0] === "bar" && <BarDialog user={order[1]} {...ends} />}
      {order?.[0] === "reset" && <ResetDialog user={order[1]} {...ends} />}
    </section>
  );
}

const EMPTY: RuleOrder = { name: "", effect: "allow", access: "both", filters: [], user: ["*"], client: [] };
const orderOf = (row: RuleRow): RuleOrder => ({ ...EMPTY, ...row, name: row.name ?? "" });

function who(row: RuleRow): string {
  const clients = row.client ?? [];
  return (row.user ?? []).join(", ") + (clients.length > 0 ? ` as ${clients.join(", ")}` : "");
}

function Rules(given: Orderly): JSX.Element {
  const [found, trouble, again] = usePolled(() => get("/access") as Promise<Rows<RuleRow>>, []);
  const [changed, setChanged] = useState<RuleOrder | null>(null);
  const [removed, setRemoved] = useState("");
  const done = (change: string, answer: ChangedAtNodes): void => {
    given.told(inWords(change, answer));
    again();
  };
  const columns: TableColumn<RuleRow>[] = [
    { title: "number", number: true, cell: (row) => row.number },
    { title: "effect", cell: (row) => <State level={row.effect === "allow" ? "good" : "error"}>{row.set_by === "default" ? `otherwise ${row.effect}` : row.effect}</State> },
    { title: "who", cell: who },
    { title: "may", cell: (row) => (row.access === "both" ? "publish and subscribe" : (row.access ?? "")) },
    { title: "topics", cell: (row) => <code>{(row.filters ?? []).join(", ")}</code> },
    { title: "set by", cell: (row) => (row.name === null ? row.set_by : `command, as ${row.name}`) },
  ];
  const orders = (row: RuleRow): JSX.Element | null =>
    row.name === null ? null : (
      <span class="orders">
        <button type="button" onClick={() => { setChanged(orderOf(row)); }} aria-label={`Change rule ${row.name}`}>Change</button>
        <button type="button" onClick={() => { setRemoved(row.name ?? ""); }} aria-label={`Remove rule ${row.name}`}>Remove</button>
      </span>
    );
  if (given.operator) columns.push({ title: "orders", hidden: true, cell: orders });
  return (
    <section aria-label="Rules">
      <h2>Rules</h2>
      <p>They are read in this order; the first one that fits decides.</p>
      <Trouble text={trouble} />
      {found && <Table label="List of rules" rows={found.rows} rowKey={(row) => `${row.number}`} mark={["rule", (row) => row.name ?? ""]} columns={columns} />}
      {given.operator && (
        <p class="orders">
          <button type="button" onClick={() => { setChanged(EMPTY); }}>Add a rule…</button>
        </p>
      )}
      {changed && <RuleDialog rule={changed} close={() => { setChanged(null); }} done={done} />}
      {removed !== "" && <RemoveRuleDialog name={removed} close={() => { setRemoved(""); }} done={done} />}
    </section>
  );
}

interface Decision {
  allowed: boolean;
  reason: string;
  unknown_user: boolean;
}

function Check(): JSX.Element {
  const [user, setUser] = useState("");
  const [client, setClient] = useState("");
  const [topic, setTopic] = useState("");
  const [access, setAccess] = useState("publish");
  const request = JSON.stringify({ topic, user: user === "" ? null : user, client, access });
  const ask = async (): Promise<Rows<Decision>> => (topic === "" ? { rows: [] } : (get("/access/check", { request }) as Promise<Rows<Decision>>));
  const [found, trouble] = usePolled(ask, [request]);
  const decision = found?.rows[0];
  return (
    <section class="card" aria-label="Which rule decides">
      <h2>Which rule decides</h2>
      <div class="filters">
        <TextField label="User (empty: anonymous)" value={user} change={setUser} autocomplete="off" />
        <TextField label="Client identifier" value={client} change={setClient} autocomplete="off" />
        <Choice label="Wants to" value={access} change={setAccess} options={[["publish", "publish"], ["subscribe", "subscribe"]]} />
        <TextField label={access === "publish" ? "To topic" : "To filter"} value={topic} change={setTopic} spellcheck={false} autocomplete="off" />
      </div>
      <Trouble text={trouble} />
      <p role="status">
        {decision && (
          <>
            <State level={decision.allowed ? "good" : "error"}>{decision.allowed ? "allowed" : "denied"}</State>: {decision.reason}
            {decision.unknown_user && "; but no such user is let in"}
          </>
        )}
      </p>
    </section>
  );
}

export function AccessPage(given: { operator: boolean }): JSX.Element {
  const [said, setSaid] = useState("");
  return (
    <>
      <h1>Access</h1>
      <p role="status" aria-label="Last change">{said}</p>
      <Users operator={given.operator} told={setSaid} />
      <Rules operator={given.operator} told={setSaid} />
      <Check />
    </>
  );
}
