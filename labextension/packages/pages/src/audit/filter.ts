/** The filter of the audit: in the address of the page, and as a query of the service. */

import type { AuditQuery } from '@jupyter-gpu-quota/api';

export interface Filter {
  readonly actor: string;
  readonly action: string;
  readonly project: string;
  /** Local times, as inputs of times have them. */
  readonly since: string;
  readonly until: string;
}

export const NO_FILTER: Filter = { actor: '', action: '', project: '', since: '', until: '' };

export function filterOf(address: string): Filter {
  const given = new URLSearchParams(address);
  return Object.fromEntries(Object.keys(NO_FILTER).map(name => [name, given.get(name) ?? ''])) as unknown as Filter;
}

/** The query of the page's address. */
export function addressOf(filter: Filter): string {
  const given = Object.entries(filter).filter(([, value]) => value !== '');
  return given.length === 0 ? '' : `?${new URLSearchParams(given)}`;
}

export function queryOf(filter: Filter): AuditQuery {
  const { since, until, ...texts } = filter;
  const query = { ...texts, since: instantOf(since), until: instantOf(until) };
  return Object.fromEntries(Object.entries(query).map(([name, value]) => [name, value.trim()]).filter(([, value]) => value !== ''));
}

/** The instant of a local time; none for one that is not complete. */
function instantOf(local: string): string {
  const at = new Date(local);
  return Number.isNaN(at.getTime()) ? '' : at.toISOString();
}
