import { expect, test } from 'vitest';

import type { AuditRow } from '@jupyter-gpu-quota/api';

import { merged } from '../src/audit/useRows';

const PART = 200;

/** The rows from number `newest` down to `oldest`. */
function rows(newest: number, oldest: number): AuditRow[] {
  return Array.from({ length: newest - oldest + 1 }, (_, at) => ({ seq: newest - at }) as AuditRow);
}

test.each([
  ['a few rows grow to a part', rows(50, 1), rows(60, 1), true, rows(60, 1)],
  ['a part stays as long as it is', rows(1000, 801), rows(1007, 808), true, rows(1007, 808)],
  ['two parts stay as long as they are', rows(1000, 601), rows(1007, 808), true, rows(1007, 608)],
  ['the end is read again after a part that new rows have moved', rows(1007, 808), rows(812, 613), false, rows(1007, 613)],
  ['more new rows than a part begin the list again', rows(1000, 601), rows(1300, 1101), true, rows(1300, 1101)],
])('%s', (_, before, read, isStart, expected) => {
  expect(merged(before, read, isStart).map(row => row.seq)).toEqual(expected.map(row => row.seq));
});

test('a day of changes leaves a part', () => {
  let shown: readonly AuditRow[] = rows(PART, 1);
  for (let newest = PART; newest < 20_000; newest += 20) {
    shown = merged(shown, rows(newest, newest - PART + 1), true);
  }
  expect(shown.length).toBe(PART);
});
