/** One stream for all tabs of a browser: one tab reads it and repeats its events to the others. */

import { follow, type StreamEvent, type StreamHandlers } from './events';

type Told = { event: StreamEvent } | { alive: boolean };
export type Open = (lastId: string | undefined, signal: AbortSignal) => Promise<Response>;

/** After so long in the background a tab that reads the stream leaves it to another tab. */
const REST_WHEN_HIDDEN_MS = 60_000;

/**
 * Follow the stream called `name` until `signal` aborts.
 *
 * Browsers allow six connections to a host, so the tab that holds the lock reads for all. Without locks (a page that is
 * not served by https or from this machine) each tab reads its own.
 */
export function followShared(name: string, open: Open, handlers: StreamHandlers, signal: AbortSignal): void {
  const others = new BroadcastChannel(name);
  others.onmessage = (message: MessageEvent<Told>) => {
    'event' in message.data ? handlers.onEvent(message.data.event) : handlers.onAlive(message.data.alive);
  };
  signal.addEventListener('abort', () => others.close(), { once: true });
  const repeating: StreamHandlers = {
    onEvent: event => (handlers.onEvent(event), others.postMessage({ event } satisfies Told)),
    onAlive: alive => (handlers.onAlive(alive), others.postMessage({ alive } satisfies Told)),
  };
  void followWhileVisible(
    turn => (navigator.locks ? readInTurn(name, open, repeating, turn) : follow(open, handlers, turn)),
    signal,
  );
}

async function readInTurn(name: string, open: Open, handlers: StreamHandlers, turn: AbortSignal): Promise<void> {
  try {
    await navigator.locks.request(name, { signal: turn }, () => follow(open, handlers, turn));
  } catch (error) {
    if (!turn.aborted) {
      throw error;
    }
  }
}

async function followWhileVisible(read: (turn: AbortSignal) => Promise<void>, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    await visible(signal);
    const turn = new AbortController();
    const end = (): void => turn.abort();
    signal.addEventListener('abort', end, { once: true });
    const unwatch = whenLongHidden(end);
    await read(turn.signal).finally(unwatch);
    signal.removeEventListener('abort', end);
  }
}

function visible(signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    const look = (): void => {
      if (!document.hidden || signal.aborted) {
        document.removeEventListener('visibilitychange', look);
        resolve();
      }
    };
    document.addEventListener('visibilitychange', look);
    signal.addEventListener('abort', look, { once: true });
    look();
  });
}

function whenLongHidden(then: () => void): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const look = (): void => {
    clearTimeout(timer);
    timer = document.hidden ? setTimeout(then, REST_WHEN_HIDDEN_MS) : undefined;
  };
  document.addEventListener('visibilitychange', look);
  look();
  return () => (clearTimeout(timer), document.removeEventListener('visibilitychange', look));
}
