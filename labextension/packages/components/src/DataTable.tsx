/** A table of which only the visible rows are drawn; on a phone each row is a card with the names of its figures. */

import { flexRender, getCoreRowModel, getSortedRowModel, useReactTable } from '@tanstack/react-table';
import type { ColumnDef, OnChangeFn, Row, RowData, RowSelectionState, SortingState } from '@tanstack/react-table';
import { defaultRangeExtractor, useVirtualizer, type VirtualItem } from '@tanstack/react-virtual';
import { Fragment, memo, useCallback, useEffect, useRef, useState, type CSSProperties } from 'react';

declare module '@tanstack/react-table' {
  // eslint-disable-next-line @typescript-eslint/no-unused-vars
  interface ColumnMeta<TData extends RowData, TValue> {
    /** Its name on a phone; without one the cell has none. */
    readonly label?: string;
    readonly className?: string;
    /** The column that names the row. */
    readonly rowHeader?: boolean;
  }
}

export interface DataTableProps<T> {
  /** The id of its element, and what it lists. */
  id: string;
  caption: string;
  className?: string;
  rowClassName?: string;
  items: readonly T[];
  columns: ColumnDef<T>[];
  /** The key of a row, and the id of its element. */
  keyOf(item: T): string;
  rowIdOf?(item: T): string;
  /** How many there are on the server, where more than `items`; and what reads more of them. */
  total?: number;
  onEnd?(): void;
  /** The order, where the server sorts. */
  sorting?: SortingState;
  onSorting?: OnChangeFn<SortingState>;
  selection?: RowSelectionState;
  onSelection?: OnChangeFn<RowSelectionState>;
}

const ROW_PX = 64;
/** Fewer rows are all drawn. */
const VIRTUAL_ABOVE = 40;
const NEAR_END = 30;

