/** The permissions of a user for a job. The service checks them again. */

import type { Change, Job, Me } from './service';
import { ENDED } from './state';

/** Only the owner, leads of the project and admins may change a job. */
export function mayChange(me: Me | null, job: Job): boolean {
  return me !== null && (me.admin || me.name === job.user || me.projects[job.project] === 'lead');
}

/** The changes that are possible in the job's state. */
export function changesOf(job: Job): Change[] {
  if (ENDED.has(job.state) || job.target === 'cancelled') {
    return [];
  }
  return job.state === 'held' || job.target === 'held' ? ['release', 'cancel'] : ['hold', 'cancel'];
}
