/** The permissions of a user for a job. The service checks them again. */

import type { Change, Job, Me } from './service';
import { ENDED } from './state';

/** Only the owner, leads of the project and admins may change a job. */
export function mayChange(me: Me | null, job: Job): boolean {
  return me !== null && (me.admin || me.name === job.user || me.projects[job.project] === 'lead');
}

/** An admin whose login may change things puts quota files in force. */
export function mayApplyQuota(me: Me): boolean {
  const has = (scope: string): boolean => me.scopes.includes(`custom:gpu-quota:${scope}`);
  return has('admin') || (me.admin && has('submit'));
}

/** Admins and auditors read all rows of the audit. */
export function mayReadWholeAudit(me: Me): boolean {
  return me.admin || me.scopes.includes('custom:gpu-quota:audit');
}

/** Admins and leads see the usage of other people. */
export function seesOthers(me: Me): boolean {
  return me.admin || Object.values(me.projects).includes('lead');
}

/** The changes that are possible in the job's state. */
export function changesOf(job: Job): Change[] {
  if (ENDED.has(job.state) || job.target === 'cancelled') {
    return [];
  }
  return job.state === 'held' || job.target === 'held' ? ['release', 'cancel'] : ['hold', 'cancel'];
}

/** The jobs of these that the user may hold, release or cancel now. */
export function changeableOf(me: Me | null, jobs: readonly Job[], change: Change): Job[] {
  return jobs.filter(job => mayChange(me, job) && changesOf(job).includes(change));
}
