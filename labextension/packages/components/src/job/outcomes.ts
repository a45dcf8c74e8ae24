/** Changes of jobs, with a sentence about the outcome. */

import type { Change, Job } from '@jupyter-gpu-quota/api';

import type { PanelContext } from '../context';

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
  const reached = (now: Job): void =>
    say(['succeeded', 'failed'].includes(now.state) ? trans.__('%1 %2.', now.name, trans.__(now.state)) : trans.__('%1 is %2.', now.name, trans.__(now.state)));
  if (change === 'release') {
    say(trans.__('%1 is released: it is %2.', changed.name, trans.__(changed.state)));
  } else if (changed.state === REQUESTED[change]) {
    reached(changed);
  } else {
    say(trans.__('%1 saves and stops; then it is %2.', changed.name, trans.__(REQUESTED[change])));
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
