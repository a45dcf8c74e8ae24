/** A server-sent event stream that reconnects after errors. */

import { createParser } from 'eventsource-parser';

import { errorOf, ServiceError } from './service';

export interface StreamEvent {
  readonly name: string;
  readonly data: string;
  readonly id: string | undefined;
}

export interface StreamHandlers {
  onEvent(event: StreamEvent): void;
  /** Called with true for every event, and with false when the connection is lost. */
  onAlive(alive: boolean): void;
}

/**
 * The longest silence, before the headers of the answer too. The service sends a heartbeat every 5 s. A proxy may keep a
 * connection open after its other end is gone.
 */
const STREAM_TIMEOUT_MS = 15_000;
const FIRST_RETRY_MS = 1_000;
const MAX_RETRY_MS = 30_000;

/** Thrown by a handler to end the stream: the server has no more events. */
export class EndOfStream extends Error {}

/**
 * Follow a stream until `signal` aborts it, a handler throws EndOfStream, or the server refuses it.
 *
 * `open` gets the id of the last event, at first `lastId`. Throws the ServiceError of a refusal (4xx but 408 and 429).
 */
export async function follow(
  open: (lastId: string | undefined, signal: AbortSignal) => Promise<Response>,
  handlers: StreamHandlers,
  signal: AbortSignal,
  lastId?: string,
): Promise<void> {
  let retryMs = FIRST_RETRY_MS;
  while (!signal.aborted) {
    const attempt = new AbortController();
    const stop = (): void => attempt.abort();
    let silence: ReturnType<typeof setTimeout> | undefined;
    const hear = (): void => {
      clearTimeout(silence);
      silence = setTimeout(stop, STREAM_TIMEOUT_MS);
    };
    signal.addEventListener('abort', stop, { once: true });
    try {
      hear();
      const response = await open(lastId, attempt.signal);
      hear();
      await refuse(response);
      if (response.body === null) {
        throw new Error('the stream has no body');
      }
      await readEvents(response.body, hear, event => {
        lastId = event.id ?? lastId;
        retryMs = FIRST_RETRY_MS;
        handlers.onAlive(true);
        handlers.onEvent(event);
      });
    } catch (error) {
      if (error instanceof EndOfStream) {
        return;
      }
      if (error instanceof ServiceError && !maySucceedLater(error.status)) {
        throw error;
      }
    } finally {
      clearTimeout(silence);
      attempt.abort();
      signal.removeEventListener('abort', stop);
    }
    if (!signal.aborted) {
      handlers.onAlive(false);
      await delay(retryMs, signal);
      retryMs = Math.min(MAX_RETRY_MS, retryMs * 2);
    }
  }
}

function maySucceedLater(status: number): boolean {
  return status < 400 || status >= 500 || status === 408 || status === 429;
}

async function refuse(response: Response): Promise<void> {
  if (!response.ok) {
    throw errorOf(response.status, await response.json().catch(() => null));
  }
}

async function readEvents(
  body: ReadableStream<Uint8Array>,
  hear: () => void,
  onEvent: (event: StreamEvent) => void,
): Promise<void> {
  const parser = createParser({
    onEvent: event => onEvent({ name: event.event ?? 'message', data: event.data, id: event.id }),
  });
  const decoder = new TextDecoder();
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        return;
      }
      hear();
      parser.feed(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

/** Also ends when the browser has a network again. */
function delay(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    const end = (): void => {
      clearTimeout(timer);
      signal.removeEventListener('abort', end);
      globalThis.removeEventListener?.('online', end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener('abort', end);
    globalThis.addEventListener?.('online', end);
  });
}
