/** An edit of the quota file: whether it may be applied, after which preview. */

import type { Preview, Revision } from '@jupyter-gpu-quota/api';

export interface Accepted {
  readonly overcommit: boolean;
  readonly removal: boolean;
  readonly stops: boolean;
}

/** An edit of an earlier revision, which is kept when a newer one is loaded. */
export interface KeptEdit {
  readonly revision: number;
  readonly text: string;
  /** The first and the last changed line, from 1. */
  readonly lines: readonly [number, number];
}

export type Previewed = { readonly text: string; readonly found: Preview } | { readonly text: string; readonly fault: string };

const STALE = 'Another revision is in force by now: load it and make the edit there. Your text is kept.';

/** Why the edit cannot be applied now; empty if it can. `isOld`: a revision after that of the edit is known. */
export function whyNot(text: string, previewed: Previewed | null, accepted: Accepted, isOld: boolean): string {
  if (isOld) {
    return STALE;
  }
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
    return STALE;
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

/** The revision in force, if that is not the one of the edit. One that is older is what was read before this edit was applied,
 * unless a preview found that the edit is based on another revision. */
export function otherRevision(current: Revision | null, base: number, previewed: Previewed | null): Revision | null {
  const isStale = previewed !== null && 'found' in previewed && Boolean(previewed.found.stale);
  return current && (current.revision > base || (isStale && current.revision < base)) ? current : null;
}

/** An edit of the text of a revision, to be kept. */
export function keptEdit(base: { readonly text: string; readonly revision: number }, text: string): KeptEdit {
  const [before, after] = [base.text.split('\n'), text.split('\n')];
  const shorter = Math.min(before.length, after.length);
  let start = 0;
  while (start < shorter && before[start] === after[start]) {
    start += 1;
  }
  let end = 0;
  while (end < shorter - start && before[before.length - 1 - end] === after[after.length - 1 - end]) {
    end += 1;
  }
  return { revision: base.revision, text, lines: [start + 1, Math.max(start + 1, after.length - end)] };
}
