import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import { followNotes } from '../src/submit/notes';

const MINUTE = 60_000;

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

test('notes are asked for while there are some and the form is shown', async () => {
  let [isShown, isThere, asked] = [true, false, 0];
  const seen: (readonly string[])[] = [];
  const ask = (): Promise<readonly string[]> => {
    asked += 1;
    return Promise.resolve(isThere ? [] : ['later.py is not in the folder.']);
  };
  followNotes(ask, () => isShown, notes => seen.push(notes), new AbortController().signal);
  await vi.advanceTimersByTimeAsync(MINUTE);
  expect(asked).toBeGreaterThan(5);
  [isShown, asked] = [false, 0];
  await vi.advanceTimersByTimeAsync(MINUTE);
  expect(asked).toBe(0);
  [isShown, isThere] = [true, true];
  await vi.advanceTimersByTimeAsync(MINUTE);
  expect(asked).toBe(1);
  expect(seen.at(-1)).toEqual([]);
  expect(vi.getTimerCount()).toBe(0);
});

test('nothing is asked or reported after the end', async () => {
  const stop = new AbortController();
  const seen: unknown[] = [];
  followNotes(() => Promise.resolve(['a']), () => true, notes => seen.push(notes), stop.signal);
  stop.abort();
  await vi.advanceTimersByTimeAsync(MINUTE);
  expect([seen, vi.getTimerCount()]).toEqual([[], 0]);
});
