import { expect, test } from 'vitest';

import { graceText } from '../src/job/Grace';

const TRANS = { __: (text: string, ...args: unknown[]) => text.replace('%1', String(args[0])), _n: (one: string) => one };

test.each([
  [25_000, 'grace period: 25 s left'],
  [0, 'grace period over'],
  [-5_000, 'grace period over'],
])('a job whose grace ends in %d ms: %s', (ms, expected) => {
  expect(graceText('2026-01-01T12:00:00Z', Date.parse('2026-01-01T12:00:00Z') - ms, TRANS)).toBe(expected);
});
