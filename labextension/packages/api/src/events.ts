/** An event stream that is opened again after an error, and closed while nobody looks. */

import { createParser } from 'eventsource-parser';

export interface StreamEvent {
  readonly name: string;
  readonly data: string;
  readonly id: string | undefined;
}

export interface StreamHandlers {
  onEvent(event: StreamEvent): void;
  /** Whether events arrive; called with every change. */
  onAlive(alive: boolean): void;
}

/** A heartbeat comes every 5 s; a proxy may keep a connection open whose other end is gone. */
const SILENT_TOO_LONG_MS = 15_000;
const FIRST_PAUSE_MS = 1_000;
const LONGEST_PAUSE_MS = 30_000;

/** Sent in the name of the stream, not of the service, when the other end says that there is no more. */
export class StreamOver extends Error {}

/** Follow a stream until `signal` aborts it or a handler throws StreamOver. `open` gets the id of the last event. */
export async function follow(
  open: (lastId: string | undefined, signal: AbortSignal) => Promise<Response>,
  handlers: StreamHandlers,
  signal: AbortSignal,
): Promise<void> {
  let lastId: string | undefined;
  let pause = FIRST_PAUSE_MS;
  while (!signal.aborted) {
    const attempt = new AbortController();
    const stop = (): void => attempt.abort();
    signal.addEventListener('abort', stop, { once: true });
    try {
      const response = await open(lastId, attempt.signal);
      if (!response.ok || response.body === null) {
        throw new Error(`the stream answered ${response.status}`);
      }
      await readEvents(response.body, stop, event => {
        lastId = event.id ?? lastId;
        pause = FIRST_PAUSE_MS;
        handlers.onAlive(true);
        handlers.onEvent(event);
      });
    } catch (error) {
      if (error instanceof StreamOver) {
        return;
      }
    } finally {
      attempt.abort();
      signal.removeEventListener('abort', stop);
    }
    if (!signal.aborted) {
      handlers.onAlive(false);
      await waited(pause, signal);
      pause = Math.min(LONGEST_PAUSE_MS, pause * 2);
    }
  }
}

async function readEvents(
  body: ReadableStream<Uint8Array>,
  stop: () => void,
  onEvent: (event: StreamEvent) => void,
): Promise<void> {
  const parser = createParser({
    onEvent: event => onEvent({ name: event.event ?? 'message', data: event.data, id: event.id }),
  });
  const decoder = new TextDecoder();
  const reader = body.getReader();
  let silence = setTimeout(stop, SILENT_TOO_LONG_MS);
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        return;
      }
      clearTimeout(silence);
      silence = setTimeout(stop, SILENT_TOO_LONG_MS);
      parser.feed(decoder.decode(value, { stream: true }));
    }
  } finally {
    clearTimeout(silence);
    reader.cancel().catch(() => undefined);
  }
}

function waited(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => (clearTimeout(timer), resolve()), { once: true });
  });
}
