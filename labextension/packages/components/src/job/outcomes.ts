/** Changes of jobs, with a sentence about the outcome. */

import type { Change, Job } from '@jupyter-gpu-quota/api';

import type { PanelContext, Translations } from '../context';
import { stateText } from './states';

const REQUESTED: Record<Change, string> = { hold: 'held', cancel: 'cancelled', release: '' };
const PASSING: ReadonlySet<string> = new Set(['queued', 'starting', 'running', 'pausing', 'paused']);

/** Stops the observation of a job that has not reached its requested state yet, by job id. */
const observed = new Map<string, () => void>();

/** Hold, release or cancel a job, and announce the outcome; for a running job again when it has stopped. */
export async function changeJob({ model, say, trans }: PanelContext, job: Job, change: Change): Promise<void> {
  const changed = await model.change(job.id, change);
  observed.get(job.id)?.();
  if (say === undefined) {
    return;
  }
  const reached = (now: Job): void => say(reachedText(now, trans));
  if (change === 'release') {
    say(trans.__('%1 is released: it is %2.', changed.name, stateText(changed.state, trans)));
  } else if (changed.state === REQUESTED[change]) {
    reached(changed);
  } else {
    const held = trans.__('%1 saves and stops; then it is held.', changed.name);
    say(change === 'hold' ? held : trans.__('%1 saves and stops; then it is cancelled.', changed.name));
    const unsubscribe = model.subscribeToChanges(changes => {
      const now = changes?.jobs.find(one => one.id === job.id);
      if (now && !PASSING.has(now.state)) {
        observed.get(job.id)?.();
        reached(now);
      }
    });
    observed.set(job.id, () => {
      unsubscribe();
      observed.delete(job.id);
    });
  }
}

/** Where a job is that has stopped. */
function reachedText({ name, state }: Job, trans: Translations): string {
  const texts: Record<string, string> = {
    held: trans.__('%1 is held.', name),
    cancelled: trans.__('%1 is cancelled.', name),
    succeeded: trans.__('%1 succeeded.', name),
    failed: trans.__('%1 failed.', name),
  };
  return texts[state] ?? trans.__('%1 is %2.', name, stateText(state, trans));
}
