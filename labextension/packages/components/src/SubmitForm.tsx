/** Submit a job: the command, its GPUs, and beneath it what would happen now. */

import { useEffect, useId, useRef, useState, useSyncExternalStore, type ReactNode } from 'react';

import type { DryRun, Job, JobRequest, SubmitChoices } from '@jupyter-gpu-quota/api';

import { duration, gpus } from './amounts';
import { useGpuState, useSurroundings, useText } from './context';
import { requestOf, type Draft, type DraftStore } from './draft';
import { ErrorText } from './ErrorText';

const DRY_RUN_AFTER_MS = 500;

type Outcome = { of: 'dry run'; found: DryRun } | { of: 'refusal'; message: string } | null;

export function SubmitForm({ drafts }: { drafts: DraftStore }): JSX.Element {
  const { model, openJob } = useSurroundings();
  const text = useText();
  const state = useGpuState();
  const draft = useSyncExternalStore(drafts.subscribe, drafts.snapshot);
  const request = requestOf(draft);
  const outcome = useDryRun(request);
  const [sending, setSending] = useState<AbortController | null>(null);
  const [error, setError] = useState('');

  const send = async (): Promise<void> => {
    if (request === null || sending !== null) {
      return;
    }
    const stop = new AbortController();
    setSending(stop);
    setError('');
    try {
      const job: Job = await model.submit(request, draft.folder, stop.signal);
      openJob(job.id);
    } catch (failure) {
      setError(stop.signal.aborted ? text('Cancelled; no job was queued.') : (failure as Error).message);
    } finally {
      setSending(null);
    }
  };

  return (
    <form
      className="jgq-form"
      onSubmit={event => {
        event.preventDefault();
        void send();
      }}
    >
      <Field label={text('Command')} hint={text('Runs in a copy of the folder, without your notebook.')}>
        {id => (
          <input
            id={id}
            className="jgq-input jgq-code"
            value={draft.command}
            placeholder="python train.py --epochs 10"
            spellCheck={false}
            required
            onChange={event => drafts.change({ command: event.target.value })}
          />
        )}
      </Field>
      <Main draft={draft} drafts={drafts} />
      <details>
        <summary>{text('More')}</summary>
        <Advanced draft={draft} drafts={drafts} />
      </details>
      <Note outcome={outcome} away={state.connection === 'away'} />
      <ErrorText error={error} />
      <div className="jgq-row">
        <button className="jgq-button jgq-primary" type="submit" disabled={request === null || sending !== null}>
          {sending ? text('Sending the folder …') : text('Submit')}
        </button>
        {sending && (
          <button className="jgq-button" type="button" onClick={() => sending.abort()}>
            {text('Cancel')}
          </button>
        )}
      </div>
    </form>
  );
}

interface Fields {
  draft: Draft;
  drafts: DraftStore;
}

/** The choices of the project that the draft names, or of the person's only or first one. */
function useChoices(draft: Draft): { projects: string[]; choices: SubmitChoices | null } {
  const { projects } = useGpuState();
  const mine = projects.filter(project => project.role !== null);
  const chosen = mine.find(project => project.name === draft.project) ?? mine[0];
  return { projects: mine.map(project => project.name), choices: chosen?.submit ?? null };
}

function Main({ draft, drafts }: Fields): JSX.Element {
  const text = useText();
  const { projects, choices } = useChoices(draft);
  const pools = choices?.pools ?? [];
  const pool = pools.find(one => one.pool === (draft.pool || choices?.default_pool)) ?? pools[0];
  const limit = pool ? duration(pool.time_limit_s * 1000) : '90m, 24h';
  return (
    <>
      <div className="jgq-grid">
        <TextField draft={draft} drafts={drafts} of="folder" label={text('Folder')} placeholder="/" />
        <TextField draft={draft} drafts={drafts} of="gpu" label={text('GPUs')} placeholder="1, 0.5, 1/3, 8GiB" />
        {projects.length > 1 && (
          <Choice draft={draft} drafts={drafts} of="project" label={text('Project')} options={projects} chosen={projects[0]} />
        )}
        {pools.length > 1 && (
          <Choice
            draft={draft}
            drafts={drafts}
            of="pool"
            label={text('Pool')}
            options={pools.map(one => one.pool)}
            chosen={choices?.default_pool}
          />
        )}
        {choices !== null && choices.environments.length > 0 && (
          <Choice
            draft={draft}
            drafts={drafts}
            of="environment"
            label={text('Environment')}
            options={choices.environments}
            chosen={choices.default_environment}
          />
        )}
        <TextField draft={draft} drafts={drafts} of="timeLimit" label={text('Time limit')} placeholder={limit} />
      </div>
      {pool && (
        <p className="jgq-quiet">
          {text('%1: %2 GPU left of the quota', pool.pool, gpus(pool.quota_left_milli))}
          {pool.limit_left_milli != null && text(', %1 of the limit', gpus(pool.limit_left_milli))}
          {pool.user_left_milli != null && text(', %1 for you', gpus(pool.user_left_milli))}
        </p>
      )}
    </>
  );
}

