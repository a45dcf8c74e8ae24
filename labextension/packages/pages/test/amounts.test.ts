/** What a row of a job says about its state. */

import { expect, test } from 'vitest';

import type { Job } from '@jupyter-gpu-quota/api';

import { reasonText } from '../src/amounts';

const running = (code: string, borrower: boolean): string =>
  reasonText({ state: 'running', borrower, reason: { code, message: 'the whole sentence' } } as Job);

test('a running job that borrows says from what', () => {
  expect(running('within_quota', false)).toBe('');
  expect(running('borrows_notebook_quota', true)).toBe('Runs on notebook quota that no notebook uses now.');
  expect(running('borrows_reserved_devices', true)).toBe('Runs on devices that are reserved for another job.');
});
