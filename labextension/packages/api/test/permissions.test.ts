import { expect, test } from 'vitest';

import { changeableOf, changesOf, mayChange } from '../src/permissions';
import type { Job, Me } from '../src/service';

const JOB = { user: 'bob', project: 'vision', state: 'running', target: 'running' } as Job;
const person = (name: string, role?: string, admin = false): Me =>
  ({ name, admin, projects: role ? { vision: role } : {} }) as unknown as Me;

test.each([
  ['its owner', person('bob', 'member'), true],
  ['its owner, who left the project', person('bob'), true],
  ['a lead', person('lea', 'lead'), true],
  ['an admin', person('ann', undefined, true), true],
  ['another member', person('olga', 'member'), false],
  ['nobody, while it is read', null, false],
])('a job may be changed by %s', (_, me, may) => {
  expect(mayChange(me, JOB)).toBe(may);
});

test.each([
  ['running', 'running', ['hold', 'cancel']],
  ['held', 'held', ['release', 'cancel']],
  ['running', 'held', ['release', 'cancel']],
  ['running', 'cancelled', []],
  ['failed', 'running', []],
])('the changes of a job that is %s with the target %s', (state, target, expected) => {
  expect(changesOf({ ...JOB, state, target })).toEqual(expected);
});

test.each([
  ['hold', ['running']],
  ['release', ['held', 'holding']],
  ['cancel', ['running', 'held', 'holding']],
] as const)('of a selection, %s goes only to jobs that are the user\'s and in a state for it', (change, expected) => {
  const jobs = [
    { ...JOB, id: 'running' },
    { ...JOB, id: 'held', state: 'held', target: 'held' },
    { ...JOB, id: 'holding', target: 'held' },
    { ...JOB, id: 'ended', state: 'succeeded' },
    { ...JOB, id: 'of another user', user: 'olga' },
  ];
  expect(changeableOf(person('bob', 'member'), jobs, change).map(job => job.id)).toEqual(expected);
});
