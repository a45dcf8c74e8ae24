import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import { follow } from '../src/events';

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

const QUIET = 20_000;

/** Follow a stream whose connections these functions open, one after the other; the lives and names that it reported. */
function followed(...opens: ((signal: AbortSignal) => Promise<Response>)[]): { seen: (boolean | string)[]; signals: AbortSignal[]; end(): void } {
  const seen: (boolean | string)[] = [];
  const signals: AbortSignal[] = [];
  const ending = new AbortController();
  const open = (_: string | undefined, signal: AbortSignal): Promise<Response> => {
    signals.push(signal);
    return opens.shift()!(signal);
  };
  void follow(open, { onEvent: event => seen.push(event.name), onAlive: alive => seen.push(alive) }, ending.signal);
  return { seen, signals, end: () => ending.abort() };
}

/** As fetch does: pending until it is aborted. */
function unanswered(signal: AbortSignal): Promise<Response> {
  return new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason as Error)));
}

/** An answer that has one event and then stays open in silence, until it is aborted. */
function silentAfterAnEvent(signal: AbortSignal): Promise<Response> {
  const start = (sender: ReadableStreamDefaultController<Uint8Array>): void => {
    sender.enqueue(new TextEncoder().encode('event: hello\ndata: {}\n\n'));
    signal.addEventListener('abort', () => sender.error(signal.reason));
  };
  return Promise.resolve(new Response(new ReadableStream({ start })));
}

test('a stream whose headers do not come is aborted and opened again', async () => {
  const { seen, signals, end } = followed(unanswered, silentAfterAnEvent);
  await vi.advanceTimersByTimeAsync(QUIET);
  expect(signals[0]?.aborted).toBe(true);
  expect(seen).toEqual([false, true, 'hello']);
  end();
});

test('a stream that becomes silent is aborted and opened again', async () => {
  const { seen, signals, end } = followed(silentAfterAnEvent, silentAfterAnEvent);
  await vi.advanceTimersByTimeAsync(QUIET);
  expect(signals.length).toBe(2);
  expect(seen).toEqual([true, 'hello', false, true, 'hello']);
  end();
  await vi.advanceTimersByTimeAsync(0);
  expect(vi.getTimerCount()).toBe(0);
});
