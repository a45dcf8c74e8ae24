/** The revisions of the quota file; an admin puts an earlier one in force again. */

import type { ColumnDef } from '@tanstack/react-table';
import { createContext, useContext } from 'react';

import type { Page, Revision } from '@jupyter-gpu-quota/api';
import { ActionButton, DataTable, ErrorText, useAction, usePanelContext } from '@jupyter-gpu-quota/components';

import { When } from '../pieces';
import type { Accepted } from './edit';

/** So many the command line lists. */
const LISTED = 1_000;

const SHOWN: ColumnDef<Revision>[] = [
  { id: 'revision', accessorKey: 'revision', header: 'Revision', meta: { rowHeader: true, className: 'num' }, cell: ({ row }) => row.original.revision },
  { id: 'at', accessorKey: 'at', header: 'When', meta: { label: 'When' }, cell: ({ row }) => <When at={row.original.at} /> },
  { id: 'author', accessorKey: 'author', header: 'By', meta: { label: 'By' }, cell: ({ row }) => row.original.author },
  { id: 'comment', enableSorting: false, header: 'Comment', meta: { label: 'Comment' }, cell: ({ row }) => row.original.comment },
  {
    id: 'text',
    enableSorting: false,
    header: 'File',
    meta: { label: 'File' },
    cell: ({ row }) => (
      <details>
        <summary>show</summary>
        <pre>{row.original.text}</pre>
      </details>
    ),
  },
];

const ACTIONS: ColumnDef<Revision> = {
  id: 'actions',
  enableSorting: false,
  header: 'Actions',
  meta: { className: 'actions' },
  cell: ({ row }) => <Revert revision={row.original.revision} />,
};

const WITH_ACTIONS = [...SHOWN, ACTIONS];

interface Reverting {
  /** The revision in force. */
  readonly current: number;
  readonly busy: boolean;
  revert(revision: number): void;
}

/** What the buttons of the rows need. It is not in the columns: new columns get new cells, which lose the focus and unfolded text. */
const RevertContext = createContext<Reverting>({ current: 0, busy: false, revert: () => undefined });

function Revert({ revision }: { revision: number }): JSX.Element {
  const { current, busy, revert } = useContext(RevertContext);
  return revision === current ? (
    <span className="tag">in force</span>
  ) : (
    <ActionButton
      id={`revert-${revision}`}
      busy={busy}
      onClick={() => revert(revision)}
      after={() => document.getElementById('history-list-scroll')}
    >
      Put in force again<span className="unseen"> revision {revision}</span>
    </ActionButton>
  );
}

interface HistoryProps {
  /** The newest ones. */
  history: Page<Revision>;
  current: number;
  mayApply: boolean;
  accepted: Accepted;
  onReverted(): Promise<void>;
}

export function History({ history, current, mayApply, accepted, onReverted }: HistoryProps): JSX.Element {
  const { model, confirm, say } = usePanelContext();
  const { busy, error, run } = useAction();
  const revert = async (revision: number): Promise<void> => {
    if (await confirm(`Put revision ${revision} in force again?`, 'It becomes a new revision.', 'Put in force')) {
      const flags = { ...(accepted.removal && { accept_removal: '1' }), ...(accepted.stops && { accept_stops: '1' }) };
      const applied = await model.transport.service.revertQuota(revision, flags);
      say?.(`Revision ${applied.revision} is in force, with the text of revision ${revision}.`);
      await onReverted();
    }
  };
  return (
    <RevertContext.Provider value={{ current, busy, revert: revision => void run(() => revert(revision)) }}>
      <ErrorText error={error} />
      {history.items.length < history.total && (
        <p className="muted" id="history-cut">
          The newest {history.items.length} of {history.total.toLocaleString('en')}; <code>jupyter gpu-quota quota history</code> lists{' '}
          {history.total > LISTED ? `the newest ${LISTED.toLocaleString('en')}` : 'all'}.
        </p>
      )}
      <DataTable
        id="history-list"
        className="audit"
        caption="Revisions, newest first"
        items={history.items}
        total={history.total}
        columns={mayApply ? WITH_ACTIONS : SHOWN}
        keyOf={one => String(one.revision)}
        rowIdOf={one => `revision-${one.revision}`}
      />
    </RevertContext.Provider>
  );
}
