/** The slices of notebooks, with the button that postpones an idle warning. */

import type { ColumnDef } from '@tanstack/react-table';
import { useMemo, useRef } from 'react';

import { mayChange, type Job, type Notebook } from '@jupyter-gpu-quota/api';
import { ActionButton, DataTable, ErrorText, gpus, useAction, useGpuState, usePanelContext } from '@jupyter-gpu-quota/components';

import { Enforcement, Quiet, StateTag, Swatch, Under, Utilised, When } from '../pieces';

interface NotebooksProps {
  notebooks: readonly Notebook[];
  isLoaded: boolean;
  /** What is said if there are none. */
  none?: string;
  onDevice(device: string): void;
}

export function Notebooks({ notebooks, isLoaded, none = 'No notebook of your projects has a slice.', onDevice }: NotebooksProps): JSX.Element {
  const show = useRef(onDevice);
  show.current = onDevice;
  const columns = useMemo(() => columnsOf(device => show.current(device)), []);
  if (notebooks.length === 0) {
    return <p className="muted">{isLoaded ? none : 'Loading…'}</p>;
  }
  return (
    <DataTable
      id="notebooks"
      className="named"
      caption="Slices of your projects, newest first; then the servers stopped in the last three days, with the reason"
      items={notebooks}
      columns={columns}
      keyOf={notebook => notebook.id}
      rowIdOf={notebook => `notebook-${notebook.id}`}
    />
  );
}

function columnsOf(onDevice: (device: string) => void): ColumnDef<Notebook>[] {
  return [
    { id: 'user', accessorKey: 'user', header: 'User', meta: { rowHeader: true }, cell: ({ row }) => row.original.user },
    { id: 'server', accessorKey: 'server', header: 'Server', meta: { label: 'Server' }, cell: ({ row }) => row.original.server || 'default' },
    {
      id: 'project',
      accessorKey: 'project',
      header: 'Project',
      meta: { label: 'Project' },
      cell: ({ row }) => (
        <>
          <Swatch project={row.original.project} /> {row.original.project}
        </>
      ),
    },
    { id: 'gpu', accessorKey: 'gpu_milli', header: 'GPU', meta: { label: 'GPU', className: 'num' }, cell: ({ row }) => gpus(row.original.gpu_milli) },
    {
      id: 'use',
      accessorFn: one => one.utilised_milli ?? -1,
      header: 'In use, last read',
      meta: { label: 'In use', className: 'num' },
      cell: ({ row }) => <Utilised of={row.original} />,
    },
    {
      id: 'device',
      enableSorting: false,
      header: 'Device',
      meta: { label: 'Device' },
      cell: ({ row }) => <Placed notebook={row.original} onDevice={onDevice} />,
    },
    { id: 'state', accessorFn: shownState, header: 'State', meta: { label: 'State' }, cell: ({ row }) => <State notebook={row.original} /> },
    { id: 'activity', accessorKey: 'activity', header: 'Activity', meta: { label: 'Activity' }, cell: ({ row }) => <Activity notebook={row.original} /> },
    {
      id: 'since',
      accessorFn: sinceOf,
      header: 'Since',
      meta: { label: 'Since' },
      cell: ({ row }) => <When at={sinceOf(row.original)} />,
    },
  ];
}

function sinceOf(notebook: Notebook): string {
  return notebook.ended_at ?? notebook.booked_at ?? notebook.requested_at;
}

function Placed({ notebook, onDevice }: { notebook: Notebook; onDevice(device: string): void }): JSX.Element {
  return notebook.allocations.length === 0 ? (
    <Quiet>–</Quiet>
  ) : (
    <>
      {notebook.allocations.map(part => (
        <button key={part.device} className="jgq-link" onClick={() => onDevice(part.device)}>
          {part.device}
        </button>
      ))}
    </>
  );
}

const EXPLAINED: ReadonlySet<string> = new Set(['project_gone', 'pool_gone', 'device_quarantined', 'device_unavailable']);

/** A lent slice on which no work runs is only offered. */
function shownState({ state, borrowed }: Notebook): string {
  return state === 'lent' && borrowed === false ? 'offered' : state;
}

function State({ notebook }: { notebook: Notebook }): JSX.Element {
  const { reason } = notebook;
  const isExplained = reason && (notebook.ended_at || notebook.state === 'requested' || EXPLAINED.has(reason.code));
  return (
    <>
      <StateTag state={notebook.ended_at ? 'stopped' : shownState(notebook)} />
      {isExplained ? (
        <Under>{reason.message}</Under>
      ) : (
        !notebook.simulated && (
          <Under>
            <Enforcement of={notebook} />
          </Under>
        )
      )}
      {notebook.warning && <b className="s-failed">{notebook.warning}</b>}
    </>
  );
}

function Activity({ notebook }: { notebook: Notebook }): JSX.Element {
  const { me } = useGpuState();
  const { idle } = notebook;
  if (notebook.ended_at) {
    return <Quiet>–</Quiet>;
  }
  const isWarned = idle && ['warned', 'freeing'].includes(idle.state) && idle.keeps_left > 0;
  const { user, project } = notebook;
  return (
    <>
      {notebook.activity}
      {idle && <Under>{idle.message}</Under>}
      {isWarned && mayChange(me, { user, project } as Job) && <Keep notebook={notebook} />}
    </>
  );
}

function Keep({ notebook }: { notebook: Notebook }): JSX.Element {
  const { model, say } = usePanelContext();
  const { busy, error, run } = useAction();
  const keep = async (): Promise<void> => {
    const idle = await model.transport.service.keepNotebook(notebook.id);
    const times = idle.keeps_left === 1 ? 'time' : 'times';
    say?.(`${idle.message} It can be postponed ${idle.keeps_left} more ${times} before it is used again.`);
  };
  return (
    <>
      <ActionButton
        id={`keep-${notebook.id}`}
        busy={busy}
        onClick={() => void run(keep)}
        after={() => document.getElementById('notebooks-scroll')}
      >
        Keep<span className="unseen"> the notebook of {notebook.user}</span>
      </ActionButton>
      <ErrorText error={error} />
    </>
  );
}
