/** The jobs that a filter shows, in a table of which only the visible rows are drawn. */

import type { ColumnDef, RowSelectionState } from '@tanstack/react-table';
import { useMemo, useState } from 'react';

import { MY_JOBS, filterJobs, RUNNING, WAITING, type Job, type JobFilter } from '@jupyter-gpu-quota/api';

import { age, duration, gpus } from './amounts';
import { BulkActions } from './BulkActions';
import { useGpuState, useClock, usePanelContext, useTrans, type Translations } from './context';
import { DataTable } from './DataTable';
import { Grace } from './job/Grace';
import { stateText } from './job/states';
import { Sparkline, shownMetric } from './Sparkline';

/** States whose reason is shown in the list. */
const EXPLAINED: ReadonlySet<string> = new Set([...WAITING, 'held', 'failed', 'pausing']);

export function JobList(): JSX.Element {
  const state = useGpuState();
  const trans = useTrans();
  const [filter, setFilter] = useState<JobFilter>(MY_JOBS);
  const [selected, setSelected] = useState<RowSelectionState>({});
  const columns = useMemo(() => jobColumns(trans), [trans]);
  const jobs = useMemo(() => filterJobs(state, filter), [state, filter]);
  const chosen = jobs.filter(job => selected[job.id]);
  return (
    <>
      <Filter filter={filter} onChange={setFilter} />
      {chosen.length > 0 && <BulkActions chosen={chosen} onDone={() => setSelected({})} after={() => document.getElementById('jgq-jobs-scroll')} />}
      {jobs.length === 0 ? (
        <Empty filtered={state.jobs.size > 0} />
      ) : (
        <div className="jgq-list">
          <DataTable
            id="jgq-jobs"
            rowClassName="jgq-job"
            caption={trans.__('Jobs')}
            items={jobs}
            columns={columns}
            keyOf={job => job.id}
            selection={selected}
            onSelection={setSelected}
          />
        </div>
      )}
      {state.jobsTotal > state.jobs.size && (
        <p className="jgq-quiet">{trans.__(
            'Showing the newest %1 of %2 jobs. The GPU quota page of the hub lists all.',
            state.jobs.size,
            state.jobsTotal,
          )}</p>
      )}
    </>
  );
}

function Empty({ filtered }: { filtered: boolean }): JSX.Element {
  const trans = useTrans();
  return filtered ? (
    <p className="jgq-quiet">{trans.__('No job matches.')}</p>
  ) : (
    <div className="jgq-empty">
      <p>{trans.__('No jobs yet.')}</p>
      <p className="jgq-quiet">
        {trans.__('Type a command under Submit, or right-click a script or notebook in the file browser and choose "Run as GPU Job". It is queued, and runs on any idle GPU while you continue.')}
      </p>
    </div>
  );
}

function Filter({ filter, onChange }: { filter: JobFilter; onChange(filter: JobFilter): void }): JSX.Element {
  const trans = useTrans();
  const { projects } = useGpuState();
  const mine = projects.filter(project => project.role !== null);
  const set = (changes: Partial<JobFilter>): void => onChange({ ...filter, ...changes });
  return (
    <div className="jgq-filter" role="search">
      <input
        className="jgq-input"
        type="search"
        placeholder={trans.__('Search jobs')}
        aria-label={trans.__('Search jobs')}
        value={filter.text}
        onChange={event => set({ text: event.target.value })}
      />
      <select
        className="jgq-input"
        aria-label={trans.__('Owner or project')}
        value={filter.mine ? 'mine' : filter.project}
        onChange={event => set(event.target.value === 'mine' ? { mine: true, project: '' } : { mine: false, project: event.target.value })}
      >
        <option value="mine">{trans.__('mine')}</option>
        <option value="">{trans.__('all projects')}</option>
        {mine.map(project => (
          <option key={project.name}>{project.name}</option>
        ))}
      </select>
      <select
        className="jgq-input"
        aria-label={trans.__('State')}
        value={filter.state}
        onChange={event => set({ state: event.target.value as JobFilter['state'] })}
      >
        <option value="">{trans.__('any state')}</option>
        <option value="running">{trans.__('running')}</option>
        <option value="waiting">{trans.__('waiting')}</option>
        <option value="held">{trans.__('held')}</option>
        <option value="ended">{trans.__('ended')}</option>
      </select>
      <select
        className="jgq-input"
        aria-label={trans.__('Order')}
        value={filter.order}
        onChange={event => set({ order: event.target.value as JobFilter['order'] })}
      >
        <option value="newest">{trans.__('newest first')}</option>
        <option value="state">{trans.__('by state')}</option>
        <option value="name">{trans.__('by name')}</option>
        <option value="priority">{trans.__('by priority')}</option>
      </select>
    </div>
  );
}

function jobColumns(trans: Translations): ColumnDef<Job>[] {
  return [
    {
      id: 'select',
      header: trans.__('Selected'),
      enableSorting: false,
      meta: { className: 'jgq-select' },
      cell: ({ row }) => (
        <input type="checkbox" checked={row.getIsSelected()} onChange={row.getToggleSelectedHandler()} aria-label={trans.__('Select %1', row.original.name)} />
      ),
    },
    { id: 'job', header: trans.__('Job'), enableSorting: false, meta: { rowHeader: true }, cell: ({ row }) => <JobCell job={row.original} /> },
  ];
}

function JobCell({ job }: { job: Job }): JSX.Element {
  const { openJob, trans } = usePanelContext();
  const now = useClock(5_000);
  const done = job.progress ? Math.round((100 * job.progress.done) / Math.max(1, job.progress.total)) : null;
  const metric = RUNNING.has(job.state) ? shownMetric(job) : null;
  return (
    <div className="jgq-job-cell">
      <button className="jgq-job-open" onClick={() => openJob(job.id)}>
        <span className="jgq-job-name">{job.name}</span>
        <span className={`jgq-state jgq-state-${job.state}`}>{stateText(job.state, trans)}</span>
        <span className="jgq-quiet jgq-job-more">
          {gpus(job.gpu_milli * (job.held_ranks ?? job.ranks))} GPU · {job.project} · {timeOf(job, now)}
          {done !== null && ` · ${done} %`}
          {job.grace_ends_at && <> · <Grace endsAt={job.grace_ends_at} /></>}
          {job.queue_position != null && ` · ${trans.__('position %1', job.queue_position)}`}
        </span>
        {job.reason && EXPLAINED.has(job.state) && (
          <span className="jgq-job-more" title={job.reason.message}>
            {job.reason.message}
          </span>
        )}
      </button>
      {metric !== null && <Sparkline job={job} name={metric} />}
      {done !== null && RUNNING.has(job.state) && <progress value={done} max={100} aria-label={trans.__('Progress')} />}
    </div>
  );
}

/** How long a job has been running or waiting, or ran. */
function timeOf(job: Job, now: number): string {
  if (job.ended_at !== null && job.started_at !== null) {
    return duration(Date.parse(job.ended_at) - Date.parse(job.started_at));
  }
  return age(job.started_at ?? job.submitted_at, now);
}
