/** What a row of a job says about its state. */

import { expect, test } from 'vitest';

import type { Job } from '@jupyter-gpu-quota/api';

import { reasonText, relativeTime } from '../src/amounts';

const running = (code: string, borrower: boolean): string =>
  reasonText({ state: 'running', borrower, reason: { code, message: 'the whole sentence' } } as Job);

test('a running job that borrows says from what', () => {
  expect(running('within_quota', false)).toBe('');
  expect(running('borrows_notebook_quota', true)).toBe('Runs on notebook quota that no notebook uses now.');
  expect(running('borrows_reserved_devices', true)).toBe('Runs on devices that are reserved for another job.');
});

test.each([
  ['35 hours before a morning', new Date(2024, 0, 1, 21), new Date(2024, 0, 3, 8), '2 days ago'],
  ['35 hours before an evening', new Date(2024, 0, 1, 9), new Date(2024, 0, 2, 20), 'yesterday'],
  ['a date without an hour of the clock', new Date(2024, 2, 30, 12), new Date(2024, 3, 1, 13), '2 days ago'],
  ['a day from now', new Date(2024, 0, 3, 8), new Date(2024, 0, 2, 7), 'tomorrow'],
  ['some hours before, on another date', new Date(2024, 0, 1, 21), new Date(2024, 0, 2, 2), '5 hours ago'],
  ['now', new Date(2024, 0, 1), new Date(2024, 0, 1), 'now'],
])('%s', (_, then, now, expected) => {
  expect(relativeTime(then, now)).toBe(expected);
});
