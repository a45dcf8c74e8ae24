import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import { followLog, MAX_CHARACTERS, EMPTY_LOG, appendPart, type LogState } from '../src/log';
import type { Transport } from '../src/transport';

const page = Object.assign(new EventTarget(), { hidden: false });

beforeEach(() => void vi.stubGlobal('document', page));
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const textOf = (log: LogState): string => log.blocks.join('');

const part = (text: string, more = {}): { text: string; attempt: number; begins: number; offset: number } => ({
  text,
  attempt: 1,
  begins: 0,
  offset: text.length,
  ...more,
});

test('a log of any length keeps its newest lines and says that it is cut', () => {
  let log = EMPTY_LOG;
  for (let number = 0; number < 100; number++) {
    log = appendPart(log, part('x'.repeat(9_999) + '\n'));
  }
  expect(textOf(log).length).toBeLessThanOrEqual(MAX_CHARACTERS);
  expect(textOf(log).startsWith('x'.repeat(9_999) + '\n')).toBe(true);
  expect(log.cut).toBe(true);
});

test('a progress bar is shown once, as in a terminal', () => {
  const log = [' 10 %\r 20 %\r', ' 30 %\r', ' 40 %\ndone\r\n'].reduce((before, text) => appendPart(before, part(text)), EMPTY_LOG);
  expect(textOf(log)).toBe(' 40 %\ndone\r\n');
});

test('a refused log shows the reason and is not asked for again', async () => {
  const { transport, asked } = logs(new Response('{"message": "You may not see it.", "reason": "x"}', { status: 403 }));
  let shown: LogState = EMPTY_LOG;
  await followLog(transport, 'id', 0, 0, log => (shown = log), new AbortController().signal);
  expect([shown.status, textOf(shown), asked.length]).toEqual(['refused', 'You may not see it.\n', 1]);
});

test('a log that begins in its middle is cut', () => {
  expect(appendPart(EMPTY_LOG, part('end\n', { begins: 7 })).cut).toBe(true);
});

function stream(...events: [string, object][]): Response {
  const body = events.map(([name, data]) => `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`).join('');
  return new Response(body);
}

/** A transport whose log answers with these, one after the other, and what it was asked for. */
function logs(...answers: Response[]): { transport: Transport; asked: Record<string, string>[] } {
  const asked: Record<string, string>[] = [];
  const openLog = (_: string, query: Record<string, string>): Promise<Response> => {
    asked.push(query);
    return Promise.resolve(answers.shift() ?? new Response(null, { status: 500 }));
  };
  return { transport: { openLog } as unknown as Transport, asked };
}

test('a paused job continues with the next attempt, from its beginning', async () => {
  const { transport, asked } = logs(
    stream(['log', part('first\n')], ['end', { state: 'paused' }]),
    stream(['log', part('second\n', { attempt: 2 })], ['end', { state: 'succeeded' }]),
  );
  let shown: LogState = EMPTY_LOG;
  await followLog(transport, 'id', 0, 0, log => (shown = log), new AbortController().signal);
  expect(textOf(shown)).toBe('first\n\n── attempt 2 ──\nsecond\n');
  expect(shown.status).toBe('succeeded');
  expect(asked.map(query => [query.attempt, query.offset])).toEqual([[undefined, '-262144'], ['2', '0']]);
});

test('a stream that breaks continues where it ended', async () => {
  const { transport, asked } = logs(stream(['log', part('first\n', { offset: 600 })]), stream(['end', { state: 'failed' }]));
  await followLog(transport, 'id', 0, 0, () => undefined, new AbortController().signal);
  expect(asked[1]).toMatchObject({ offset: '600', attempt: '1' });
});

test('a log without new text is live when its stream is there, at first, after a loss and after a pause', async () => {
  const beat: [string, object] = ['beat', {}];
  const { transport } = logs(stream(beat), stream(beat, ['end', { state: 'paused' }]), stream(beat, ['end', { state: 'failed' }]));
  const statuses: string[] = [];
  await followLog(transport, 'id', 0, 0, log => statuses.push(log.status), new AbortController().signal);
  expect(statuses).toEqual(['live', 'lost', 'live', 'paused', 'live', 'failed']);
});

test('only the newest part of a log changes, and its memory is bounded without line ends, too', () => {
  let log = appendPart(EMPTY_LOG, part('line\n'.repeat(4_000)));
  const [first] = log.blocks;
  log = appendPart(log, part('more\n'));
  expect(log.blocks[0]).toBe(first);
  expect(log.blocks.length).toBeGreaterThan(1);
  for (let number = 0; number < 20; number++) {
    log = appendPart(log, part('x'.repeat(100_000)));
  }
  expect(textOf(log).length).toBeLessThanOrEqual(MAX_CHARACTERS);
  expect(log.cut).toBe(true);
});

test('a hidden page closes the stream of a log, and reads on where it ended when it is seen', async () => {
  vi.useFakeTimers();
  const hide = (hidden: boolean): void => {
    page.hidden = hidden;
    page.dispatchEvent(new Event('visibilitychange'));
  };
  const asked: [string | undefined, AbortSignal][] = [];
  const text = new TextEncoder().encode(`event: log\ndata: ${JSON.stringify(part('first\n', { offset: 600 }))}\n\n`);
  const openLog = (_: string, query: Record<string, string>, turn: AbortSignal): Promise<Response> => {
    asked.push([query.offset, turn]);
    const start = (sender: ReadableStreamDefaultController<Uint8Array>): void => {
      sender.enqueue(text);
      turn.addEventListener('abort', () => sender.error(turn.reason));
    };
    return Promise.resolve(new Response(new ReadableStream({ start })));
  };
  const stop = new AbortController();
  const end = followLog({ openLog } as unknown as Transport, 'id', 0, 0, () => undefined, stop.signal);
  await vi.advanceTimersByTimeAsync(1_000);
  hide(true);
  await vi.advanceTimersByTimeAsync(70_000);
  const opened = asked.length;
  expect(asked.every(([, turn]) => turn.aborted)).toBe(true);
  await vi.advanceTimersByTimeAsync(600_000);
  expect(asked.length).toBe(opened);
  hide(false);
  await vi.advanceTimersByTimeAsync(1_000);
  expect(asked.at(-1)?.[0]).toBe('600');
  expect(asked.length).toBe(opened + 1);
  stop.abort();
  await end;
});
