/** The jobs that a filter shows, as a list of which only the visible rows are drawn. */

import { useVirtualizer } from '@tanstack/react-virtual';
import { useMemo, useRef, useState } from 'react';

import { ALL_MINE, ENDED, jobsShown, RUNS, type Change, type Job, type JobFilter } from '@jupyter-gpu-quota/api';

import { age, duration, gpus } from './amounts';
import { useAction, useGpuState, useNow, useSurroundings, useText } from './context';
import { ErrorText } from './ErrorText';

const ROW_PX = 58;

export function JobList(): JSX.Element {
  const state = useGpuState();
  const text = useText();
  const [filter, setFilter] = useState<JobFilter>(ALL_MINE);
  const [marked, setMarked] = useState<ReadonlySet<string>>(new Set());
  const jobs = useMemo(() => jobsShown(state, filter), [state, filter]);
  const toggle = (id: string): void => {
    const next = new Set(marked);
    next.delete(id) || next.add(id);
    setMarked(next);
  };
  return (
    <>
      <Filter filter={filter} onChange={setFilter} />
      {marked.size > 0 && <Bulk marked={marked} onDone={() => setMarked(new Set())} />}
      {jobs.length === 0 ? (
        <Empty filtered={state.jobs.size > 0} />
      ) : (
        <Rows jobs={jobs} marked={marked} onToggle={toggle} />
      )}
      {state.jobsTotal > state.jobs.size && (
        <p className="jgq-quiet">{text('The newest %1 of %2 jobs; the hub page has all.', state.jobs.size, state.jobsTotal)}</p>
      )}
    </>
  );
}

function Empty({ filtered }: { filtered: boolean }): JSX.Element {
  const text = useText();
  return filtered ? (
    <p className="jgq-quiet">{text('No job matches.')}</p>
  ) : (
    <div className="jgq-empty">
      <p>{text('No jobs yet.')}</p>
      <p className="jgq-quiet">
        {text('Type a command under Submit, or right-click a script or notebook in the file browser and choose "Run as GPU job". It is queued, and runs on any idle GPU while you continue.')}
      </p>
    </div>
  );
}

function Filter({ filter, onChange }: { filter: JobFilter; onChange(filter: JobFilter): void }): JSX.Element {
  const text = useText();
  const { projects } = useGpuState();
  const mine = projects.filter(project => project.role !== null);
  const set = (changes: Partial<JobFilter>): void => onChange({ ...filter, ...changes });
  return (
    <div className="jgq-filter" role="search">
      <input
        className="jgq-input"
        type="search"
        placeholder={text('Search jobs')}
        aria-label={text('Search jobs')}
        value={filter.text}
        onChange={event => set({ text: event.target.value })}
      />
      <select
        className="jgq-input"
        aria-label={text('Whose jobs')}
        value={filter.mine ? 'mine' : filter.project}
        onChange={event => set(event.target.value === 'mine' ? { mine: true, project: '' } : { mine: false, project: event.target.value })}
      >
        <option value="mine">{text('mine')}</option>
        <option value="">{text('all projects')}</option>
        {mine.map(project => (
          <option key={project.name}>{project.name}</option>
        ))}
      </select>
      <select
        className="jgq-input"
        aria-label={text('State')}
        value={filter.state}
        onChange={event => set({ state: event.target.value as JobFilter['state'] })}
      >
        <option value="">{text('any state')}</option>
        <option value="running">{text('running')}</option>
        <option value="waiting">{text('waiting')}</option>
        <option value="held">{text('held')}</option>
        <option value="ended">{text('ended')}</option>
      </select>
      <select
        className="jgq-input"
        aria-label={text('Order')}
        value={filter.order}
        onChange={event => set({ order: event.target.value as JobFilter['order'] })}
      >
        <option value="newest">{text('newest first')}</option>
        <option value="state">{text('by state')}</option>
        <option value="name">{text('by name')}</option>
        <option value="priority">{text('by priority')}</option>
      </select>
    </div>
  );
}

