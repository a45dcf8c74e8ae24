/** The audit: every decision and edit, read part by part, and the check of its hash chain. */

import type { ColumnDef } from '@tanstack/react-table';
import { useEffect, useState } from 'react';

import { mayReadWholeAudit, type AuditRow } from '@jupyter-gpu-quota/api';
import { DataTable, ErrorText, useAction, useGpuState, usePanelContext } from '@jupyter-gpu-quota/components';

import { When } from '../pieces';
import { filterOf, NO_FILTER, type Filter } from './filter';
import { useRows } from './useRows';

const COLUMNS: ColumnDef<AuditRow>[] = [
  { id: 'seq', header: 'No.', meta: { rowHeader: true, className: 'num' }, cell: ({ row }) => row.original.seq },
  { id: 'at', header: 'When', meta: { label: 'When' }, cell: ({ row }) => <When at={row.original.at} /> },
  { id: 'who', header: 'Actor', meta: { label: 'Actor' }, cell: ({ row }) => row.original.who },
  { id: 'what', header: 'Action', meta: { label: 'Action' }, cell: ({ row }) => row.original.what },
  { id: 'project', header: 'Project', meta: { label: 'Project' }, cell: ({ row }) => row.original.project ?? '' },
  { id: 'details', header: 'Details', meta: { label: 'Details' }, cell: ({ row }) => <Details row={row.original} /> },
];

function Details({ row }: { row: AuditRow }): JSX.Element {
  return (
    <details>
      <summary>show</summary>
      <p className="muted">
        {row.kind} of <code>{row.subject}</code>
      </p>
      <pre>{JSON.stringify(row.payload, null, 1)}</pre>
      <p className="muted">
        hash <code>{row.hash}</code>
      </p>
    </details>
  );
}

export function AuditPage(): JSX.Element {
  const { me } = useGpuState();
  const [filter, setFilter] = useState<Filter>(() => filterOf(window.location.search));
  const { rows, total, loading, error, more } = useRows(filter);
  const isAuditor = me !== null && mayReadWholeAudit(me);
  return (
    <>
      <p className="lead">
        Every decision and edit, newest first. Each row contains the hash of the previous row; figures and hash are under Details.
        {me !== null && !isAuditor && ' You see the rows of the projects that you lead.'}
      </p>
      {isAuditor && <Verify />}
      <FilterBar filter={filter} rows={rows} onChange={setFilter} />
      <ErrorText error={error} />
      <p className="muted" role="status" id="audit-count">
        {loading ? 'Loading…' : `${rows.length} of ${total} rows are shown${rows.length < total ? '; more are read at the end of the list' : ''}.`}
      </p>
      {!loading && rows.length === 0 && error === '' && (
        <p className="empty">
          No row matches. <button onClick={() => setFilter(NO_FILTER)}>Show all</button>
        </p>
      )}
      <DataTable
        id="audit"
        className="audit"
        caption="Audit rows"
        items={rows}
        columns={COLUMNS}
        keyOf={row => String(row.seq)}
        total={total}
        onEnd={more}
      />
    </>
  );
}

function Verify(): JSX.Element {
  const { model } = usePanelContext();
  const { busy, error, run } = useAction();
  const [verified, setVerified] = useState('');
  const verify = async (): Promise<void> => setVerified((await model.transport.service.verifyAudit()).message);
  return (
    <p>
      <button type="button" id="verify" aria-disabled={busy || undefined} onClick={() => busy || void run(verify)}>
        Verify the chain
      </button>{' '}
      <span id="verified" role="status">
        {busy ? 'Checking…' : error || verified}
      </span>
    </p>
  );
}

interface ActionSelectProps {
  value: string;
  onChange(action: string): void;
}

/** The actions in the words of the rows. An address may have the beginning of a kind, or other words. */
function ActionSelect({ value, onChange }: ActionSelectProps): JSX.Element {
  const { model } = usePanelContext();
  const [known, setKnown] = useState<readonly { kind: string; words: string }[]>([]);
  useEffect(() => {
    model.transport.service.auditActions().then(setKnown, () => undefined); // An error of the rows is shown.
  }, [model]);
  return (
    <label>
      Action
      <select id="filter-action" value={value} onChange={event => onChange(event.target.value)}>
        <option value="">all</option>
        {value !== '' && !known.some(one => one.kind === value) && <option value={value}>{value}</option>}
        {known.map(one => (
          <option key={one.kind} value={one.kind}>
            {one.words}
          </option>
        ))}
      </select>
    </label>
  );
}

interface FilterBarProps {
  filter: Filter;
  rows: readonly AuditRow[];
  onChange(filter: Filter): void;
}

/** The service filters; the rows that are shown are suggestions. */
function FilterBar({ filter, rows, onChange }: FilterBarProps): JSX.Element {
  const { projects } = useGpuState();
  const field = (name: keyof Filter, label: string, type: string, suggested: readonly (string | null)[] = []): JSX.Element => (
    <label>
      {label}
      <input
        id={`filter-${name}`}
        type={type}
        list={suggested.length > 0 ? `known-${name}` : undefined}
        value={filter[name]}
        onChange={event => onChange({ ...filter, [name]: event.target.value })}
      />
      {suggested.length > 0 && (
        <datalist id={`known-${name}`}>
          {[...new Set(suggested)].map(value => value && <option key={value} value={value} />)}
        </datalist>
      )}
    </label>
  );
  return (
    <div className="filters" role="search" aria-label="Audit">
      {field('actor', 'Actor', 'search', rows.map(row => row.who))}
      <ActionSelect value={filter.action} onChange={action => onChange({ ...filter, action })} />
      {field('project', 'Project', 'search', projects.map(project => project.name))}
      {field('since', 'From', 'datetime-local')}
      {field('until', 'Until', 'datetime-local')}
    </div>
  );
}