export function DataTable<T>(props: DataTableProps<T>): JSX.Element {
  const { id, caption, className = '', items, columns, keyOf, rowIdOf, total = items.length, onEnd } = props;
  const [sorting, setSorting] = useState<SortingState>([]);
  const table = useReactTable<T>({
    data: items as T[],
    columns,
    getRowId: keyOf,
    getCoreRowModel: getCoreRowModel(),
    getSortedRowModel: getSortedRowModel(),
    manualSorting: props.sorting !== undefined,
    enableSortingRemoval: props.sorting === undefined,
    state: { sorting: props.sorting ?? sorting, rowSelection: props.selection ?? {} },
    onSortingChange: props.onSorting ?? setSorting,
    onRowSelectionChange: props.onSelection,
  });
  const { rows } = table.getRowModel();
  const scroller = useRef<HTMLDivElement>(null);
  const [focused, setFocused] = useState<string | null>(null);
  const focusedIndex = focused === null ? -1 : rows.findIndex(row => row.id === focused);
  const isVirtual = rows.length > VIRTUAL_ABOVE;
  const virtual = useVirtualizer({
    enabled: isVirtual,
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_PX,
    getItemKey: index => rows[index]?.id ?? index,
    overscan: 8,
    // The focused row stays, so that it keeps the focus.
    rangeExtractor: range => [...new Set([...defaultRangeExtractor(range), ...(focusedIndex < 0 ? [] : [focusedIndex])])].sort((a, b) => a - b),
  });
  const drawn = isVirtual ? virtual.getVirtualItems() : null;
  const last = drawn === null ? rows.length - 1 : (drawn[drawn.length - 1]?.index ?? 0);
  useEffect(() => {
    if (rows.length < total && last > rows.length - NEAR_END) {
      onEnd?.();
    }
  }, [last, rows.length, total, onEnd]);
  const draw = (row: Row<T>, at: number): JSX.Element => (
    <TableRow
      key={row.id}
      row={row as Row<unknown>}
      item={row.original}
      columns={columns}
      isSelected={row.getIsSelected()}
      at={at}
      rowId={rowIdOf?.(row.original)}
      className={props.rowClassName}
      measure={isVirtual ? virtual.measureElement : undefined}
      onFocus={setFocused}
    />
  );
  return (
    <div className="scroll" id={`${id}-scroll`} ref={scroller} tabIndex={0} role="region" aria-label={caption}>
      <table id={id} role="table" className={`stack ${className}`} aria-rowcount={total + 1}>
        <caption>{caption}</caption>
        <thead role="rowgroup">
          <tr role="row">
            {table.getFlatHeaders().map(header => {
              const { meta, header: name } = header.column.columnDef;
              const sorted = header.column.getIsSorted();
              return (
                <th
                  key={header.id}
                  role="columnheader"
                  scope="col"
                  className={meta?.className}
                  aria-sort={sorted ? (sorted === 'asc' ? 'ascending' : 'descending') : undefined}
                >
                  {header.column.getCanSort() ? (
                    <button type="button" className="sort" onClick={header.column.getToggleSortingHandler()}>
                      {flexRender(name, header.getContext())}
                      <span aria-hidden="true">{sorted === 'asc' ? ' ▲' : sorted === 'desc' ? ' ▼' : ''}</span>
                    </button>
                  ) : (
                    flexRender(name, header.getContext())
                  )}
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {drawn === null ? rows.map(draw) : <Window drawn={drawn} height={virtual.getTotalSize()} rows={rows} draw={draw} />}
        </tbody>
      </table>
    </div>
  );
}

interface WindowProps<T> {
  drawn: VirtualItem[];
  height: number;
  rows: Row<T>[];
  draw(row: Row<T>, at: number): JSX.Element;
}

/** The drawn rows, with spaces for all others. */
function Window<T>({ drawn, height, rows, draw }: WindowProps<T>): JSX.Element {
  const end = drawn[drawn.length - 1]?.end ?? 0; // The space gives the table its height before the first rows are drawn.
  return (
    <>
      {drawn.map((item, at) => {
        const row = rows[item.index];
        const space = item.start - (at > 0 ? drawn[at - 1]!.end : 0);
        return (
          row && (
            <Fragment key={item.key}>
              {space > 0 && <Space px={space} />}
              {draw(row, item.index)}
            </Fragment>
          )
        );
      })}
      {height > end && <Space px={height - end} />}
    </>
  );
}

function Space({ px }: { px: number }): JSX.Element {
  const style: CSSProperties = { height: px };
  return (
    <tr className="space" aria-hidden="true">
      <td colSpan={99} style={style} />
    </tr>
  );
}

interface TableRowProps {
  row: Row<unknown>;
  /** These three decide whether the row is drawn again. */
  item: unknown;
  columns: unknown;
  isSelected: boolean;
  at: number;
  rowId: string | undefined;
  className: string | undefined;
  measure: ((node: Element | null) => void) | undefined;
  onFocus(key: string | null): void;
}

/** A selected row has no aria-selected, which rows of a table may not have: its checkbox says it. */
const TableRow = memo(
  function TableRow({ row, isSelected, at, rowId, className, measure, onFocus }: TableRowProps): JSX.Element {
    const blur = useCallback(() => onFocus(null), [onFocus]);
    return (
      <tr
        id={rowId}
        className={className}
        role="row"
        ref={measure}
        data-index={at}
        aria-rowindex={at + 2}
        data-selected={isSelected || undefined}
        onFocus={() => onFocus(row.id)}
        onBlur={blur}
      >
        {row.getVisibleCells().map(cell => {
          const { meta, cell: content } = cell.column.columnDef;
          const drawn = flexRender(content, cell.getContext());
          return meta?.rowHeader ? (
            <th key={cell.id} role="rowheader" scope="row" className={meta.className}>
              {drawn}
            </th>
          ) : (
            <td key={cell.id} role="cell" className={meta?.className} data-label={meta?.label}>
              <div>{drawn}</div>
            </td>
          );
        })}
      </tr>
    );
  },
  (a, b) =>
    a.item === b.item && a.columns === b.columns && a.isSelected === b.isSelected && a.at === b.at && a.measure === b.measure,
);
