/** GPU hours of a period: by hour as lines, by a key as a table and as a file. */

import type { ColumnDef } from '@tanstack/react-table';
import { useEffect, useMemo, useState } from 'react';

import { seesOthers, type Me, type Usage } from '@jupyter-gpu-quota/api';
import { DataTable, ErrorText, gpuMilliSeconds, LineChart, useGpuState, useNow, usePanelContext } from '@jupyter-gpu-quota/components';

import { usageFileAddress, type Frame } from '../frame';
import { Swatch } from '../pieces';
import { COST, HOURS, WAITS } from './columns';
import { addressOf, filterOf, KEYS, queryOf, type Filter, type Key } from './filter';
import { hoursOf } from './hours';

const EVERY_MS = 60_000;
const SHORT_ID = 8;
const NONE = { rows: [] as readonly Usage[], hours: [] as readonly Usage[], total: 0, loading: true, error: '' };

const OF_OTHERS = 'The work that you may see. Work of a user in several groups is counted in each.';
const OF_MEMBER = 'By user, group and job you see your own work; by project, department and pool also that of your projects.';

export function UsagePage({ frame }: { frame: Frame }): JSX.Element {
  const { me } = useGpuState();
  return me === null ? <p className="muted">Loading…</p> : <UsageOf me={me} frame={frame} />;
}

function UsageOf({ me, frame }: { me: Me; frame: Frame }): JSX.Element {
  const [filter, setFilter] = useState<Filter>(() => filterOf(window.location.search, new Date()));
  const by = filter.by || (seesOthers(me) ? 'project' : 'user');
  const { rows, hours, total, loading, error } = useUsage(filter, by);
  const hasCosts = rows.some(row => row.costs?.length);
  const columns = useMemo(() => columnsOf(by, hasCosts, frame.prefix), [by, hasCosts, frame.prefix]);
  return (
    <>
      <p className="lead">{seesOthers(me) ? OF_OTHERS : OF_MEMBER}</p>
      <FilterBar filter={filter} by={by} onChange={setFilter} />
      <ErrorText error={error} />
      <p className="muted" role="status" id="usage-count">
        {loading ? 'Loading…' : rows.length < total ? `The first ${rows.length} of ${total} rows by name; the file has all.` : ''}
      </p>
      {hours.length > 1 && <HourChart rows={hours} />}
      {rows.length > 0 && (
        <>
          <DataTable id="usage" className="named wide-labels" caption={`GPU hours by ${by}`} items={rows} columns={columns} keyOf={row => row.name} />
          <p>
            <a className="button" id="usage-csv" href={usageFileAddress(frame, queryOf(filter, by))} download>
              Download as CSV
            </a>
          </p>
        </>
      )}
      {!loading && rows.length === 0 && error === '' && <p className="empty">No work that you may see had a GPU in this time.</p>}
    </>
  );
}

/** The rows of a filter, most GPU hours first, and those by hour; read again while the page is seen. */
function useUsage(filter: Filter, by: Key): typeof NONE {
  const { model } = usePanelContext();
  const [found, setFound] = useState(NONE);
  const now = useNow(EVERY_MS);
  const tick = document.hidden ? 0 : now;
  useEffect(() => {
    let current = true;
    const { service } = model.transport;
    window.history.replaceState(null, '', window.location.pathname + addressOf(filter));
    Promise.all([service.usage(queryOf(filter, by)), service.usage(queryOf(filter, 'hour'))]).then(
      ([page, hours]) => {
        const rows = [...page.items].sort((a, b) => gpuMilliSeconds(b).allocated - gpuMilliSeconds(a).allocated);
        current && setFound({ rows, hours: hours.items, total: page.total, loading: false, error: '' });
      },
      (failure: Error) => current && setFound({ ...NONE, loading: false, error: failure.message }),
    );
    return () => {
      current = false;
    };
  }, [model, filter, by, tick]);
  return found;
}

function columnsOf(by: Key, hasCosts: boolean, prefix: string): ColumnDef<Usage>[] {
  const name: ColumnDef<Usage> = {
    id: 'name',
    accessorFn: row => row.job_name ?? row.name,
    header: `${by.slice(0, 1).toUpperCase()}${by.slice(1)}`,
    meta: { rowHeader: true },
    cell: ({ row }) => <Name row={row.original} by={by} prefix={prefix} />,
  };
  return [name, ...HOURS, ...WAITS, ...(hasCosts ? [COST] : [])];
}

function Name({ row, by, prefix }: { row: Usage; by: Key; prefix: string }): JSX.Element {
  if (by === 'job') {
    return (
      <>
        <a href={`${prefix}jobs/${encodeURIComponent(row.name)}`}>{row.job_name ?? row.name}</a> <span className="muted">{row.name.slice(-SHORT_ID)}</span>
      </>
    );
  }
  return (
    <>
      {by === 'project' && <Swatch project={row.name} />} {row.name || 'none'}
    </>
  );
}

interface FilterBarProps {
  filter: Filter;
  by: Key;
  onChange(filter: Filter): void;
}

function FilterBar({ filter, by, onChange }: FilterBarProps): JSX.Element {
  const day = (name: 'from' | 'to', label: string): JSX.Element => (
    <label>
      {label}
      <input id={`usage-${name}`} type="date" value={filter[name]} onChange={event => onChange({ ...filter, [name]: event.target.value })} />
    </label>
  );
  return (
    <div className="filters" role="search" aria-label="Usage">
      <label>
        By
        <select id="usage-by" value={by} onChange={event => onChange({ ...filter, by: event.target.value as Key })}>
          {KEYS.map(key => (
            <option key={key}>{key}</option>
          ))}
        </select>
      </label>
      {day('from', 'From')}
      {day('to', 'To, included')}
    </div>
  );
}

function HourChart({ rows }: { rows: readonly Usage[] }): JSX.Element {
  const { times, used, allocated } = useMemo(() => hoursOf(rows), [rows]);
  const lines = useMemo(
    () => [
      { name: 'allocated', values: allocated, colour: '--jp-warn-color1', stepped: true },
      { name: 'used', values: used, stepped: true },
    ],
    [used, allocated],
  );
  const range = useMemo(() => [0, 1.05 * Math.max(0.001, ...allocated)] as const, [allocated]);
  return (
    <figure className="jgq-chart" id="usage-hours">
      <figcaption>
        <span className="line-used">used</span> and <span className="line-allocated">allocated</span> GPU hours of each hour, of all projects that you see; a gap is unknown
      </figcaption>
      <LineChart label="Used and allocated GPU hours of each hour; the table below has the sums" times={times} lines={lines} name="GPU hours" range={range} large />
    </figure>
  );
}
