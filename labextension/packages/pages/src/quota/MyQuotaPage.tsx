/** The reader's own quota: projects, what may still start, running work and GPU hours. */

import type { ColumnDef } from '@tanstack/react-table';
import { useEffect, useMemo, useState, useSyncExternalStore } from 'react';

import type { Project, ProjectPool, Usage } from '@jupyter-gpu-quota/api';
import { DataTable, ErrorText, gpus, ProjectCards, useGpuState, usePanelContext } from '@jupyter-gpu-quota/components';

import { jobColumns } from '../jobs/columns';
import { JobListing } from '../jobs/listing';
import { Cluster } from '../overview/cluster';
import { Notebooks } from '../overview/Notebooks';
import { Quiet, Swatch } from '../pieces';
import { HOURS } from '../usage/columns';

const DAYS = 30;

export function MyQuotaPage({ user, prefix }: { user: string; prefix: string }): JSX.Element {
  const { model } = usePanelContext();
  const { me, projects } = useGpuState();
  const mine = projects.filter(project => project.role !== null);
  return (
    <>
      <section aria-labelledby="mine-title" id="mine">
        <h2 id="mine-title">My projects</h2>
        <div className="cards">
          <ProjectCards />
        </div>
      </section>
      {mine.length > 0 && (
        <section aria-labelledby="left-title">
          <h2 id="left-title">What I use and may still start</h2>
          <Ceilings projects={mine} />
        </section>
      )}
      <MyNotebooks user={user} prefix={prefix} />
      <MyJobs user={user} prefix={prefix} />
      {me && <GpuHours model={model} user={user} prefix={prefix} />}
    </>
  );
}

interface Row {
  readonly project: Project;
  readonly pool: ProjectPool;
}

type Amount = number | null | undefined;

/** An amount of a ceiling that may be missing. */
function amount(milli: Amount, none: string): JSX.Element {
  return milli == null ? <Quiet>{none}</Quiet> : <>{gpus(milli)}</>;
}

function ofCeiling(used: Amount, ceiling: Amount): JSX.Element {
  return ceiling == null ? <>{gpus(used ?? 0)}</> : <>{`${gpus(used ?? 0)} of ${gpus(ceiling)}`}</>;
}

const CEILINGS: ColumnDef<Row>[] = [
  {
    id: 'project',
    accessorFn: row => row.project.name,
    header: 'Project',
    meta: { rowHeader: true },
    cell: ({ row }) => (
      <>
        <Swatch project={row.original.project.name} /> {row.original.project.name}
      </>
    ),
  },
  { id: 'pool', accessorFn: row => row.pool.pool, header: 'Pool', meta: { label: 'Pool' }, cell: ({ row }) => row.original.pool.pool },
  column('jobs', 'My jobs', ({ pool }) => ofCeiling(pool.own_jobs_milli, pool.user_jobs_milli)),
  column('notebooks', 'My notebooks', ({ pool }) => ofCeiling(pool.own_notebook_milli, pool.user_notebook_milli)),
  column('quota', 'Left of the quota', row => amount(left(row)?.quota_left_milli, 'no jobs here')),
  column('limit', 'Left of the limit', row => (left(row) ? amount(left(row)?.limit_left_milli, 'no limit') : <Quiet>–</Quiet>)),
  column('mine', 'Left of my ceiling', row => (left(row) ? amount(left(row)?.user_left_milli, 'no ceiling') : <Quiet>–</Quiet>)),
];

function column(id: string, header: string, cell: (row: Row) => JSX.Element): ColumnDef<Row> {
  return { id, header, enableSorting: false, meta: { label: header, className: 'num' }, cell: ({ row }) => cell(row.original) };
}

function left({ project, pool }: Row): NonNullable<Project['submit']>['pools'][number] | undefined {
  return project.submit?.pools.find(one => one.pool === pool.pool);
}

