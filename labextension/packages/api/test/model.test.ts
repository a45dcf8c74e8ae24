import { afterEach, expect, test, vi } from 'vitest';

import { Model } from '../src/model';
import { ServiceError } from '../src/service';
import type { Transport } from '../src/transport';

afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

test('after a refused change the job has the state that another browser gave it', async () => {
  const refusal = new ServiceError(409, 'ended', 'It has ended.');
  const service = { change: () => Promise.reject(refusal), job: () => Promise.resolve({ id: 'a', state: 'cancelled' }) };
  const model = new Model({ service } as unknown as Transport);
  await expect(model.change('a', 'hold')).rejects.toBe(refusal);
  expect(model.state.jobs.get('a')?.state).toBe('cancelled');
});

test('a job whose repetition has no answer is queued once, and again after an answer', async () => {
  const keys: string[] = [];
  const answers = [new ServiceError(0, 'timeout', 'No answer.'), { id: 'b' }, new ServiceError(422, 'over_limit', 'Too large.'), { id: 'c' }];
  const repeat = (_: string, __: string, key: string): Promise<unknown> => {
    keys.push(key);
    const answer = answers.shift();
    return answer instanceof Error ? Promise.reject(answer) : Promise.resolve(answer);
  };
  const model = new Model({ service: { repeat } } as unknown as Transport);
  await expect(model.repeat('a', 'clone')).rejects.toThrow('No answer.');
  await model.repeat('a', 'clone');
  await expect(model.repeat('a', 'clone')).rejects.toThrow('Too large.');
  await model.repeat('a', 'clone');
  expect(keys[1]).toBe(keys[0]);
  expect(new Set(keys).size).toBe(3);
});

test('a submitted job has the notes of its answer, and one without notes has none', async () => {
  const answers = [{ id: 'a', notes: ['data is a link.'] }, { id: 'b' }];
  const model = new Model({ submit: () => Promise.resolve(answers.shift()) } as unknown as Transport);
  const request = { command: ['true'] } as never;
  const jobs = [await model.submit(request, '.', new AbortController().signal), await model.submit(request, '.', new AbortController().signal)];
  expect(jobs).toEqual([{ id: 'a' }, { id: 'b' }]);
  expect([...model.notes]).toEqual([['a', ['data is a link.']]]);
});

class Page extends EventTarget {
  hidden = true;

  show(): void {
    this.hidden = false;
    this.dispatchEvent(new Event('visibilitychange'));
  }
}

interface Read {
  readonly model: Model;
  readonly server: { state: string };
  readonly opened: unknown[];
  reads(): number;
}

/** A model in a page of this browser. Its job is `running`, until the service changes that. */
function unread(page: Page, since?: string, more: Record<string, () => Promise<unknown>> = {}): Read {
  vi.stubGlobal('navigator', {});
  vi.stubGlobal('document', page);
  const server = { state: 'running' };
  const opened: unknown[] = [];
  const first = 'id: 9\nevent: changed\ndata: {"version":9,"jobs":[],"notebooks":[],"devices":[]}\n\n';
  const start = (sender: ReadableStreamDefaultController<Uint8Array>): void => sender.enqueue(new TextEncoder().encode(first));
  const jobs = vi.fn(() => Promise.resolve({ jobs: [{ id: 'a', ...server }], total: 1 }));
  const nothing = (): Promise<null> => Promise.resolve(null);
  const me = (): Promise<unknown> => Promise.resolve({ name: 'bob' });
  const model = new Model({
    service: { base: `http://${Math.random()}`, me, projects: () => Promise.resolve([]), jobs, version: nothing, ...more },
    since,
    status: () => Promise.resolve({ configured: true, notebook: null, version: '', project: null }),
    idle: () => Promise.resolve({ idle: null, waiting: [], shut_down: [] }),
    openEvents: (id: string | undefined) => (opened.push(id), Promise.resolve(new Response(new ReadableStream({ start })))),
  } as unknown as Transport);
  return { model, server, opened, reads: () => jobs.mock.calls.length };
}

async function readOnce(page: Page, since?: string): Promise<Read> {
  const read = unread(page, since);
  await read.model.start();
  return read;
}

test('a page that was read while it was hidden shows what changed before it was seen', async () => {
  const page = new Page();
  const { model, server, opened } = await readOnce(page);
  expect(opened).toEqual([]);
  server.state = 'succeeded';
  page.show();
  await vi.waitFor(() => expect(model.state.jobs.get('a')?.state).toBe('succeeded'));
  expect(opened).toEqual([undefined]);
  model.dispose();
});

test('a stream that begins at a known event needs no second read', async () => {
  const page = new Page();
  const { model, opened, reads } = await readOnce(page, '7');
  const seen = vi.fn();
  model.subscribeToChanges(seen);
  page.show();
  await vi.waitFor(() => expect(seen).toHaveBeenCalled());
  expect([opened, reads()]).toEqual([['7'], 1]);
  model.dispose();
});

test('what changes after the answer of a listing and before the stream begins is shown', async () => {
  const page = new Page();
  page.hidden = false;
  let answer = (): void => undefined;
  const version = (): Promise<null> => new Promise(resolve => (answer = () => resolve(null)));
  const { model, server, reads } = unread(page, undefined, { version });
  const seen = vi.fn();
  model.subscribeToChanges(seen);
  void model.start();
  await vi.waitFor(() => expect(seen).toHaveBeenCalledTimes(2)); // It has begun, and an event that changes no job has come.
  server.state = 'succeeded';
  answer();
  await vi.waitFor(() => expect(reads()).toBe(2));
  answer();
  await vi.waitFor(() => expect(model.state.jobs.get('a')?.state).toBe('succeeded'));
  model.dispose();
});

test('a page shows the countdown of the service, after an event of the Jupyter server its own, and again that of a later reading', async () => {
  vi.useFakeTimers();
  const page = new Page();
  vi.stubGlobal('document', page);
  const idle = (state: string): object => ({ state, free_in_ms: state === 'warned' ? 60_000 : null });
  const nothing = (): Promise<null> => Promise.resolve(null);
  const listed = (): Promise<object> => Promise.resolve({ jobs: [], total: 0 });
  const notebook = (): Promise<object> => Promise.resolve({ id: 'n', idle: idle('in_use') });
  const model = new Model({
    service: { base: `http://${Math.random()}`, me: nothing, projects: () => Promise.resolve([]), jobs: listed, version: nothing, notebook },
    status: () => Promise.resolve({ configured: true, notebook: 'n', version: '', project: null }),
    idle: () => Promise.resolve({ idle: idle('warned'), waiting: [], shut_down: [] }),
  } as unknown as Transport);
  void model.start();
  await vi.advanceTimersByTimeAsync(1);
  expect(model.state.countdown).toEqual({ idle: idle('in_use'), freeAt: null });
  await model.readIdle();
  expect(model.state.countdown).toEqual({ idle: idle('warned'), freeAt: expect.any(Number) });
  page.hidden = false;
  await vi.advanceTimersByTimeAsync(20_000);
  expect(model.state.countdown).toEqual({ idle: idle('in_use'), freeAt: null });
  model.dispose();
});
