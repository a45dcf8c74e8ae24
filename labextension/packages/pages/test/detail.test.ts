import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import { ServiceError, type Changed, type Job, type Model } from '@jupyter-gpu-quota/api';

import { FollowedJob } from '../src/job/detail';

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal('document', Object.assign(new EventTarget(), { hidden: false }));
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

interface Asked {
  resolve(state: string): void;
  reject(error: Error): void;
}

/** A followed job, the reads of it that have no answer yet, and its stream. */
function served(): { followed: FollowedJob; asked: Asked[]; change(state: string): void; end(): void } {
  const asked: Asked[] = [];
  let listener: (change: Changed) => void = () => undefined;
  const job = (id: string): Promise<Job> =>
    new Promise((resolve, reject) => asked.push({ resolve: state => resolve({ id, state } as Job), reject }));
  const subscribeToChanges = (one: typeof listener): (() => void) => ((listener = one), () => undefined);
  const service = { job, explain: () => Promise.resolve({}) };
  const followed = new FollowedJob({ transport: { service }, subscribeToChanges } as unknown as Model, 'a');
  const end = followed.subscribe(() => undefined);
  return { followed, asked, change: state => listener({ jobs: [{ id: 'a', state }] } as Changed), end };
}

test('a job whose first read failed says why, and is read again', async () => {
  const { followed, asked, end } = served();
  asked.shift()!.reject(new ServiceError(0, 'timeout', 'No answer.'));
  await vi.advanceTimersByTimeAsync(0);
  expect(followed.snapshot().error).toBe('No answer.');
  await vi.advanceTimersByTimeAsync(10_000);
  asked.shift()!.resolve('running');
  await vi.advanceTimersByTimeAsync(0);
  expect(followed.snapshot()).toMatchObject({ job: { state: 'running' }, error: '' });
  end();
  expect(vi.getTimerCount()).toBe(0);
});

test('an answer that is older than the one that is shown is dropped', async () => {
  const { followed, asked, change, end } = served();
  change('running');
  await vi.advanceTimersByTimeAsync(1_000);
  asked[1]!.resolve('running');
  await vi.advanceTimersByTimeAsync(0);
  asked[0]!.resolve('queued');
  await vi.advanceTimersByTimeAsync(0);
  expect(followed.snapshot().job?.state).toBe('running');
  end();
});

test('a job that may not be seen any more is not read again', async () => {
  const { followed, asked, change } = served();
  asked.shift()!.reject(new ServiceError(404, 'not_found', 'No such job.'));
  await vi.advanceTimersByTimeAsync(0);
  change('running');
  await vi.advanceTimersByTimeAsync(60_000);
  expect([followed.snapshot().refusal !== '', asked.length, vi.getTimerCount()]).toEqual([true, 0, 0]);
});
