import { afterEach, expect, test, vi } from 'vitest';

import { Model } from '../src/model';
import { ServiceError } from '../src/service';
import type { Transport } from '../src/transport';

afterEach(() => void vi.unstubAllGlobals());

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

/** A model in a page of this browser, which has read the service once. Its job is `running`, until the service changes that. */
async function readOnce(page: Page, since?: string): Promise<{ model: Model; server: { state: string }; opened: unknown[]; reads: () => number }> {
  vi.stubGlobal('navigator', {});
  vi.stubGlobal('document', page);
  const server = { state: 'running' };
  const opened: unknown[] = [];
  const first = 'id: 9\nevent: changed\ndata: {"version":9,"jobs":[],"notebooks":[],"devices":[]}\n\n';
  const start = (sender: ReadableStreamDefaultController<Uint8Array>): void => sender.enqueue(new TextEncoder().encode(first));
  const jobs = vi.fn(() => Promise.resolve({ jobs: [{ id: 'a', ...server }], total: 1 }));
  const nothing = (): Promise<null> => Promise.resolve(null);
  const model = new Model({
    service: { base: `http://${Math.random()}`, me: () => Promise.resolve({ name: 'bob' }), projects: () => Promise.resolve([]), jobs, version: nothing },
    since,
    status: () => Promise.resolve({ configured: true, notebook: null, version: '', project: null }),
    idle: () => Promise.resolve({ idle: null, waiting: [], shut_down: [] }),
    openEvents: (id: string | undefined) => (opened.push(id), Promise.resolve(new Response(new ReadableStream({ start })))),
  } as unknown as Transport);
  await model.start();
  return { model, server, opened, reads: () => jobs.mock.calls.length };
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
