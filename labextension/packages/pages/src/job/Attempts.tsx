/** Every rank of every attempt: where it ran, from when to when, and its end. */

import type { ColumnDef } from '@tanstack/react-table';

import type { JobDetail, Rank } from '@jupyter-gpu-quota/api';
import { DataTable, duration, useClock } from '@jupyter-gpu-quota/components';

import { Quiet, When } from '../pieces';

const COLUMNS: ColumnDef<Rank>[] = [
  { id: 'attempt', accessorKey: 'attempt', header: 'Attempt', meta: { rowHeader: true, className: 'num' }, cell: ({ row }) => row.original.attempt },
  { id: 'rank', accessorKey: 'rank', header: 'Rank', meta: { label: 'Rank', className: 'num' }, cell: ({ row }) => row.original.rank },
  { id: 'node', accessorKey: 'node', header: 'Node', meta: { label: 'Node' }, cell: ({ row }) => row.original.node },
  { id: 'handle', enableSorting: false, header: 'Process', meta: { label: 'Process', className: 'num' }, cell: ({ row }) => row.original.handle ?? <Quiet>–</Quiet> },
  { id: 'started', accessorKey: 'started_at', header: 'Started', meta: { label: 'Started' }, cell: ({ row }) => <When at={row.original.started_at} /> },
  { id: 'ended', accessorKey: 'ended_at', header: 'Ended', meta: { label: 'Ended' }, cell: ({ row }) => <When at={row.original.ended_at} /> },
  { id: 'ran', enableSorting: false, header: 'Ran for', meta: { label: 'Ran for', className: 'num' }, cell: ({ row }) => <Ran rank={row.original} /> },
  { id: 'result', enableSorting: false, header: 'Result', meta: { label: 'Result' }, cell: ({ row }) => row.original.exit_text ?? <Quiet>–</Quiet> },
];

function Ran({ rank }: { rank: Rank }): JSX.Element {
  const now = useClock(5_000);
  return rank.started_at ? (
    <>{duration((rank.ended_at ? Date.parse(rank.ended_at) : now) - Date.parse(rank.started_at))}</>
  ) : (
    <Quiet>–</Quiet>
  );
}

export function Attempts({ job }: { job: JobDetail }): JSX.Element {
  const ranks = [...job.rank_records].sort((a, b) => b.attempt - a.attempt || a.rank - b.rank);
  return (
    <section aria-labelledby="ranks-title" id="attempts">
      <h2 id="ranks-title">Attempts</h2>
      {ranks.length > 0 ? (
        <DataTable
          id="ranks"
          className="attempts"
          caption="Every rank of every attempt"
          items={ranks}
          columns={COLUMNS}
          keyOf={rank => `${rank.attempt}-${rank.rank}`}
          rowIdOf={rank => `rank-${rank.attempt}-${rank.rank}`}
        />
      ) : (
        <p className="muted">{job.ended_at ? 'It never started.' : 'It has not started yet.'}</p>
      )}
    </section>
  );
}
