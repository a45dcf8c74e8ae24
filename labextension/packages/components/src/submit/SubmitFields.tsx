/** The fields of a job request: what is mostly changed, and the rest. */

import { useId, useMemo, type ReactNode } from 'react';

import { duration, gpus } from '../amounts';
import { useGpuState, usePanelContext, useTrans } from '../context';
import { choicesOf, possibleOf, type Choices } from './choices';
import { chosenData, dataChoice, type Draft, type DraftStore } from './draft';

export interface Fields {
  draft: Draft;
  drafts: DraftStore;
}

export function useChoices(draft: Draft): Choices {
  const { model } = usePanelContext();
  return choicesOf(useGpuState().projects, model.status?.project ?? null, draft.project);
}

/** The draft without a project, pool, environment, GPU model or data that the user may no longer use. */
export function usePossible(draft: Draft): Draft {
  const { project, pool, environment, gpuModel, data } = possibleOf(draft, useChoices(draft));
  return useMemo(
    () => ({ ...draft, project, pool, environment, gpuModel, data }),
    [draft, project, pool, environment, gpuModel, data],
  );
}

export function MainFields({ draft, drafts }: Fields): JSX.Element {
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
          {trans.__('Left in pool %1: %2 GPU of the quota', pool.pool, gpus(pool.quota_left_milli))}
          {pool.limit_left_milli != null && ` · ${trans.__('%1 GPU of the limit', gpus(pool.limit_left_milli))}`}
          {pool.user_left_milli != null && ` · ${trans.__('%1 GPU of the ceiling for each user', gpus(pool.user_left_milli))}`}
        </p>
      )}
    </>
  );
}

export function AdvancedFields({ draft, drafts }: Fields): JSX.Element {
  const { inPlace, trans } = usePanelContext();
  const { choices, models } = useChoices(draft);
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
        <TextField {...fields} of="cpus" label={trans.__('CPU cores')} number />
        <TextField {...fields} of="memoryGib" label={trans.__('Memory (GiB)')} number />
        {models.length > 1 && <Choice {...fields} of="gpuModel" label={trans.__('GPU model')} options={models} chosen={trans.__('any')} />}
        <TextField {...fields} of="retries" label={trans.__('Retries after a failure')} placeholder="0" number />
      </div>
      <Field label={trans.__('Variables')}>
        {id => (
          <textarea
            id={id}
            className="jgq-input jgq-code"
            rows={2}
            value={draft.variables}
            placeholder={'NAME=value'}
            spellCheck={false}
            onChange={event => drafts.change({ variables: event.target.value })}
          />
        )}
      </Field>
      <DataChoices {...fields} possible={choices?.data ?? []} />
      <Field label={trans.__('Notify me')}>
        {id => (
          <select id={id} className="jgq-input" value={draft.notify} onChange={event => drafts.change({ notify: event.target.value })}>
            <option value="">{trans.__('Site default')}</option>
            <option value="never">{trans.__('never')}</option>
            <option value="failed">{trans.__('when it fails')}</option>
            <option value="ended">{trans.__('when it ends or fails')}</option>
            <option value="all">{trans.__('when it ends, fails or is paused')}</option>
          </select>
        )}
      </Field>
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

/** A label, an input that `children` makes with its id and that of its hint, and the hint. */
export function Field(props: { label: string; hint?: string; children: (id: string, hintId?: string) => ReactNode }): JSX.Element {
  const id = useId();
  const hintId = props.hint && `${id}hint`;
  return (
    <div className="jgq-field">
      <label htmlFor={id}>{props.label}</label>
      {props.children(id, hintId)}
      {props.hint && (
        <small id={hintId} className="jgq-quiet">
          {props.hint}
        </small>
      )}
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
          step={number ? 'any' : undefined}
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

/** The data of the user's groups that the job gets; all of it unless some is deselected. */
function DataChoices({ draft, drafts, possible }: Fields & { possible: readonly string[] }): JSX.Element | null {
  const trans = useTrans();
  const chosen = chosenData(draft.data, possible);
  const choose = (name: string, on: boolean): void =>
    drafts.change({ data: dataChoice(possible.filter(one => (one === name ? on : chosen.includes(one))), possible) });
  return possible.length === 0 ? null : (
    <fieldset className="jgq-parameters">
      <legend>{trans.__('Data')}</legend>
      {possible.map(name => (
        <Check key={name} checked={chosen.includes(name)} label={name} onChange={on => choose(name, on)} />
      ))}
    </fieldset>
  );
}

/** The parameters of the notebook that the command runs; an empty field leaves the notebook's own value. */
export function ParameterFields({ draft, drafts }: Fields): JSX.Element {
  const trans = useTrans();
  const set = (name: string, value: string): void =>
    drafts.change({ parameters: draft.parameters.map(one => (one.name === name ? { ...one, value } : one)) });
  return (
    <fieldset className="jgq-parameters">
      <legend>{trans.__('Parameters of the notebook')}</legend>
      <div className="jgq-grid">
        {draft.parameters.map(one => (
          <Field key={one.name} label={one.name}>
            {id => (
              <input
                id={id}
                className="jgq-input jgq-code"
                value={one.value}
                placeholder={one.preset}
                spellCheck={false}
                onChange={event => set(one.name, event.target.value)}
              />
            )}
          </Field>
        ))}
      </div>
    </fieldset>
  );
}
