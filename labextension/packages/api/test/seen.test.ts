import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import { whenSeen } from '../src/seen';

class Page extends EventTarget {
  hidden = false;

  hide(hidden: boolean): void {
    this.hidden = hidden;
    this.dispatchEvent(new Event('visibilitychange'));
  }
}

let page: Page;
beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal('document', (page = new Page()));
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test('work that is due in a hidden page is done once, when the page is seen', () => {
  let done = 0;
  whenSeen(() => (done += 1), 1_000);
  page.hide(true);
  vi.advanceTimersByTime(60_000);
  expect(done).toBe(0);
  page.hide(false);
  page.hide(true);
  page.hide(false);
  expect(done).toBe(1);
});

test('work in a page that is seen is done after its time, and not before', () => {
  let done = 0;
  whenSeen(() => (done += 1), 1_000);
  page.hide(true);
  page.hide(false);
  expect(done).toBe(0);
  vi.advanceTimersByTime(1_000);
  expect(done).toBe(1);
});

test('work that is stopped is not done, before or after its time', () => {
  let done = 0;
  const stops = [whenSeen(() => (done += 1), 1_000), whenSeen(() => (done += 1), 3_000)];
  page.hide(true);
  vi.advanceTimersByTime(2_000);
  stops.forEach(stop => stop());
  page.hide(false);
  vi.advanceTimersByTime(60_000);
  expect(done).toBe(0);
});