function Ceilings({ projects }: { projects: readonly Project[] }): JSX.Element {
  const rows = useMemo(() => projects.flatMap(project => project.pools.map(pool => ({ project, pool }))), [projects]);
  return (
    <DataTable
      id="ceilings"
      className="named wide-labels"
      caption="In GPUs. More than the quota starts while other GPUs are idle, up to the limit; it may be paused"
      items={rows}
      columns={CEILINGS}
      keyOf={row => `${row.project.name}-${row.pool.pool}`}
    />
  );
}

function MyNotebooks({ user, prefix }: { user: string; prefix: string }): JSX.Element {
  const { model } = usePanelContext();
  const cluster = useMemo(() => new Cluster(model, false), [model]);
  const { notebooks, isLoaded } = useSyncExternalStore(cluster.subscribe, cluster.snapshot);
  const mine = useMemo(() => notebooks.filter(one => one.user === user), [notebooks, user]);
  return (
    <section aria-labelledby="notebooks-title">
      <h2 id="notebooks-title">My notebooks</h2>
      <Notebooks notebooks={mine} isLoaded={isLoaded} none="None of your notebooks has a slice." onDevice={() => window.location.assign(prefix)} />
    </section>
  );
}

function MyJobs({ user, prefix }: { user: string; prefix: string }): JSX.Element {
  const { model } = usePanelContext();
  const listing = useMemo(() => new JobListing(model), [model]);
  const { jobs, total, loading, error } = useSyncExternalStore(listing.subscribe, listing.snapshot);
  useEffect(() => listing.show(() => ({ mine: '1', live: '1' })), [listing]);
  const columns = useMemo(
    () => jobColumns(prefix).flatMap(one => (one.id === 'select' ? [] : [{ ...one, enableSorting: false }])),
    [prefix],
  );
  return (
    <section aria-labelledby="jobs-title">
      <h2 id="jobs-title">My jobs that have not ended</h2>
      <ErrorText error={error} />
      {jobs.length > 0 ? (
        <DataTable
          id="jobs"
          className="jobs"
          caption="My jobs, newest first"
          items={jobs}
          columns={columns}
          keyOf={job => job.id}
          rowIdOf={job => `job-${job.id}`}
          total={total}
          onEnd={listing.more}
        />
      ) : (
        <p className="muted">
          {loading ? 'Loading…' : 'None.'} <a href={`${prefix}jobs?user=${encodeURIComponent(user)}`}>All my jobs</a>
        </p>
      )}
    </section>
  );
}

const COLUMNS: ColumnDef<Usage>[] = [
  { id: 'name', header: 'Project', enableSorting: false, meta: { rowHeader: true }, cell: ({ row }) => row.original.name || 'none' },
  ...HOURS,
];

function GpuHours({ model, user, prefix }: { model: ReturnType<typeof usePanelContext>['model']; user: string; prefix: string }): JSX.Element {
  const [rows, setRows] = useState<Usage[] | null>(null);
  const [error, setError] = useState('');
  useEffect(() => {
    const from = new Date(Date.now() - DAYS * 86_400_000).toISOString();
    const { service } = model.transport;
    Promise.all([service.usage({ by: 'user', from }), service.usage({ by: 'project', from })]).then(
      ([people, projects]) => setRows([...people.items.filter(row => row.name === user).map(row => ({ ...row, name: `${user} (me)` })), ...projects.items]),
      (failure: Error) => setError(failure.message),
    );
  }, [model, user]);
  return (
    <section aria-labelledby="hours-title">
      <h2 id="hours-title">GPU hours of the last {DAYS} days</h2>
      <ErrorText error={error} />
      {rows !== null && rows.length > 0 ? (
        <DataTable id="hours" className="named wide-labels" caption="Mine, and of my projects" items={rows} columns={COLUMNS} keyOf={row => row.name} />
      ) : (
        !error && <p className="muted">{rows === null ? 'Loading…' : 'None yet.'}</p>
      )}
      <p>
        <a href={`${prefix}usage`}>Usage of another period, by another key</a>
      </p>
    </section>
  );
}
