import { expect, test } from 'vitest';

import type { Changed, Job, Me } from '../src/service';
import { applyChange, MY_JOBS, filterJobs, INITIAL_STATE, notificationsOf, type State } from '../src/state';

function job(id: string, changes: Partial<Job> = {}): Job {
  const some = { id, name: `job ${id}`, user: 'ann', project: 'p', state: 'queued', attempt: 0, priority: 50 };
  return { ...some, command: ['python', 'train.py'], submitted_at: `2026-01-01T00:00:0${id}Z`, ...changes } as unknown as Job;
}

function world(...jobs: Job[]): State {
  const me = { name: 'ann' } as Me;
  return { ...INITIAL_STATE, me, jobs: new Map(jobs.map(one => [one.id, one])), jobsTotal: jobs.length };
}

function change(...jobs: Job[]): Changed {
  return { version: 1, jobs, notebooks: [], devices: [] };
}

test('a change replaces a job and adds a new one', () => {
  const state = applyChange(world(job('1')), change(job('1', { state: 'running' }), job('2')), 0);
  expect([...state.jobs.values()].map(one => one.state)).toEqual(['running', 'queued']);
  expect(state.jobsTotal).toBe(2);
});

test('a change without jobs keeps the same map, so that nothing is drawn again', () => {
  const before = world(job('1'));
  expect(applyChange(before, change(), 0).jobs).toBe(before.jobs);
});

test('a change makes a state live again, but not before the user is known', () => {
  const away = { ...world(), connection: 'unavailable', message: 'It cannot be reached.' } as const;
  expect(applyChange(away, change(), 0)).toMatchObject({ connection: 'live', message: '' });
  expect(applyChange({ ...away, me: null }, change(), 0)).toMatchObject({ connection: 'unavailable', message: away.message });
});

test.each([
  ['queued', 'running', 1, 'started'],
  ['paused', 'running', 2, 'resumed'],
  ['pausing', 'paused', 1, 'paused'],
  ['running', 'failed', 1, 'failed'],
  ['queued', 'running', 2, 'retried'],
  ['running', 'running', 1, undefined],
  ['queued', 'held', 0, undefined],
])('a job that was %s and is %s', (was, is, attempt, kind) => {
  const before = world(job('1', { state: was, attempt: is === 'running' && was !== 'running' ? attempt - 1 : attempt }));
  const after = job('1', { state: is, attempt, pauses: was === 'paused' ? 1 : 0 });
  expect(notificationsOf(before, change(after), 'ann').at(0)?.kind).toBe(kind);
});

test("nobody is notified of others' jobs, and of no job that was not there before", () => {
  const before = world(job('1', { user: 'bob' }));
  expect(notificationsOf(before, change(job('1', { user: 'bob', state: 'failed' }), job('2', { state: 'failed' })), 'ann')).toEqual([]);
});

test('the list shows mine first, newest first, and what a search finds in name, id and command', () => {
  const state = world(job('1'), job('2', { user: 'bob', name: 'other' }), job('3', { state: 'succeeded' }));
  const ids = (filter = {}): string[] => filterJobs(state, { ...MY_JOBS, ...filter }).map(one => one.id);
  expect(ids()).toEqual(['3', '1']);
  expect(ids({ mine: false })).toEqual(['3', '2', '1']);
  expect(ids({ mine: false, text: 'OTHER' })).toEqual(['2']);
  expect(ids({ state: 'ended' })).toEqual(['3']);
  expect(ids({ mine: false, project: 'q' })).toEqual([]);
  expect(ids({ mine: false, order: 'name' })).toEqual(['1', '3', '2']);
});
