/** An edit of the quota file: whether it may be applied, after which preview. */

import type { Preview } from '@jupyter-gpu-quota/api';

export interface Accepted {
  readonly overcommit: boolean;
  readonly removal: boolean;
  readonly stops: boolean;
}

export type Previewed = { readonly text: string; readonly found: Preview } | { readonly text: string; readonly fault: string };

/** Why the edit cannot be applied now; empty if it can. */
export function whyNot(text: string, previewed: Previewed | null, accepted: Accepted): string {
  if (previewed === null) {
    return 'Preview it first.';
  }
  if (text !== previewed.text) {
    return 'The text was changed after the preview: preview it again.';
  }
  if ('fault' in previewed) {
    return 'It cannot be read; see below.';
  }
  const { stale, acceptable, refusals, removals, stops } = previewed.found;
  if (stale) {
    return 'Another revision is in force by now: reload the page and edit that one.';
  }
  if (!acceptable) {
    return 'Its quotas contradict each other; see below.';
  }
  if (refusals.length > 0 && !accepted.overcommit) {
    return 'It does not fit: lower a quota, or accept that.';
  }
  if ((removals ?? []).length > 0 && !accepted.removal) {
    return 'It removes projects or pools that have work: restore them, or accept that.';
  }
  return (stops ?? []).length === 0 || accepted.stops ? '' : 'It stops running work: require a weaker enforcement, or accept that.';
}

/** The parts of a preview with their headings, without empty ones. */
export function partsOf(previewed: Previewed): [string, readonly string[]][] {
  if ('fault' in previewed) {
    return [['This cannot be read', previewed.fault.split('\n')]];
  }
  const { found } = previewed;
  const affected = found.affected.map(one => one.message);
  const parts: [string, readonly string[]][] = [
    ['Changes', found.unchanged ? ['The file is the same as the one in force.'] : (found.changes ?? [])],
    ['Based on another revision', found.stale ? [found.stale] : []],
    ['Does not fit', found.refusals],
    ['Removes projects or pools with work', found.removals ?? []],
    ['Stops running work', found.stops ?? []],
    ['Warnings (the edit can be applied)', found.warnings ?? []],
    ['Arithmetic', found.arithmetic],
    ['Changes in the calendar', found.calendar ?? []],
    ['Affected work', affected.length > 0 ? affected : ['none']],
  ];
  return parts.filter(([, lines]) => lines.length > 0);
}
