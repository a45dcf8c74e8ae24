/** The details of a job. */

import type { ReactNode } from 'react';

import type { JobDetail } from '@jupyter-gpu-quota/api';
import { duration, gpus, useClock } from '@jupyter-gpu-quota/components';

import { hostText, limitText, ranksText, ranMs, wholeMilli } from '../amounts';
import { Quiet, Swatch, Utilised, When } from '../pieces';

export function Facts({ job, prefix }: { job: JobDetail; prefix: string }): JSX.Element {
  return (
    <section aria-labelledby="facts-title" id="facts">
      <h2 id="facts-title">Details</h2>
      <dl className="facts" id="facts-list">
        <Request job={job} />
        <Course job={job} />
        <Code job={job} prefix={prefix} />
      </dl>
    </section>
  );
}

function Fact({ name, id, wide = false, children }: { name: string; id?: string; wide?: boolean; children: ReactNode }): JSX.Element {
  return (
    <div className={wide ? 'wide' : undefined}>
      <dt>{name}</dt>
      <dd id={id}>{children}</dd>
    </div>
  );
}

function Request({ job }: { job: JobDetail }): JSX.Element {
  const ranks = ranksText(job);
  const host = hostText(job);
  const whole = gpus(wholeMilli(job));
  return (
    <>
      <Fact name="Project">
        <Swatch project={job.project} /> {job.project}
      </Fact>
      <Fact name="User">{job.user}</Fact>
      <Fact name="GPU">
        {whole} in pool {job.pool}
        {job.gpu_model && `, ${job.gpu_model}`}{' '}
        {job.gpu !== whole && (
          <Quiet>
            (requested: {job.gpu}
            {ranks && ' on each node'})
          </Quiet>
        )}
      </Fact>
      {ranks && (
        <Fact name="Ranks" id="ranks-now">
          {ranks}, {gpus(job.gpu_milli)} GPU each
        </Fact>
      )}
      {host && (
        <Fact name="CPU and memory" id="host">
          {host}
        </Fact>
      )}
      {job.allocations.length > 0 && (
        <>
          <Fact name="In use, last read">
            <Utilised of={job} />
          </Fact>
          <Fact name="Devices">{job.allocations.map(part => `${part.device} ${gpus(part.gpu_milli)}`).join(', ')}</Fact>
          {job.enforcement && (
            <Fact name="Enforcement">
              memory {job.enforcement.memory}, compute {job.enforcement.compute}
              {job.enforcement.why && ` (${job.enforcement.why})`}
            </Fact>
          )}
        </>
      )}
      <Fact name="Priority">
        {job.priority}, {job.preemptible ? 'may be paused' : 'not preemptible'}
      </Fact>
    </>
  );
}

function Course({ job }: { job: JobDetail }): JSX.Element {
  const ran = ranMs(job, useClock(5_000));
  const ended = job.rank_records.find(rank => rank.attempt === job.attempt && rank.exit_status === job.exit_status);
  return (
    <>
      <Fact name="Attempt">
        {job.attempt}, paused {job.pauses === 1 ? '1 time' : `${job.pauses} times`}
      </Fact>
      <Fact name="Time limit">{limitText(job.time_limit_s)}</Fact>
      <Fact name="Retries left">
        {job.retries_left} of {job.retries}
      </Fact>
      <Fact name="Submitted">
        <When at={job.submitted_at} />
      </Fact>
      {job.attempt > 1 && job.first_started_at && (
        <Fact name="First started" id="first-start">
          <When at={job.first_started_at} />
        </Fact>
      )}
      <Fact name="Started">
        <When at={job.started_at} />
      </Fact>
      <Fact name="Ended">
        <When at={job.ended_at} />
        {job.exit_status !== null && `, ${ended?.exit_text ?? `exit ${job.exit_status}`}`}
      </Fact>
      {ran !== null && (
        <Fact name="Duration" id="duration">
          {duration(ran)}
        </Fact>
      )}
      {job.stopped_by && <Fact name={job.state === 'held' ? 'Held by' : 'Stopped by'}>{job.stopped_by}</Fact>}
    </>
  );
}

function Code({ job, prefix }: { job: JobDetail; prefix: string }): JSX.Element {
  const variables = Object.entries(job.variables);
  return (
    <>
      <Fact name="Code">
        {job.live ? (
          `live in ${job.directory}`
        ) : job.bundle ? (
          <>
            <code title={job.bundle}>{job.bundle.slice(0, 12)}</code>
            {job.directory !== '.' && ` in ${job.directory}`}
          </>
        ) : (
          'none sent'
        )}
      </Fact>
      {job.environment && <Fact name="Environment">{job.environment}</Fact>}
      {job.clone_of && (
        <Fact name="Copy of">
          <a href={`${prefix}jobs/${job.clone_of}`}>{job.clone_of}</a>
        </Fact>
      )}
      {variables.length > 0 && (
        <Fact name="Variables">
          {variables.map(([name, value]) => (
            <span key={name}>
              <code>
                {name}={value}
              </code>{' '}
            </span>
          ))}
        </Fact>
      )}
      {job.secret_names.length > 0 && (
        <Fact name="Secrets">
          {job.secret_names.join(', ')} <Quiet>(values are not shown)</Quiet>
        </Fact>
      )}
      <Fact name="Command" wide>
        <code>{shellText(job.command)}</code>
      </Fact>
      <Fact name="Id" wide>
        <code>{job.id}</code>
      </Fact>
    </>
  );
}

const PLAIN = /^[\w@%+=:,./-]+$/;

/** A command as a POSIX shell reads it. */
function shellText(command: readonly string[]): string {
  return command.map(word => (PLAIN.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`)).join(' ');
}