function Advanced({ draft, drafts }: Fields): JSX.Element {
  const text = useText();
  const { choices } = useChoices(draft);
  const models = [...new Set((choices?.pools ?? []).flatMap(pool => pool.models.map(one => one.model)))];
  const most = choices?.max_priority ?? 100;
  const fields = { draft, drafts };
  return (
    <>
      <div className="jgq-grid">
        <TextField {...fields} of="name" label={text('Name')} />
        <TextField {...fields} of="priority" label={text('Priority (0-%1)', most)} placeholder={String(choices?.priority ?? 50)} number />
        <TextField {...fields} of="nodes" label={text('Nodes')} placeholder="1" number />
        <TextField {...fields} of="minNodes" label={text('At least so many nodes')} number />
        <TextField {...fields} of="processes" label={text('Processes per node')} placeholder="1" number />
        {models.length > 1 && <Choice {...fields} of="gpuModel" label={text('GPU model')} options={models} chosen={text('any')} />}
        <TextField {...fields} of="retries" label={text('Retries after a failure')} placeholder="0" number />
      </div>
      <Check
        checked={!draft.preemptible}
        label={text('Never pause it (only within the quota)')}
        onChange={on => drafts.change({ preemptible: !on })}
      />
      <Check
        checked={draft.isPrivate}
        label={text('Visible only to me, leads and admins')}
        onChange={on => drafts.change({ isPrivate: on })}
      />
      <Check
        checked={draft.live}
        label={text('Run in the folder itself, not in a copy')}
        onChange={on => drafts.change({ live: on })}
      />
    </>
  );
}

type TextOf = { [K in keyof Draft]: Draft[K] extends string ? K : never }[keyof Draft];

function Field(props: { label: string; hint?: string; children: (id: string) => ReactNode }): JSX.Element {
  const id = useId();
  return (
    <div className="jgq-field">
      <label htmlFor={id}>{props.label}</label>
      {props.children(id)}
      {props.hint && <small className="jgq-quiet">{props.hint}</small>}
    </div>
  );
}

function TextField(
  props: Fields & { of: TextOf; label: string; placeholder?: string; number?: boolean },
): JSX.Element {
  const { draft, drafts, of, label, placeholder, number } = props;
  return (
    <Field label={label}>
      {id => (
        <input
          id={id}
          className="jgq-input"
          type={number ? 'number' : 'text'}
          min={number ? 0 : undefined}
          value={draft[of]}
          placeholder={placeholder}
          spellCheck={false}
          onChange={event => drafts.change({ [of]: event.target.value })}
        />
      )}
    </Field>
  );
}

/** A choice whose empty value is the service's default, which `chosen` names. */
function Choice(
  props: Fields & { of: TextOf; label: string; options: string[]; chosen: string | null | undefined },
): JSX.Element {
  const text = useText();
  const { draft, drafts, of, label, options, chosen } = props;
  return (
    <Field label={label}>
      {id => (
        <select id={id} className="jgq-input" value={draft[of]} onChange={event => drafts.change({ [of]: event.target.value })}>
          <option value="">{chosen ?? text('none')}</option>
          {options
            .filter(option => option !== chosen)
            .map(option => (
              <option key={option}>{option}</option>
            ))}
        </select>
      )}
    </Field>
  );
}

function Check(props: { checked: boolean; label: string; onChange(on: boolean): void }): JSX.Element {
  return (
    <label className="jgq-check">
      <input type="checkbox" checked={props.checked} onChange={event => props.onChange(event.target.checked)} />
      {props.label}
    </label>
  );
}

/** What the service says of this request, shortly after the last change to it. */
function useDryRun(request: JobRequest | null): Outcome {
  const { model } = useSurroundings();
  const [outcome, setOutcome] = useState<Outcome>(null);
  const asked = request === null ? '' : JSON.stringify(request);
  const newest = useRef(asked);
  newest.current = asked;
  useEffect(() => {
    if (asked === '') {
      setOutcome(null);
      return;
    }
    const stop = new AbortController();
    const timer = setTimeout(() => {
      model.transport.service.dryRun(JSON.parse(asked) as JobRequest, stop.signal).then(
        found => setOutcome({ of: 'dry run', found }),
        failure => stop.signal.aborted || setOutcome({ of: 'refusal', message: (failure as Error).message }),
      );
    }, DRY_RUN_AFTER_MS);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [asked, model]);
  return outcome;
}

function Note({ outcome, away }: { outcome: Outcome; away: boolean }): JSX.Element {
  const text = useText();
  return (
    <div className="jgq-outcome" aria-live="polite">
      {outcome?.of === 'refusal' && !away && <p className="jgq-error">{outcome.message}</p>}
      {outcome?.of === 'dry run' && (
        <>
          <p>
            <b>{outcome.found.starts_now ? text('Starts now.') : text('Would wait.')}</b> {outcome.found.reason.message}
          </p>
          {outcome.found.pauses.map((one, at) => (
            <p key={at} className="jgq-quiet">
              {one.message}
            </p>
          ))}
          <p className="jgq-quiet">{text('Charged: %1 GPU', gpus(outcome.found.charged_milli))}</p>
        </>
      )}
    </div>
  );
}
