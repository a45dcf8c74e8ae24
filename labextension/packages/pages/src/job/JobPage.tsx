/** One job: its state and reason, its metrics, its details, its log, its outputs and its attempts. */

import { type Explanation, type JobDetail } from '@jupyter-gpu-quota/api';
import { ErrorText, Grace, JobActions, MetricCharts, ProvenanceDetails, Start } from '@jupyter-gpu-quota/components';

import type { Frame } from '../frame';
import { Simulated, StateTag } from '../pieces';
import { Attempts } from './Attempts';
import { useDetail } from './detail';
import { Facts } from './Facts';
import { LogSection } from './LogSection';
import { OutputsSection } from './OutputsSection';

export function JobPage({ frame }: { frame: Frame }): JSX.Element {
  const { job, explanation, error, refusal } = useDetail(frame.job);
  if (refusal) {
    return (
      <p className="banner warn" role="status">
        {refusal} <button onClick={() => window.location.reload()}>Try again</button>
      </p>
    );
  }
  return (
    <>
      <p className="crumb">
        <a href={`${frame.prefix}jobs`}>Jobs</a>
      </p>
      <div className="job-head" id="job-head">
        <h1 id="job-name" tabIndex={-1}>
          {job?.name ?? frame.title}
        </h1>
        {job && <State job={job} />}
        {job && <JobActions job={job} />}
      </div>
      {job && explanation ? (
        <>
          <div className="columns">
            <Now job={job} explanation={explanation} />
            <section aria-labelledby="metrics-title" id="metrics">
              <h2 id="metrics-title">Metrics</h2>
              <MetricCharts job={job} large />
              {Object.keys(job.metrics).length === 0 && (
                <p className="muted">
                  {job.ended_at ? 'None.' : 'None yet.'} A job reports them with <code>jupyter_gpu_quota.job.report_progress()</code>.
                </p>
              )}
            </section>
            <Facts job={job} prefix={frame.prefix} />
          </div>
          <LogSection job={job} />
          <OutputsSection job={job} frame={frame} />
          <Attempts job={job} />
          {job.attempt > 0 && <ProvenanceDetails job={job} />}
        </>
      ) : error ? (
        <ErrorText error={error} />
      ) : (
        <p className="muted">Loading…</p>
      )}
    </>
  );
}

function State({ job }: { job: JobDetail }): JSX.Element {
  const passes = job.state === 'pausing' || (job.target !== 'running' && ['starting', 'running'].includes(job.state));
  return (
    <p id="job-state">
      <StateTag state={job.state} />
      {passes && (
        <span className="muted">
          {' '}
          → {job.target}
          {job.grace_ends_at && <> · <Grace endsAt={job.grace_ends_at} /></>}
        </span>
      )}{' '}
      {job.simulated && <Simulated />}
      {job.private && <span className="tag">private</span>}
    </p>
  );
}

/** The reason of the present state; for a waiting job it ends with the changes that would start it. */
function Now({ job, explanation }: { job: JobDetail; explanation: Explanation }): JSX.Element {
  return (
    <section aria-labelledby="now-title" id="now">
      <h2 id="now-title">Now</h2>
      <Reason job={job} explanation={explanation} />
      {job.paused_because && (
        <p className="muted" id="why-paused">
          Why it was paused: {job.paused_because.message}
        </p>
      )}
      <Start of={explanation} />
      {job.queue_position != null && (
        <p>
          Position {job.queue_position} of the waiting jobs of pool {job.pool}.
        </p>
      )}
      {job.progress && (
        <p id="progress">
          <progress max={job.progress.total} value={job.progress.done} aria-label="Progress" /> {job.progress.done} of {job.progress.total}
        </p>
      )}
    </section>
  );
}

const GONE: ReadonlySet<string> = new Set(['project_gone', 'pool_gone']);

/** The newest reason. That of a job that runs is why it was started, and why it stops. */
function Reason({ job, explanation }: { job: JobDetail; explanation: Explanation }): JSX.Element {
  const { reason } = explanation;
  if (!['starting', 'running'].includes(job.state)) {
    return (
      <p className="lead" id="reason">
        {reason.message}
      </p>
    );
  }
  return (
    <>
      <p className="lead" id="reason">
        It is {job.state}
        {job.target !== 'running' && ' and is being stopped'}.
      </p>
      {reason.code !== job.state && (
        <p className="muted" id="why-started">
          {job.target === 'running' && !GONE.has(reason.code) && 'Why it was started: '}
          {reason.message}
        </p>
      )}
    </>
  );
}
