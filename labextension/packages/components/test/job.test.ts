import { expect, test } from 'vitest';

import type { Job } from '@jupyter-gpu-quota/api';

import { stopOf } from '../src/job/JobPanel';

const TRANS = { __: (text: string) => text, _n: (text: string) => text };

test.each([
  ['running', 'held', 'Held by'],
  ['held', 'held', 'Held by'],
  ['running', 'cancelled', 'Cancelled by'],
  ['cancelled', 'cancelled', 'Cancelled by'],
])('a job that is %s and becomes %s: %s', (state, target, expected) => {
  expect(stopOf({ state, target, stopped_by: 'bob' } as Job, TRANS)).toEqual([expected, 'bob']);
});
