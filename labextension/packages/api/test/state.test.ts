import { expect, test } from 'vitest';

import type { Changed, Idle, Job, Me, Notebook } from '../src/service';
import { applyChange, countdownOf, MY_JOBS, filterJobs, INITIAL_STATE, limited, notificationsOf, withReading, type State } from '../src/state';

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

test('of too many jobs the ended ones of others leave first, then my ended ones, the oldest first', () => {
  const jobs = [job('1', { state: 'failed' }), job('2', { state: 'failed' }), job('3', { user: 'bob', state: 'failed' }), job('4', { user: 'bob' }), job('5')];
  const left = (most: number): string[] => [...limited(new Map(jobs.map(one => [one.id, one])), most, { name: 'ann' } as Me).keys()];
  expect([5, 4, 3, 1].map(left)).toEqual([['1', '2', '3', '4', '5'], ['1', '2', '4', '5'], ['2', '4', '5'], ['4', '5']]);
});

const WARNED = { state: 'warned', message: 'In 4 minutes it is freed.', free_in_ms: 240_000 } as Idle;
const SLICE = { id: 'n', state: 'booked', warning: null, enforcement: null, idle: null, utilised_milli: 0 } as unknown as Notebook;

test('a later reading of the notebook has its warning, enforcement and countdown, but not its state', () => {
  const before = { ...world(), notebookId: 'n', notebook: SLICE };
  const enforcement = { memory: 'driver' };
  const read = { ...SLICE, state: 'returned', warning: 'It is stopped.', enforcement, idle: WARNED, utilised_milli: 9 } as unknown as Notebook;
  const after = withReading(before, before, read, 1_000);
  expect(after.notebook).toEqual({ ...read, state: 'booked' });
  expect(after.countdown).toEqual({ idle: WARNED, freeAt: 241_000 });
  expect(withReading(after, after, SLICE, 2_000).notebook?.warning).toBeNull();
});

test('a notebook that could not be read at first is there after the next reading', () => {
  const before = { ...world(), notebookId: SLICE.id, notebook: null };
  const read = { ...SLICE, idle: WARNED };
  expect(withReading(before, before, read, 1_000)).toEqual({ ...before, notebook: read, countdown: countdownOf(WARNED, 1_000) });
  const other = { ...before, notebookId: 'another' };
  expect(withReading(other, other, read, 1_000)).toBe(other);
});

test('a reading of the notebook is older than what arrived since it began', () => {
  const before = { ...world(), notebookId: 'n', notebook: SLICE, countdown: countdownOf(WARNED, 0) };
  const read = { ...SLICE, idle: WARNED };
  const changed = applyChange(before, { ...change(), notebooks: [{ ...SLICE, state: 'lent' }] }, 0);
  const kept = { ...before, countdown: countdownOf({ ...WARNED, state: 'in_use', free_in_ms: null }, 0) };
  for (const state of [changed, kept]) {
    expect(withReading(state, before, read, 1_000)).toBe(state);
  }
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
