/** The actions on one job: hold or release, cancel, clone, run again. */

import { useRef, useState } from 'react';

import { changesOf, mayChange, type Change, type Job, type Repeat } from '@jupyter-gpu-quota/api';

import { ActionButton } from '../ActionButton';
import { useAction, useGpuState, usePanelContext } from '../context';
import { ErrorText } from '../ErrorText';
import { SecretsForm } from './SecretsForm';
import { changeJob } from './outcomes';

export function JobActions({ job }: { job: Job }): JSX.Element {
  const { model, openJob, trans } = usePanelContext();
  const { busy, error, run } = useAction();
  const again = useRef<HTMLSpanElement>(null);
  const [asked, setAsked] = useState<Repeat | null>(null);
  const labels: Record<Repeat, string> = { clone: trans.__('Clone'), rerun: trans.__('Run again') };
  const repeat = async (action: Repeat, secrets: Readonly<Record<string, string>> = {}): Promise<void> => {
    const { id } = await model.repeat(job.id, action, secrets);
    setAsked(null);
    openJob(id);
  };
  const start = (action: Repeat): void => (job.secret_names.length > 0 ? setAsked(action) : void run(() => repeat(action)));
  return (
    <>
      <div className="jgq-row" role="toolbar" aria-label={trans.__('Actions')}>
        <ChangeButtons job={job} after={() => again.current?.querySelector('button') ?? null} />
        <span ref={again} className="jgq-row">
          {(['clone', 'rerun'] as const).map(action => (
            <ActionButton key={action} id={`jgq-${action}`} busy={busy} onClick={() => start(action)}>
              {labels[action]}
            </ActionButton>
          ))}
        </span>
        <ErrorText error={error} />
      </div>
      {asked && job.secret_names.length > 0 && (
        <SecretsForm
          key={`${job.id} ${asked}`}
          names={job.secret_names}
          action={labels[asked]}
          onBack={() => (setAsked(null), document.getElementById(`jgq-${asked}`)?.focus())}
          onGiven={secrets => repeat(asked, secrets)}
        />
      )}
    </>
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
