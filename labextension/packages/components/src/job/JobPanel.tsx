/** One job: its state and reason, its actions, log, metrics and outputs. */

import { useEffect, useRef, useState } from 'react';

import { RUNNING, WAITING, type Explanation, type Job } from '@jupyter-gpu-quota/api';

import { age, duration, gpus } from '../amounts';
import { useGpuState, useClock, usePanelContext, useTrans, type Translations } from '../context';
import { Outputs } from './Outputs';
import { ProvenanceDetails } from './Provenance';
import { Grace } from './Grace';
import { JobActions } from './JobActions';
import { LogView } from './LogView';
import { MetricCharts } from './MetricCharts';
import { stateText } from './states';
import { Start } from '../Start';

export function JobPanel({ id, onBack }: { id: string; onBack(): void }): JSX.Element {
  const trans = useTrans();
  const found = useGpuState().jobs.get(id);
  const shown = useRef(found);
  shown.current = found ?? (shown.current?.id === id ? shown.current : undefined); // An old job may leave the state while it is read.
  const job = shown.current;
  return (
    <div className="jgq-job-panel">
      <button className="jgq-button jgq-back" onClick={onBack} autoFocus>
        ← {trans.__('All jobs')}
      </button>
      {job ? <JobBody job={job} /> : <p className="jgq-quiet">{trans.__('Job not found, or you do not have permission to view it.')}</p>}
    </div>
  );
}

function JobBody({ job }: { job: Job }): JSX.Element {
  const { model, trans } = usePanelContext();
  return (
    <>
      <h3 className="jgq-job-title" id="jgq-job-title" tabIndex={-1}>
        {job.name} <span className={`jgq-state jgq-state-${job.state}`}>{stateText(job.state, trans)}</span>
        {job.grace_ends_at && (
          <span className="jgq-quiet">
            <Grace endsAt={job.grace_ends_at} />
          </span>
        )}
      </h3>
      <StateReason job={job} />
      {model.notes.get(job.id)?.map(note => (
        <p key={note} className="jgq-note">
          {note}
        </p>
      ))}
      <JobActions job={job} />
      <JobDetails job={job} />
      <MetricCharts job={job} />
      {job.attempt > 0 && <LogView id={job.id} state={job.state} />}
      <Outputs key={`outputs ${job.id}`} job={job} />
      {job.attempt > 0 && <ProvenanceDetails key={`provenance ${job.id}`} job={job} />}
    </>
  );
}

/** The reason of a job's state, and for a waiting job the changes that would start it. */
export function StateReason({ job }: { job: Job }): JSX.Element {
  const { model } = usePanelContext();
  const [found, setFound] = useState<Explanation | null>(null);
  const waits = WAITING.has(job.state);
  useEffect(() => {
    let current = true;
    setFound(null);
    if (waits) {
      model.transport.service.explain(job.id).then(
        answer => current && setFound(answer),
        () => undefined, // The reason of the job itself is shown.
      );
    }
    return () => {
      current = false;
    };
  }, [model, job.id, job.reason?.message, waits]);
  return (
    <div className="jgq-why">
      {job.reason && <p>{job.reason.message}</p>}
      <Start of={found ?? job} />
      {found && found.would_start.length > 0 && (
        <ul>
          {found.would_start.map(change => (
            <li key={change.message}>{change.message}</li>
          ))}
        </ul>
      )}
    </div>
  );
}

/** The user who held or cancelled a job, which may still be running. */
export function stopOf(job: Job, trans: Translations): [string, string | null] {
  return [job.target === 'held' ? trans.__('Held by') : trans.__('Cancelled by'), job.stopped_by ?? null];
}

function JobDetails({ job }: { job: Job }): JSX.Element {
  const trans = useTrans();
  const now = useClock(5_000);
  const done = job.progress;
  const ran = job.started_at && (job.ended_at ? Date.parse(job.ended_at) : now) - Date.parse(job.started_at);
  const facts: [string, string | null][] = [
    [trans.__('Command'), job.command.join(' ')],
    [trans.__('GPUs'), `${gpus(job.gpu_milli * (job.held_ranks ?? job.ranks))} · ${job.pool} · ${job.project}`],
    [trans.__('Owner'), job.user],
    [trans.__('Submitted'), trans.__('%1 ago', age(job.submitted_at, now))],
    [RUNNING.has(job.state) ? trans.__('Running for') : trans.__('Ran for'), ran ? duration(ran) : null],
    [trans.__('Position'), job.queue_position == null ? null : trans.__('%1 in pool %2', job.queue_position, job.pool)],
    stopOf(job, trans),
    [trans.__('Pauses'), job.pauses > 0 ? String(job.pauses) : null],
    [trans.__('Paused because'), job.paused_because?.message ?? null],
    [trans.__('GPU use'), job.utilised_milli == null ? job.utilised_unknown ?? null : `${gpus(job.utilised_milli)} GPU`],
    [trans.__('ID'), job.id],
  ];
  return (
    <>
      {done && (
        <p className="jgq-progress">
          <progress value={done.done} max={Math.max(1, done.total)} aria-label={trans.__('Progress')} /> {done.done} / {done.total}
        </p>
      )}
      <dl className="jgq-facts">
        {facts.map(([name, value]) => value !== null && [<dt key={name}>{name}</dt>, <dd key={`${name}-`}>{value}</dd>])}
      </dl>
    </>
  );
}
