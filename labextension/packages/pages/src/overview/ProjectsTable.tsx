/** Quotas and use of each department and project in each pool. */

import type { ColumnDef } from '@tanstack/react-table';
import { useMemo } from 'react';

import type { Project, ProjectPool } from '@jupyter-gpu-quota/api';
import { DataTable, gpus, useGpuState } from '@jupyter-gpu-quota/components';

import { Quiet, Swatch, Utilised } from '../pieces';

interface Row {
  readonly key: string;
  readonly name: string;
  /** null: of a department. */
  readonly project: Project | null;
  readonly pool: ProjectPool;
}

/** Departments first, each once. */
function rowsOf(projects: readonly Project[]): Row[] {
  const departments = new Map(projects.flatMap(project => (project.department ? [[project.department.name, project.department] as const] : [])));
  const of = (kind: string, name: string, project: Project | null, pools: readonly ProjectPool[]): Row[] =>
    pools.map(pool => ({ key: `${kind}-${name}-${pool.pool}`, name, project, pool }));
  return [
    ...[...departments.values()].flatMap(one => of('department', one.name, null, one.pools)),
    ...projects.flatMap(project => of('project', project.name, project, project.pools)),
  ];
}

type Figure = (pool: ProjectPool) => number | null | undefined;

function figure(id: string, header: string, of: Figure, label = header): ColumnDef<Row> {
  return {
    id,
    header,
    accessorFn: row => of(row.pool) ?? -1,
    sortDescFirst: true,
    meta: { label, className: 'num' },
    cell: ({ row }) => gpus(of(row.original.pool) ?? 0),
  };
}

const COLUMNS: ColumnDef<Row>[] = [
  { id: 'name', accessorKey: 'name', header: 'Project', meta: { rowHeader: true }, cell: ({ row }) => <Name row={row.original} /> },
  { id: 'pool', accessorFn: row => row.pool.pool, header: 'Pool', meta: { label: 'Pool' }, cell: ({ row }) => row.original.pool.pool },
  figure('quota', 'Training quota', pool => pool.training_milli),
  figure('in_force', 'In force now', pool => pool.in_force_training_milli),
  { ...figure('used', 'Jobs use', pool => pool.training_used_milli), cell: ({ row }) => <Used pool={row.original.pool} /> },
  figure('fair', 'Fair share now', pool => pool.fair_share_milli),
  {
    ...figure('limit', 'Limit', pool => pool.limit_milli),
    cell: ({ row }) => (row.original.pool.limit_milli === null ? <Quiet>the pool</Quiet> : gpus(row.original.pool.limit_milli)),
  },
  { ...figure('waiting', 'Waiting', pool => pool.queued_jobs), cell: ({ row }) => row.original.pool.queued_jobs },
  { ...figure('notebooks', 'Notebooks', pool => pool.notebook_used_milli), cell: ({ row }) => <Notebooks pool={row.original.pool} /> },
  {
    ...figure('in_use', 'In use, last read', pool => pool.utilised_milli, 'In use'),
    cell: ({ row }) => <Utilised of={row.original.pool} />,
  },
];

export function ProjectsTable(): JSX.Element {
  const { projects, me } = useGpuState();
  const rows = useMemo(() => rowsOf(projects), [projects]);
  if (me === null) {
    return <p className="muted">Loading…</p>;
  }
  if (rows.length === 0) {
    return (
      <p className="muted">
        You are a member of no project. A lead or an admin adds you in the quota file, or to a hub group that the file names.
      </p>
    );
  }
  return (
    <DataTable
      id="projects"
      className="named wide-labels"
      caption="Quotas and use of each project, in GPUs. A fair share is the amount that jobs may claim now: the training quota in force and a part of the surplus"
      items={rows}
      columns={COLUMNS}
      keyOf={row => row.key}
      rowIdOf={row => row.key}
    />
  );
}

function Name({ row: { name, project } }: { row: Row }): JSX.Element {
  if (project === null) {
    return (
      <>
        {name} <span className="tag">department</span>
      </>
    );
  }
  return (
    <>
      <Swatch project={name} /> {name}
      {project.department && <Quiet> in {project.department.name}</Quiet>}
      {project.role === 'lead' && <span className="tag">lead</span>}
    </>
  );
}

function Used({ pool }: { pool: ProjectPool }): JSX.Element {
  return (
    <>
      {gpus(pool.training_used_milli)}
      {pool.borrowed_milli > 0 && <Quiet> + {gpus(pool.borrowed_milli)} borrowed</Quiet>}{' '}
      {pool.training_used_milli > pool.training_milli && <span className="tag">over quota</span>}
    </>
  );
}

function Notebooks({ pool }: { pool: ProjectPool }): JSX.Element {
  return pool.notebook_milli > 0 || pool.notebook_used_milli > 0 ? (
    <>
      {gpus(pool.notebook_used_milli)} of {gpus(pool.notebook_milli)}
    </>
  ) : (
    <Quiet>none</Quiet>
  );
}
