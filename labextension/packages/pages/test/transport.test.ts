import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import type { Frame } from '../src/frame';
import { pageTransport } from '../src/transport';

const FRAME = { api: '/api/', xsrf: 'x', user: 'bob', seenEvent: '7' } as Frame;

beforeEach(() => {
  vi.stubGlobal('window', { location: { href: 'https://hub/gpu/jobs' } });
  vi.stubGlobal('fetch', unanswered);
});
afterEach(() => {
  vi.unstubAllGlobals();
  vi.restoreAllMocks();
});

/** As fetch does: pending until it is aborted. */
function unanswered({ signal }: Request): Promise<Response> {
  return new Promise((_, reject) => {
    const end = (): void => reject(signal.reason as Error);
    signal.aborted ? end() : signal.addEventListener('abort', end);
  });
}

test.each(['the request', 'the upload'])('a cancelled submission ends %s', async which => {
  const transport = pageTransport(FRAME);
  const stop = new AbortController();
  const sent = which === 'the upload' ? transport.service.putBundle(new Uint8Array(1), stop.signal) : transport.submit({ command: ['ls'] }, '', stop.signal);
  stop.abort();
  await expect(sent).rejects.toThrow(/abort/i);
});

test('the upload of a large file may last longer than another request', async () => {
  const limits: number[] = [];
  vi.spyOn(AbortSignal, 'timeout').mockImplementation(ms => (limits.push(ms), AbortSignal.abort(new DOMException('late', 'TimeoutError'))));
  const { service } = pageTransport(FRAME);
  await expect(service.me()).rejects.toThrow('within 30 s');
  await expect(service.putBundle(new Uint8Array(1))).rejects.toThrow('within 1200 s');
  expect(limits).toEqual([30_000, 1_200_000]);
});
