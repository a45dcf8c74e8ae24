import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import type { DryRun, Project } from '@jupyter-gpu-quota/api';

import { amountsOf, followPreview, type Outcome } from '../src/submit/preview';

const MINUTE = 60_000;

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

/** A form whose previews take this long, in a pool whose amounts change every second. */
function form(tookMs: number): { shown: boolean; busy: boolean; asked: number; answer: Outcome; end(): void } {
  const answer: Outcome = { of: 'dry run', found: {} as DryRun };
  const world = { shown: true, busy: true, asked: 0, answer: answer as Outcome, end: () => stop.abort() };
  const stop = new AbortController();
  const ask = (): Promise<Outcome> => ((world.asked += 1), new Promise(resolve => setTimeout(() => resolve(world.answer), tookMs)));
  followPreview(ask, () => (world.busy ? String(Math.floor(Date.now() / 1_000)) : 'the same'), () => world.shown, () => undefined, stop.signal);
  return world;
}

test('a preview is asked for again when the amounts have changed, and only then', async () => {
  const world = form(0);
  await vi.advanceTimersByTimeAsync(MINUTE);
  expect(world.asked).toBeGreaterThan(3);
  expect(world.asked).toBeLessThan(8);
  world.busy = false;
  await vi.advanceTimersByTimeAsync(MINUTE);
  world.asked = 0;
  await vi.advanceTimersByTimeAsync(MINUTE);
  expect(world.asked).toBe(0);
  world.end();
});

test('200 forms keep at most one CPU busy, however long a preview takes', async () => {
  const world = form(500);
  await vi.advanceTimersByTimeAsync(20 * MINUTE);
  expect(world.asked * 500 * 200).toBeLessThanOrEqual(20 * MINUTE + 500 * 200);
  expect(world.asked).toBeGreaterThan(5);
  world.end();
});

test('nothing is asked while the form is not shown, and after the end', async () => {
  const world = form(0);
  world.shown = false;
  await vi.advanceTimersByTimeAsync(MINUTE);
  expect(world.asked).toBe(0);
  world.shown = true;
  await vi.advanceTimersByTimeAsync(2_000);
  expect(world.asked).toBe(1);
  world.end();
  await vi.advanceTimersByTimeAsync(MINUTE);
  expect([world.asked, vi.getTimerCount()]).toEqual([1, 0]);
});

test('a preview that had no answer is asked for again', async () => {
  const world = form(0);
  world.busy = false;
  world.answer = { of: 'no answer', message: 'Too many requests.' };
  await vi.advanceTimersByTimeAsync(MINUTE);
  expect(world.asked).toBeGreaterThan(3);
  world.end();
});

test('the use of devices is no reason for another preview', () => {
  const using = (utilised: number, queued: number): string =>
    amountsOf([{ name: 'a', submit: null, pools: [{ pool: 'p', utilised_milli: utilised, queued_jobs: queued }] } as unknown as Project]);
  expect([using(1, 0) === using(2, 0), using(1, 0) === using(1, 1)]).toEqual([true, false]);
});
