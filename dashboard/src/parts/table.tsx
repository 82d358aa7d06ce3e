/** Tables: columns are data, a wide table scrolls within its frame, and an empty one says so in words. */
import type { ComponentChildren, JSX } from "preact";

export interface TableColumn<Row> {
  title: string;
  /** Read by screen readers only. */
  hidden?: boolean;
  number?: boolean;
  /** Its text is long. */
  wide?: boolean;
  /** The cell names its row. */
  heads?: boolean;
  cell: (row: Row) => ComponentChildren;
}

export function Table<Row>(given: {
  label: string;
  columns: TableColumn<Row>[];
  rows: Row[];
  rowKey: (row: Row) => string;
  /** Shown in place of a table without rows. */
  empty?: string;
  rowClass?: (row: Row) => string;
  /** The value of `data-NAME` on each row, for styles and tests. */
  mark?: [string, (row: Row) => string];
}): JSX.Element {
  const { columns, rows, mark } = given;
  if (rows.length === 0 && given.empty !== undefined) return <p class="nothing">{given.empty}</p>;
  return (
    <div class="scrolled" tabIndex={0} role="region" aria-label={given.label}>
      <table>
        <thead>
          <tr>
            {columns.map((column) => (
              <th scope="col" key={column.title} class={column.number === true ? "number" : undefined}>
                {column.hidden === true ? <span class="unseen">{column.title}</span> : column.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={given.rowKey(row)} class={given.rowClass?.(row)} {...(mark ? { [`data-${mark[0]}`]: mark[1](row) } : {})}>
              {columns.map((column) =>
                column.heads === true ? (
                  <th scope="row" key={column.title}>{column.cell(row)}</th>
                ) : (
                  <td key={column.title} class={column.number === true ? "number" : column.wide === true ? "wide" : undefined}>{column.cell(row)}</td>
                ),
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
