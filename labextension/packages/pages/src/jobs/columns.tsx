/** The columns of the list of jobs. */

import type { ColumnDef } from '@tanstack/react-table';

import type { Job } from '@jupyter-gpu-quota/api';
import { ChangeButtons, duration, gpus, Start, useClock } from '@jupyter-gpu-quota/components';

import { ranksText, ranMs, reasonText, wholeMilli } from '../amounts';
import { Quiet, StateTag, Swatch, Under, Utilised, When } from '../pieces';

/** The ids of those that sort are names of columns of the service. */
export function jobColumns(prefix: string): ColumnDef<Job>[] {
  return [
    {
      id: 'select',
      enableSorting: false,
      header: () => <span className="unseen">Selected</span>,
      cell: ({ row }) => (
        <input type="checkbox" checked={row.getIsSelected()} onChange={row.getToggleSelectedHandler()} aria-label={`Select ${row.original.name}`} />
      ),
      meta: { className: 'select' },
    },
    {
      id: 'name',
      header: 'Job',
      enableSorting: false,
      meta: { rowHeader: true },
      cell: ({ row: { original: job } }) => <Name job={job} prefix={prefix} />,
    },
    { id: 'state', accessorKey: 'state', header: 'State', cell: ({ row }) => <State job={row.original} /> },
    { id: 'reason', header: 'Reason', enableSorting: false, meta: { className: 'why' }, cell: ({ row }) => <Why job={row.original} /> },
    { id: 'gpu', header: 'GPU', enableSorting: false, meta: { className: 'num', label: 'GPU' }, cell: ({ row }) => <Gpu job={row.original} /> },
    { id: 'priority', accessorKey: 'priority', header: 'Priority', meta: { className: 'num priority' }, cell: ({ row }) => row.original.priority },
    {
      id: 'submitted_at',
      accessorKey: 'submitted_at',
      sortDescFirst: true,
      header: 'Submitted',
      meta: { className: 'at' },
      cell: ({ row }) => <When at={row.original.submitted_at} />,
    },
    {
      id: 'duration',
      accessorFn: job => job.started_at,
      sortDescFirst: true,
      header: 'Duration',
      meta: { className: 'num', label: 'Duration' },
      cell: ({ row }) => <Duration job={row.original} />,
    },
    {
      id: 'actions',
      header: 'Actions',
      enableSorting: false,
      meta: { className: 'actions' },
      cell: ({ row: { original: job } }) => (
        <ChangeButtons job={job} suffix={`-${job.id}`} after={() => document.getElementById(`open-${job.id}`)} />
      ),
    },
  ];
}

function Name({ job, prefix }: { job: Job; prefix: string }): JSX.Element {
  return (
    <>
      <a id={`open-${job.id}`} href={`${prefix}jobs/${job.id}`}>
        {job.name}
      </a>
      {job.private && <span className="tag">private</span>}
      <Under>
        <Swatch project={job.project} /> {job.project} · {job.user}
      </Under>
    </>
  );
}

function State({ job }: { job: Job }): JSX.Element {
  return (
    <>
      <StateTag state={job.state} />
      {job.queue_position != null && <Under>position {job.queue_position}</Under>}
      {job.pauses > 0 && <Under>{job.pauses === 1 ? '1 pause' : `${job.pauses} pauses`}</Under>}
      {job.progress && (
        <Under>
          <progress max={job.progress.total} value={job.progress.done} aria-label={`Progress of ${job.name}`} />
          {job.progress.done} of {job.progress.total}
        </Under>
      )}
    </>
  );
}

function Why({ job }: { job: Job }): JSX.Element {
  return (
    <>
      {reasonText(job)}
      <Start of={job} />
    </>
  );
}

function Gpu({ job }: { job: Job }): JSX.Element {
  const ranks = ranksText(job);
  return (
    <>
      {gpus(wholeMilli(job))}
      {ranks && <Under>{ranks}</Under>}
      {job.simulated && <Under>simulated</Under>}
      {job.allocations.length > 0 && (
        <Under>
          uses <Utilised of={job} />
        </Under>
      )}
    </>
  );
}

function Duration({ job }: { job: Job }): JSX.Element {
  const ran = ranMs(job, useClock(5_000));
  return ran === null ? <Quiet>–</Quiet> : <>{duration(ran)}</>;
}