interface RowsProps {
  jobs: readonly Job[];
  marked: ReadonlySet<string>;
  onToggle(id: string): void;
}

function Rows({ jobs, marked, onToggle }: RowsProps): JSX.Element {
  const text = useText();
  const now = useNow(5_000);
  const scroller = useRef<HTMLDivElement>(null);
  const rows = useVirtualizer({
    count: jobs.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_PX,
    overscan: 6,
  });
  return (
    <div className="jgq-list" ref={scroller}>
      <ul style={{ height: rows.getTotalSize() }} aria-label={text('Jobs')}>
        {rows.getVirtualItems().map(row => {
          const job = jobs[row.index];
          return (
            job && (
              <li key={job.id} style={{ height: ROW_PX, transform: `translateY(${row.start}px)` }}>
                <Row job={job} now={now} marked={marked.has(job.id)} onToggle={() => onToggle(job.id)} />
              </li>
            )
          );
        })}
      </ul>
    </div>
  );
}

function Row({ job, now, marked, onToggle }: { job: Job; now: number; marked: boolean; onToggle(): void }): JSX.Element {
  const { openJob, text } = useSurroundings();
  const done = job.progress ? Math.round((100 * job.progress.done) / Math.max(1, job.progress.total)) : null;
  return (
    <div className="jgq-job">
      <input type="checkbox" checked={marked} onChange={onToggle} aria-label={text('Select %1', job.name)} />
      <button className="jgq-job-open" onClick={() => openJob(job.id)}>
        <span className="jgq-job-name">{job.name}</span>
        <span className={`jgq-state jgq-state-${job.state}`}>{text(job.state)}</span>
        <span className="jgq-quiet jgq-job-more">
          {gpus(job.gpu_milli * (job.held_ranks ?? job.ranks))} GPU · {job.project} · {timeOf(job, now)}
          {done !== null && ` · ${done} %`}
        </span>
      </button>
      {done !== null && RUNS.has(job.state) && <progress value={done} max={100} aria-label={text('Progress')} />}
    </div>
  );
}

/** How long it runs, ran or waits. */
function timeOf(job: Job, now: number): string {
  if (job.ended_at !== null && job.started_at !== null) {
    return duration(Date.parse(job.ended_at) - Date.parse(job.started_at));
  }
  return age(job.started_at ?? job.submitted_at, now);
}

function Bulk({ marked, onDone }: { marked: ReadonlySet<string>; onDone(): void }): JSX.Element {
  const { model, text, confirm } = useSurroundings();
  const { jobs } = useGpuState();
  const { busy, error, run } = useAction();
  const chosen = [...marked].flatMap(id => jobs.get(id) ?? []);
  const change = (verb: Change, of: (job: Job) => boolean): void =>
    void run(async () => {
      const ids = chosen.filter(of).map(job => job.id);
      if (verb === 'cancel' && !(await confirm(text('Cancel %1 jobs?', ids.length), text('They end now.'), text('Cancel jobs')))) {
        return;
      }
      const outcomes = await Promise.allSettled(ids.map(id => model.change(id, verb)));
      const failed = outcomes.find((one): one is PromiseRejectedResult => one.status === 'rejected');
      if (failed) {
        throw failed.reason;
      }
      onDone();
    });
  const live = (job: Job): boolean => !ENDED.has(job.state);
  return (
    <div className="jgq-row jgq-bulk" role="toolbar" aria-label={text('Selected jobs')}>
      <span>{text('%1 selected', chosen.length)}</span>
      <button className="jgq-button" disabled={busy} onClick={() => change('hold', live)}>
        {text('Hold')}
      </button>
      <button className="jgq-button" disabled={busy} onClick={() => change('release', job => job.state === 'held')}>
        {text('Release')}
      </button>
      <button className="jgq-button" disabled={busy} onClick={() => change('cancel', live)}>
        {text('Cancel')}
      </button>
      <button className="jgq-button" onClick={onDone}>
        {text('Clear')}
      </button>
      <ErrorText error={error} />
    </div>
  );
}
