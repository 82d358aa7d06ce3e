/** Orders to the network, each behind a dialog. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { post } from "../api";
import { Dialog } from "../parts/dialog";
import { Choice, TextField, named } from "../parts/fields";

export function EvacuateDialog(given: { node: string; stop: boolean; close: () => void }): JSX.Element {
  const [speed, setSpeed] = useState("50");
  return (
    <Dialog
      title={given.stop ? `Let clients into ${given.node} again` : `Empty ${given.node}`}
      action={given.stop ? "Let them in" : "Empty it"}
      danger={!given.stop}
      act={() => post("/evacuate", given.stop ? { node: given.node, stop: true } : { node: given.node, rate: Number(speed) })}
      close={given.close}
    >
      {!given.stop && (
        <>
          <p>All clients of the node are moved to others. It stays empty until it is told otherwise.</p>
          <TextField label="Clients per second" type="number" min="1" max="100000" value={speed} change={setSpeed} />
        </>
      )}
    </Dialog>
  );
}

export function KickDialog(given: { client: string; close: () => void }): JSX.Element {
  return (
    <Dialog title="Disconnect a client" action="Disconnect" danger act={() => post("/kick", { client: given.client })} close={given.close}>
      <p>
        <code>{given.client}</code> is disconnected. Its session stays, and it may come back at once.
      </p>
    </Dialog>
  );
}

export function MoveDialog(given: { client: string; from: string; nodes: string[]; close: () => void }): JSX.Element {
  const others = given.nodes.filter((node) => node !== given.from);
  const [to, setTo] = useState(others[0] ?? "");
  return (
    <Dialog title="Move a client" action="Move" act={() => post("/move", { client: given.client, to })} close={given.close}>
      <p>
        <code>{given.client}</code> is at {given.from}. Its session goes with it; nothing is lost.
      </p>
      <Choice label="To node" value={to} change={setTo} options={named(others)} />
    </Dialog>
  );
}

const SPANS: [string, string][] = [
  ["600", "ten minutes"],
  ["3600", "an hour"],
  ["86400", "a day"],
  ["", "until it is lifted"],
];

export function BanDialog(given: { client: string; close: () => void }): JSX.Element {
  const [span, setSpan] = useState("3600");
  const [reason, setReason] = useState("");
  const order = { client: given.client, reason, ...(span === "" ? {} : { for_s: Number(span) }) };
  return (
    <Dialog title="Ban a client" action="Ban" danger act={() => post("/bans", order)} close={given.close}>
      <p>
        <code>{given.client}</code> is cut off at once and kept out by all nodes. Its session stays.
      </p>
      <Choice label="For" value={span} change={setSpan} options={SPANS} />
      <TextField label="Reason" value={reason} change={setReason} />
    </Dialog>
  );
}

/** `name` is such as "client:meter". */
export function LiftDialog(given: { name: string; close: () => void }): JSX.Element {
  const [subject, ...rest] = given.name.split(":");
  return (
    <Dialog title="Lift a ban" action="Lift it" act={() => post("/bans", { [subject ?? ""]: rest.join(":"), lift: true })} close={given.close}>
      <p>
        <code>{given.name}</code> may come in again.
      </p>
    </Dialog>
  );
}
