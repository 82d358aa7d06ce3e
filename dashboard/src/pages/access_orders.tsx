/** Changes of users and access rules, each behind a dialog; every one is made at all nodes. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { post } from "../api";
import { Dialog } from "../parts/dialog";
import { Choice, LinesField, TextField } from "../parts/fields";

export interface ChangedAtNodes {
  rows: { node: string; disconnected: number }[];
  /** Nodes that did not answer; they get the change when they answer again. */
  silent: string[];
}

interface Ends {
  close: () => void;
  done: (change: string, answer: ChangedAtNodes) => void;
}

async function order(path: string, body: object, change: string, ends: Ends): Promise<void> {
  ends.done(change, (await post(path, body)) as ChangedAtNodes);
}

function UserField(given: { fixed: string; value: string; change: (value: string) => void }): JSX.Element | null {
  return given.fixed === "" ? <TextField label="User" value={given.value} change={given.change} required autocomplete="off" /> : null;
}

/** Without a user: one that is added. */
export function PasswordDialog(given: { user: string } & Ends): JSX.Element {
  const [user, setUser] = useState(given.user);
  const [password, setPassword] = useState("");
  return (
    <Dialog
      title={given.user === "" ? "Add a user" : `Set the password of ${given.user}`}
      action="Set"
      act={() => order("/users", { user, password }, `password of ${user}`, given)}
      close={given.close}
    >
      <p>Clients that came in with another password are cut off.</p>
      <UserField fixed={given.user} value={user} change={setUser} />
      <TextField label="Password" type="password" value={password} change={setPassword} required autocomplete="new-password" />
    </Dialog>
  );
}

/** Without a user: one whose name is asked for, such as one with a token or a certificate. */
export function BarDialog(given: { user: string } & Ends): JSX.Element {
  const [user, setUser] = useState(given.user);
  return (
    <Dialog
      title={given.user === "" ? "Bar a user" : `Bar ${given.user}`}
      action="Bar"
      danger
      act={() => order("/users", { user, bar: true }, `${user} barred`, given)}
      close={given.close}
    >
      <p>The user is cut off at once and kept out by all nodes, by password, token and certificate.</p>
      <UserField fixed={given.user} value={user} change={setUser} />
    </Dialog>
  );
}

export function ResetDialog(given: { user: string } & Ends): JSX.Element {
  const { user } = given;
  return (
    <Dialog title={`Reset ${user}`} action="Reset" act={() => order("/users", { user, reset: true }, `${user} reset`, given)} close={given.close}>
      <p>What was set here is forgotten: the files of each node decide about the user again.</p>
    </Dialog>
  );
}

export interface RuleOrder {
  name: string;
  effect: "allow" | "deny";
  access: "publish" | "subscribe" | "both";
  filters: string[];
  user: string[];
  client: string[];
}

const lines = (text: string): string[] => text.split("\n").filter((line) => line !== "");

/** Without a name: one that is added. */
export function RuleDialog(given: { rule: RuleOrder } & Ends): JSX.Element {
  const { rule } = given;
  const [name, setName] = useState(rule.name);
  const [effect, setEffect] = useState<string>(rule.effect);
  const [access, setAccess] = useState<string>(rule.access);
  const [filters, setFilters] = useState(rule.filters.join("\n"));
  const [user, setUser] = useState(rule.user.join("\n"));
  const [client, setClient] = useState(rule.client.join("\n"));
  const body = { name, effect, access, filters: lines(filters), user: lines(user), client: lines(client) };
  return (
    <Dialog
      title={rule.name === "" ? "Add a rule" : `Change rule ${rule.name}`}
      action="Set"
      act={() => order("/access", body, `rule ${name}`, given)}
      close={given.close}
    >
      <p>Rules set here are read in the order of their names, before those of the configuration.</p>
      {rule.name === "" && <TextField label="Name" value={name} change={setName} required autocomplete="off" />}
      <Choice label="Effect" value={effect} change={setEffect} options={[["allow", "allow"], ["deny", "deny"]]} />
      <Choice label="To" value={access} change={setAccess} options={[["both", "publish and subscribe"], ["publish", "publish"], ["subscribe", "subscribe"]]} />
      <LinesField label="Topic filters, one to a line; %u is the user, %c the client" value={filters} change={setFilters} rows={3} />
      <LinesField label="Users, one to a line; * is everybody" value={user} change={setUser} rows={2} />
      <LinesField label="Client identifiers, one to a line; empty is all" value={client} change={setClient} rows={2} optional />
    </Dialog>
  );
}

export function RemoveRuleDialog(given: { name: string } & Ends): JSX.Element {
  const { name } = given;
  return (
    <Dialog title={`Remove rule ${name}`} action="Remove" danger act={() => order("/access", { name, remove: true }, `rule ${name} removed`, given)} close={given.close}>
      <p>Whether clients may do what it said is decided by the rules below it.</p>
    </Dialog>
  );
}
