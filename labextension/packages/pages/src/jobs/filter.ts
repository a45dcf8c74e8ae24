/** The filter of the list of jobs: in the address of the page, and as a query of the service. */

import type { JobsQuery } from '@jupyter-gpu-quota/api';

export interface Filter {
  readonly search: string;
  readonly user: string;
  readonly project: string;
  readonly state: string;
  readonly since: string;
  /** A column, with "-" before it for descending. */
  readonly sort: string;
}

export const NO_FILTER: Filter = { search: '', user: '', project: '', state: '', since: '', sort: '-submitted_at' };

export const STATES: Record<string, string> = {
  live: 'not ended',
  running: 'running',
  waiting: 'waiting',
  held: 'held',
  ended: 'ended',
  failed: 'failed',
};

const IN_STATE: Record<string, string> = {
  running: 'starting,running,pausing',
  waiting: 'queued,paused',
  held: 'held',
  ended: 'succeeded,failed,cancelled',
  failed: 'failed',
};

export const PERIODS: Record<string, string> = {
  '1h': 'the last hour',
  '24h': 'the last 24 hours',
  '7d': 'the last 7 days',
  '30d': 'the last 30 days',
};

const HOURS: Record<string, number> = { '1h': 1, '24h': 24, '7d': 168, '30d': 720 };

/** The filter of an address; `mine` and `live` are of older links. */
export function filterOf(query: string, me: string): Filter {
  const given = new URLSearchParams(query);
  const found = Object.fromEntries(Object.entries(NO_FILTER).map(([name, usual]) => [name, given.get(name) ?? usual])) as unknown as Filter;
  return {
    ...found,
    user: given.get('mine') ? me : found.user,
    state: given.get('live') ? 'live' : found.state in STATES ? found.state : '',
    since: found.since in PERIODS ? found.since : '',
  };
}

/** The query of the page's address, without what is usual. */
export function addressOf(filter: Filter): string {
  const given = Object.entries(filter).filter(([name, value]) => value !== NO_FILTER[name as keyof Filter]);
  return given.length === 0 ? '' : `?${new URLSearchParams(given)}`;
}

/** The query of a filter at an instant. */
export function queryOf(filter: Filter, now: number): JobsQuery {
  const { search, user, project, state, since, sort } = filter;
  const query = {
    search: search.trim(),
    user: user.trim(),
    project,
    state: IN_STATE[state] ?? '',
    live: state === 'live' ? '1' : '',
    since: since in HOURS ? new Date(now - HOURS[since]! * 3_600_000).toISOString() : '',
    sort,
  };
  return Object.fromEntries(Object.entries(query).filter(([, value]) => value !== ''));
}
