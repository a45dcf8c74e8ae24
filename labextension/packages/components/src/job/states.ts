/** The states of jobs and of their logs in words. A translator's tools find only literals, so each has its own. */

import type { Translations } from '../context';

/** The state of a job, with the word of the API where none is known. */
export function stateText(state: string, trans: Translations): string {
  const texts: Record<string, string> = {
    queued: trans.__('queued'),
    starting: trans.__('starting'),
    running: trans.__('running'),
    pausing: trans.__('pausing'),
    paused: trans.__('paused'),
    held: trans.__('held'),
    succeeded: trans.__('succeeded'),
    failed: trans.__('failed'),
    cancelled: trans.__('cancelled'),
  };
  return texts[state] ?? state;
}

/** Whether a log is read; null where `status` is the state of its job. */
export function logText(status: string, trans: Translations): string | null {
  const texts: Record<string, string> = {
    connecting: trans.__('Log: connecting'),
    live: trans.__('Log: live'),
    lost: trans.__('Log: lost'),
    refused: trans.__('Log: refused'),
  };
  return texts[status] ?? null;
}
