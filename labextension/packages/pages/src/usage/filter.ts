/** The period and the key of the usage page: in its address, and as a query of the service. */

import type { UsageQuery } from '@jupyter-gpu-quota/api';

export const KEYS = ['project', 'department', 'group', 'user', 'job', 'pool'] as const;
export type Key = (typeof KEYS)[number];

export interface Filter {
  /** '': the default of the reader. */
  readonly by: Key | '';
  /** The first and the last day, as inputs of dates have them. */
  readonly from: string;
  readonly to: string;
}

const DAYS = 7;

/** The local day, "2027-01-31". */
function dayOf(at: Date): string {
  return [at.getFullYear(), at.getMonth() + 1, at.getDate()].map(part => String(part).padStart(2, '0')).join('-');
}

export function filterOf(address: string, now: Date): Filter {
  const given = new URLSearchParams(address);
  const by = KEYS.find(key => key === given.get('by')) ?? '';
  const first = new Date(now.getFullYear(), now.getMonth(), now.getDate() - DAYS + 1);
  return { by, from: given.get('from') ?? dayOf(first), to: given.get('to') ?? dayOf(now) };
}

/** The query of the page's address. */
export function addressOf(filter: Filter): string {
  return `?${new URLSearchParams(Object.entries(filter).filter(([, value]) => value !== ''))}`;
}

/** From the beginning of the first day to the end of the last one. A day that is not complete has no instant. */
export function queryOf({ from, to }: Filter, by: string): UsageQuery {
  const begin = new Date(`${from}T00:00`);
  const end = new Date(`${to}T00:00`);
  end.setDate(end.getDate() + 1);
  const instants = Object.entries({ from: begin, to: end }).filter(([, at]) => !Number.isNaN(at.getTime()));
  return { by, ...Object.fromEntries(instants.map(([name, at]) => [name, at.toISOString()])) };
}
