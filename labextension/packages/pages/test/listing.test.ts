import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import type { Changed, Job, JobsQuery, Model, Page } from '@jupyter-gpu-quota/api';

import { JobListing } from '../src/jobs/listing';

const PART = 200;
const ALL = Array.from({ length: 3 * PART }, (_, at) => ({ id: `${at}`, user: at % 2 === 0 ? 'ann' : 'bob' }) as Job);

/** A service with these jobs, whose listings are answered by `answer`, and its stream. */
function served(): { listing: JobListing; answer(): Promise<void>; fail(): Promise<void>; miss(): void; asked(): number } {
  const asked: { query: JobsQuery; resolve(page: Page<Job>): void; reject(error: Error): void }[] = [];
  const listeners = new Set<(change: Changed | null) => void>();
  const jobsPage = (query: JobsQuery): Promise<Page<Job>> =>
    new Promise((resolve, reject) => asked.push({ query, resolve, reject }));
  const subscribeToChanges = (listener: (change: Changed | null) => void): (() => void) => {
    listeners.add(listener);
    return () => listeners.delete(listener);
  };
  const listing = new JobListing({ transport: { service: { jobsPage } }, subscribeToChanges } as unknown as Model);
  listing.subscribe(() => undefined);
  const settled = (): Promise<void> => Promise.resolve().then(() => Promise.resolve()).then(() => undefined);
  return {
    listing,
    answer: () => {
      const { query, resolve } = asked.shift()!;
      const found = ALL.filter(job => !query.user || job.user === query.user);
      const offset = Number(query.offset);
      resolve({ items: found.slice(offset, offset + Number(query.limit)), total: found.length });
      return settled();
    },
    fail: () => (asked.shift()!.reject(new Error('away')), settled()),
    asked: () => asked.length,
    miss: () => listeners.forEach(listener => listener(null)),
  };
}

const usersOf = ({ listing }: { listing: JobListing }): string[] => [...new Set(listing.snapshot().jobs.map(job => job.user))];

const page = Object.assign(new EventTarget(), { hidden: false });

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal('document', page);
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

/** A listing of all jobs, of which two parts are read. */
async function twoParts(): Promise<ReturnType<typeof served>> {
  const world = served();
  world.listing.show(() => ({}));
  await world.answer();
  world.listing.more();
  await world.answer();
  expect(world.listing.snapshot().jobs.map(job => job.id)).toEqual(ALL.slice(0, 2 * PART).map(job => job.id));
  return world;
}

test('another query leaves no job of the query before, also where both have more than a part', async () => {
  const world = await twoParts();
  world.listing.show(() => ({ user: 'bob' }));
  await world.answer();
  expect(usersOf(world)).toEqual(['bob']);
  expect(world.listing.snapshot().jobs.length).toBe(PART);
});

test('the first answer to another query may be that of a reread', async () => {
  const world = await twoParts();
  world.listing.show(() => ({ user: 'bob' }));
  world.listing.reread();
  await world.answer();
  expect(usersOf(world)).toEqual(['ann', 'bob']);
  await world.answer();
  expect(usersOf(world)).toEqual(['bob']);
});

test('the end of the list reads the beginning of a query that has no answer yet', async () => {
  const world = await twoParts();
  world.listing.show(() => ({ user: 'bob' }));
  await world.fail();
  world.listing.more();
  await world.answer();
  expect(world.listing.snapshot().jobs.map(job => job.id)).toEqual(
    ALL.filter(job => job.user === 'bob').slice(0, PART).map(job => job.id),
  );
});

test('a reread of the same query keeps every part', async () => {
  const world = await twoParts();
  world.miss();
  vi.runOnlyPendingTimers();
  await world.answer();
  expect(world.listing.snapshot().jobs.length).toBe(2 * PART);
});

test('a hidden page reads nothing again before it is seen', async () => {
  const world = await twoParts();
  page.hidden = true;
  world.miss();
  vi.runOnlyPendingTimers();
  expect(world.asked()).toBe(0);
  page.hidden = false;
  page.dispatchEvent(new Event('visibilitychange'));
  expect(world.asked()).toBe(1);
});
