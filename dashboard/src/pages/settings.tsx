/** The settings in effect at a node; secrets are left out by the node itself. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { get } from "../api";
import { Trouble } from "../parts/facts";
import { Choice, Filters, TextField, named } from "../parts/fields";
import { usePolled } from "../parts/polled";
import { Table } from "../parts/table";

type Value = string | number | boolean | null | Value[] | { [name: string]: Value };

function flat(value: Value, place: string): [string, string][] {
  if (Array.isArray(value) && value.some((one) => typeof one === "object" && one !== null))
    return value.flatMap((one, number) => flat(one, `${place}[${number}]`));
  if (typeof value === "object" && value !== null && !Array.isArray(value))
    return Object.entries(value).flatMap(([name, one]) => flat(one, place === "" ? name : `${place}.${name}`));
  return [[place, JSON.stringify(value)]];
}

export function SettingsPage(given: { nodes: string[] }): JSX.Element {
  const [node, setNode] = useState(given.nodes[0] ?? "");
  const [part, setPart] = useState("");
  const [found, trouble] = usePolled(() => get("/dashboard/settings", { node }) as Promise<{ rows: { settings: Value }[] }>, [node], 10_000);
  const settings = found?.rows[0]?.settings;
  const rows = settings === undefined ? [] : flat(settings, "").filter(([name]) => name.includes(part));
  return (
    <>
      <h1>Settings</h1>
      <Filters>
        <Choice label="Node" value={node} change={setNode} options={named(given.nodes)} />
        <TextField label="Name" type="search" value={part} change={setPart} />
      </Filters>
      <Trouble text={trouble} />
      {found && settings === undefined && <p class="nothing">The node did not answer.</p>}
      <Table
        label="Settings"
        rows={rows}
        rowKey={([name]) => name}
        columns={[
          { title: "setting", heads: true, cell: ([name]) => <code>{name}</code> },
          { title: "value", wide: true, cell: ([, value]) => <code>{value}</code> },
        ]}
      />
    </>
  );
}
