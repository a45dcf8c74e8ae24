/** The audit: every decision and edit, read part by part, and the check of its hash chain. */

import type { ColumnDef } from '@tanstack/react-table';
import { useCallback, useEffect, useRef, useState } from 'react';

import { mayReadWholeAudit, type AuditRow } from '@jupyter-gpu-quota/api';
import { ErrorText, useAction, useGpuState, usePanelContext } from '@jupyter-gpu-quota/components';

import { DataTable } from '../DataTable';
import { When } from '../pieces';

const PART = 200;

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
  const { rows, total, error, more } = useRows();
  const isAuditor = me !== null && mayReadWholeAudit(me);
  return (
    <>
      <p className="lead">
        Every decision and edit, newest first. Each row contains the hash of the previous row; figures and hash are under Details.
        {me !== null && !isAuditor && ' You see the rows of the projects that you lead.'}
      </p>
      {isAuditor && <Verify />}
      <ErrorText error={error} />
      <p className="muted" role="status" id="audit-count">
        {rows.length} of {total} rows are shown; more are read at the end of the list.
      </p>
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

function useRows(): { rows: readonly AuditRow[]; total: number; error: string; more: () => void } {
  const { model } = usePanelContext();
  const [{ rows, total }, setFound] = useState<{ rows: AuditRow[]; total: number }>({ rows: [], total: 0 });
  const [error, setError] = useState('');
  const isReading = useRef(false);
  const count = rows.length;
  const more = useCallback(() => {
    if (isReading.current) {
      return;
    }
    isReading.current = true;
    model.transport.service
      .audit(count, PART)
      .then(
        page =>
          setFound(before => {
            // Rows that were added meanwhile shift the listing.
            const known = new Set(before.rows.map(row => row.seq));
            return { rows: [...before.rows, ...page.items.filter(row => !known.has(row.seq))], total: page.total };
          }),
        (failure: Error) => setError(failure.message),
      )
      .finally(() => {
        isReading.current = false;
      });
  }, [model, count]);
  useEffect(() => {
    if (count === 0) {
      more();
    }
  }, [count, more]);
  return { rows, total, error, more };
}
