/** The actions on the selected jobs. Each goes to those jobs for which it is possible, and says how many they are. */

import { changeableOf, type Change, type Job } from '@jupyter-gpu-quota/api';

import { ActionButton } from './ActionButton';
import { useAction, useGpuState, usePanelContext, type Translations } from './context';
import { ErrorText } from './ErrorText';
import { changeJob } from './job/outcomes';

export interface BulkActionsProps {
  chosen: readonly Job[];
  onDone(): void;
  /** The element that gets the focus when the selection is cleared. */
  after(): HTMLElement | null;
}

export function BulkActions({ chosen, onDone, after }: BulkActionsProps): JSX.Element {
  const context = usePanelContext();
  const { confirm, say, trans } = context;
  const { me } = useGpuState();
  const { busy, error, run } = useAction();
  const labels: Record<Change, string> = { hold: trans.__('Hold'), release: trans.__('Release'), cancel: trans.__('Cancel') };
  const change = async (verb: Change, jobs: readonly Job[]): Promise<void> => {
    const question = trans._n('Cancel %1 job?', 'Cancel %1 jobs?', jobs.length);
    const body = trans.__('Running jobs are stopped. Their logs and outputs are kept.');
    if (verb === 'cancel' && !(await confirm(question, body, trans.__('Cancel jobs')))) {
      return;
    }
    const silent = { ...context, say: undefined };
    const outcomes = await Promise.allSettled(jobs.map(job => changeJob(silent, job, verb)));
    const failed = outcomes.flatMap(one => (one.status === 'rejected' ? [(one.reason as Error).message] : []));
    if (failed.length > 0) {
      const reasons = [...new Set(failed)].join(' ');
      throw new Error(trans._n('%1 job was not changed: %2', '%1 jobs were not changed: %2', failed.length, reasons));
    }
    say?.(requestedText(verb, jobs.length, trans));
    onDone();
  };
  return (
    <div className="jgq-row jgq-bulk" role="toolbar" aria-label={trans.__('Selected jobs')}>
      <span>{trans.__('%1 selected', chosen.length)}</span>
      {(['hold', 'release', 'cancel'] as const).map(verb => {
        const jobs = changeableOf(me, chosen, verb);
        const className = verb === 'cancel' ? 'jgq-danger' : '';
        return (
          <ActionButton
            key={verb}
            id={`bulk-${verb}`}
            className={className}
            busy={busy || jobs.length === 0}
            after={after}
            onClick={() => void run(() => change(verb, jobs))}
          >
            {labels[verb]} {jobs.length}
          </ActionButton>
        );
      })}
      <ActionButton busy={false} after={after} onClick={onDone}>
        {trans.__('Clear')}
      </ActionButton>
      <ErrorText error={error} />
    </div>
  );
}

function requestedText(verb: Change, count: number, trans: Translations): string {
  const texts: Record<Change, string> = {
    hold: trans._n('%1 job: hold requested.', '%1 jobs: hold requested.', count),
    release: trans._n('%1 job: release requested.', '%1 jobs: release requested.', count),
    cancel: trans._n('%1 job: cancel requested.', '%1 jobs: cancel requested.', count),
  };
  return texts[verb];
}
