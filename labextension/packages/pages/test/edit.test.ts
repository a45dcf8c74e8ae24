import { expect, test } from 'vitest';

import type { Preview, Revision } from '@jupyter-gpu-quota/api';

import { keptEdit, otherRevision, whyNot, type Previewed } from '../src/quota/edit';

const NOTHING = { overcommit: false, removal: false, stops: false };
const FITS = { acceptable: true, refusals: [], stale: null } as unknown as Preview;
const STALE = { ...FITS, stale: 'The quota edit was made on revision 1, but revision 2 is in force.' };
const found = (preview: Preview): Previewed => ({ text: 'mine', found: preview });
const revision = (number: number): Revision => ({ revision: number }) as Revision;

test('an edit of an older revision cannot be applied, also if a preview was fine, and the way out does not lose it', () => {
  expect(whyNot('mine', found(FITS), NOTHING, false)).toBe('');
  expect(whyNot('mine', found(FITS), NOTHING, true)).toMatch(/load it .* Your text is kept\.$/);
  expect(whyNot('mine', found(STALE), NOTHING, false)).toBe(whyNot('mine', null, NOTHING, true));
});

test.each([
  ['a newer one', 2, null, 2],
  ['the one of the edit', 1, found(FITS), null],
  ['one that was read before the edit was applied', 0, null, null],
  ['an older one, of a restored database', 0, found(STALE), 0],
])('the revision that can be loaded, if the one in force is %s', (_, current, previewed, expected) => {
  expect(otherRevision(revision(current), 1, previewed)?.revision ?? null).toBe(expected);
});

test.each([
  ['a\nb\nc\nd', 'a\nB\nc\nd', [2, 2]],
  ['a\nb\nc\nd', 'A\nb\nC\nd', [1, 3]],
  ['a\nb', 'a\nb\nc\nd', [3, 4]],
  ['a\nb\nc', 'a\nc', [2, 2]],
  ['a\na', 'a\na\na', [3, 3]],
])('a kept edit of %j to %j says which lines were changed', (before, after, lines) => {
  expect(keptEdit({ text: before, revision: 1 }, after)).toEqual({ revision: 1, text: after, lines });
});
