/** The actions on one job: hold or release, cancel, clone, run again. */

import { useRef } from 'react';

import { changesOf, mayChange, type Change, type Job } from '@jupyter-gpu-quota/api';

import { ActionButton } from './ActionButton';
import { useAction, useGpuState, usePanelContext } from './context';
import { ErrorText } from './ErrorText';
import { changeJob } from './outcomes';

export function JobActions({ job }: { job: Job }): JSX.Element {
  const { model, openJob, trans } = usePanelContext();
  const { busy, error, run } = useAction();
  const again = useRef<HTMLSpanElement>(null);
  const repeat = async (action: 'clone' | 'rerun'): Promise<void> => openJob((await model.repeat(job.id, action)).id);
  return (
    <div className="jgq-row" role="toolbar" aria-label={trans.__('Actions')}>
      <ChangeButtons job={job} after={() => again.current?.querySelector('button') ?? null} />
      <span ref={again} className="jgq-row">
        <ActionButton id="jgq-clone" busy={busy} onClick={() => void run(() => repeat('clone'))}>
          {trans.__('Clone')}
        </ActionButton>
        <ActionButton id="jgq-rerun" busy={busy} onClick={() => void run(() => repeat('rerun'))}>
          {trans.__('Run again')}
        </ActionButton>
      </span>
      <ErrorText error={error} />
    </div>
  );
}

export interface ChangeButtonsProps {
  job: Job;
  /** Appended to the ids of the buttons; with one, screen readers also read the job's name. */
  suffix?: string;
  after(): HTMLElement | null;
}

/** Hold and release are one button with two labels, so that the focus stays on it. */
export function ChangeButtons({ job, suffix = '', after }: ChangeButtonsProps): JSX.Element {
  const context = usePanelContext();
  const { trans, confirm } = context;
  const { me } = useGpuState();
  const { busy, error, run } = useAction();
  const possible = mayChange(me, job) ? changesOf(job) : [];
  const change = (verb: Change): void => void run(() => changeJob(context, job, verb));
  const cancel = async (): Promise<void> => {
    if (await confirm(trans.__('Cancel %1?', job.name), trans.__('It is stopped. Its log and outputs are kept.'), trans.__('Cancel job'))) {
      await changeJob(context, job, 'cancel');
    }
  };
  const toggle = possible.find(verb => verb !== 'cancel');
  const name = suffix && <span className="jgq-unseen"> {job.name}</span>;
  return (
    <>
      {toggle && (
        <ActionButton id={`jgq-hold-or-release${suffix}`} busy={busy} after={after} onClick={() => change(toggle)}>
          {toggle === 'hold' ? trans.__('Hold') : trans.__('Release')}
          {name}
        </ActionButton>
      )}
      {toggle && (
        <ActionButton id={`jgq-cancel${suffix}`} className="jgq-danger" busy={busy} after={after} onClick={() => void run(cancel)}>
          {trans.__('Cancel')}
          {name}
        </ActionButton>
      )}
      <ErrorText error={error} />
    </>
  );
}
