/** Submit a job: the command, its GPUs, and beneath it what would happen now. */

import { useEffect, useId, useMemo, useState, useSyncExternalStore, type ReactNode } from 'react';

import type { DryRun, Job, JobRequest, SubmitChoices } from '@jupyter-gpu-quota/api';

import { duration, gpus } from './amounts';
import { useGpuState, usePanelContext, useTrans } from './context';
import { inPlaceRequestOf, requestOf, type Draft, type DraftStore } from './draft';
import { ErrorText } from './ErrorText';

const DRY_RUN_AFTER_MS = 500;

type Outcome = { of: 'dry run'; found: DryRun } | { of: 'refusal'; message: string } | null;

export function SubmitForm({ drafts }: { drafts: DraftStore }): JSX.Element {
  const { model, openJob, inPlace } = usePanelContext();
  const trans = useTrans();
  const state = useGpuState();
  const draft = usePossible(useSyncExternalStore(drafts.subscribe, drafts.snapshot));
  const request = (inPlace ? inPlaceRequestOf : requestOf)({ ...draft, project: draft.project || model.status?.project || '' });
  const outcome = useDryRun(request);
  const [sending, setSending] = useState<AbortController | null>(null);
  const [error, setError] = useState('');

  useEffect(() => setError(''), [draft]);

  const send = async (): Promise<void> => {
    if (request === null || sending !== null) {
      return;
    }
    const stop = new AbortController();
    setSending(stop);
    setError('');
    try {
      const job: Job = await model.submit(request, draft.folder, stop.signal);
      drafts.change({});
      openJob(job.id);
    } catch (failure) {
      setError(stop.signal.aborted ? trans.__('Cancelled. If the request was sent already, the job is in the list.') : (failure as Error).message);
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
      <Field label={trans.__('Command')} hint={inPlace ? undefined : trans.__('Runs in a copy of the folder; variables of the notebook are not available.')}>
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
        <summary>{trans.__('Advanced options')}</summary>
        <Advanced draft={draft} drafts={drafts} />
      </details>
      <DryRunResult outcome={outcome} unavailable={state.connection === 'unavailable'} />
      <ErrorText error={error} />
      <div className="jgq-row">
        <button className="jgq-button jgq-primary" type="submit" disabled={request === null || sending !== null || outcome?.of === 'refusal'}>
          {sending ? (inPlace ? trans.__('Submitting…') : trans.__('Uploading the folder…')) : trans.__('Submit')}
        </button>
        {sending && (
          <button className="jgq-button" type="button" onClick={() => sending.abort()}>
            {trans.__('Cancel')}
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
function useChoices(draft: Draft): { projects: string[]; preset: string | undefined; choices: SubmitChoices | null } {
  const { model } = usePanelContext();
  const { projects } = useGpuState();
  const mine = projects.filter(project => project.role !== null);
  const preset = mine.find(project => project.name === model.status?.project) ?? mine[0];
  const chosen = mine.find(project => project.name === draft.project) ?? preset;
  return { projects: mine.map(project => project.name), preset: preset?.name, choices: chosen?.submit ?? null };
}

/** The draft without a project, pool or environment that the person may not use any more. */
function usePossible(draft: Draft): Draft {
  const { projects, choices } = useChoices(draft);
  const pools = choices?.pools.map(one => one.pool) ?? [];
  const kept = (value: string, possible: readonly string[]): string => (possible.includes(value) ? value : '');
  const project = kept(draft.project, projects);
  const pool = kept(draft.pool, pools);
  const environment = kept(draft.environment, choices?.environments ?? []);
  return useMemo(() => ({ ...draft, project, pool, environment }), [draft, project, pool, environment]);
}

function Main({ draft, drafts }: Fields): JSX.Element {
  const { inPlace, trans } = usePanelContext();
  const { projects, preset, choices } = useChoices(draft);
  const pools = choices?.pools ?? [];
  const pool = pools.find(one => one.pool === (draft.pool || choices?.default_pool)) ?? pools[0];
  const limit = pool ? duration(pool.time_limit_s * 1000) : '90m, 24h';
  return (
    <>
      <div className="jgq-grid">
        <TextField
          draft={draft}
          drafts={drafts}
          of="folder"
          label={inPlace ? trans.__('Run in folder of my home') : trans.__('Folder')}
          placeholder={inPlace ? trans.__('without files') : trans.__('home folder')}
        />
        <TextField draft={draft} drafts={drafts} of="gpu" label={trans.__('GPUs')} placeholder="1, 0.5, 1/3, 8GiB" />
        {projects.length > 1 && (
          <Choice draft={draft} drafts={drafts} of="project" label={trans.__('Project')} options={projects} chosen={preset} />
        )}
        {pools.length > 1 && (
          <Choice
            draft={draft}
            drafts={drafts}
            of="pool"
            label={trans.__('Pool')}
            options={pools.map(one => one.pool)}
            chosen={choices?.default_pool}
          />
        )}
        {choices !== null && choices.environments.length > 0 && (
          <Choice
            draft={draft}
            drafts={drafts}
            of="environment"
            label={trans.__('Environment')}
            options={choices.environments}
            chosen={choices.default_environment}
          />
        )}
        <TextField draft={draft} drafts={drafts} of="timeLimit" label={trans.__('Time limit')} placeholder={limit} />
      </div>
      {pool && (
        <p className="jgq-quiet">
          {trans.__('Pool %1: %2 GPU of the quota is free', pool.pool, gpus(pool.quota_left_milli))}
          {pool.limit_left_milli != null && ` · ${trans.__('%1 GPU of the limit', gpus(pool.limit_left_milli))}`}
          {pool.user_left_milli != null && ` · ${trans.__('%1 GPU of your own limit', gpus(pool.user_left_milli))}`}
        </p>
      )}
    </>
  );
}

function Advanced({ draft, drafts }: Fields): JSX.Element {
  const { inPlace, trans } = usePanelContext();
  const { choices } = useChoices(draft);
  const models = [...new Set((choices?.pools ?? []).flatMap(pool => pool.models.map(one => one.model)))];
  const most = choices?.max_priority ?? 100;
  const fields = { draft, drafts };
  return (
    <>
      <div className="jgq-grid">
        <TextField {...fields} of="name" label={trans.__('Name')} />
        <TextField {...fields} of="priority" label={trans.__('Priority (0-%1)', most)} placeholder={String(choices?.priority ?? 50)} number />
        <TextField {...fields} of="nodes" label={trans.__('Nodes')} placeholder="1" number />
        <TextField {...fields} of="minNodes" label={trans.__('Minimum nodes (elastic)')} number />
        <TextField {...fields} of="processes" label={trans.__('Processes per node')} placeholder="1" number />
        {models.length > 1 && <Choice {...fields} of="gpuModel" label={trans.__('GPU model')} options={models} chosen={trans.__('any')} />}
        <TextField {...fields} of="retries" label={trans.__('Retries after a failure')} placeholder="0" number />
      </div>
      <Check
        checked={!draft.preemptible}
        label={trans.__('Not preemptible (only within the quota)')}
        onChange={on => drafts.change({ preemptible: !on })}
      />
      <Check
        checked={draft.isPrivate}
        label={trans.__('Visible only to me, leads and admins')}
        onChange={on => drafts.change({ isPrivate: on })}
      />
      {!inPlace && (
        <Check
          checked={draft.live}
          label={trans.__('Run in place, without a copy of the folder')}
          onChange={on => drafts.change({ live: on })}
        />
      )}
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
  const trans = useTrans();
  const { draft, drafts, of, label, options, chosen } = props;
  return (
    <Field label={label}>
      {id => (
        <select id={id} className="jgq-input" value={draft[of]} onChange={event => drafts.change({ [of]: event.target.value })}>
          <option value="">{chosen ?? trans.__('none')}</option>
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
  const { model } = usePanelContext();
  const [outcome, setOutcome] = useState<Outcome>(null);
  const asked = request === null ? '' : JSON.stringify({ ...request, idempotency_key: undefined });
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

function DryRunResult({ outcome, unavailable }: { outcome: Outcome; unavailable: boolean }): JSX.Element {
  const trans = useTrans();
  return (
    <div className="jgq-outcome" aria-live="polite">
      {outcome?.of === 'refusal' && !unavailable && <p className="jgq-error">{outcome.message}</p>}
      {outcome?.of === 'dry run' && (
        <>
          <p>
            <b>{outcome.found.starts_now ? trans.__('Starts now.') : trans.__('Would be queued.')}</b> {outcome.found.reason.message}
          </p>
          {outcome.found.pauses.map((one, at) => (
            <p key={at} className="jgq-quiet">
              {one.message}
            </p>
          ))}
          <p className="jgq-quiet">{trans.__('Counts as %1 GPU of the quota', gpus(outcome.found.charged_milli))}</p>
        </>
      )}
    </div>
  );
}
