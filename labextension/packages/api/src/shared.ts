/** One stream for all tabs of a browser: the tab that has the lock reads it and broadcasts its events. */

import { follow, type StreamEvent, type StreamHandlers } from './events';
import { whileSeen } from './seen';

type BroadcastMessage = { event: StreamEvent } | { alive: boolean };
export type Open = (lastId: string | undefined, signal: AbortSignal) => Promise<Response>;

const RETRY_MS = 30_000;

/** An event before the first one of a stream that was opened without an id: what changed before that is not in the stream. */
const BEGIN: StreamEvent = { name: 'begin', data: '', id: undefined };

/**
 * Follow the stream called `name` until `signal` aborts, from the event `lastId` if there is one.
 *
 * Browsers allow six connections to a host, so one tab reads for all. A tab that takes over continues after the last
 * event that it has seen. Without the Web Locks API (a page that is served neither by https nor from localhost) each tab
 * reads its own stream. A refused stream is reported by `onRefused`, and opened again after a while.
 */
export function followShared(
  name: string,
  open: Open,
  handlers: StreamHandlers,
  onRefused: (error: unknown) => void,
  signal: AbortSignal,
  lastId?: string,
): void {
  const others = new BroadcastChannel(name);
  const take = (event: StreamEvent): void => {
    lastId = event.id ?? lastId;
    handlers.onEvent(event);
  };
  others.onmessage = ({ data }: MessageEvent<BroadcastMessage>) => {
    if ('event' in data) {
      take(data.event);
    } else {
      handlers.onAlive(data.alive);
    }
  };
  signal.addEventListener('abort', () => others.close(), { once: true });
  const broadcasting: StreamHandlers = {
    onEvent: event => {
      take(event);
      others.postMessage({ event } satisfies BroadcastMessage);
    },
    onAlive: alive => {
      handlers.onAlive(alive);
      others.postMessage({ alive } satisfies BroadcastMessage);
    },
  };
  const read = async (turn: AbortSignal): Promise<void> => {
    const stream = (): Promise<void> => follow(open, lastId === undefined ? beginning(broadcasting) : broadcasting, turn, lastId);
    while (!turn.aborted) {
      try {
        await (navigator.locks ? navigator.locks.request(name, { signal: turn }, stream) : stream());
      } catch (error) {
        if (!turn.aborted) {
          onRefused(error);
          await new Promise(resolve => setTimeout(resolve, RETRY_MS));
        }
      }
    }
  };
  void whileSeen(read, signal); // A tab that is hidden for a while releases the lock.
}

function beginning(handlers: StreamHandlers): StreamHandlers {
  let hasBegun = false;
  const onEvent = (event: StreamEvent): void => {
    if (!hasBegun) {
      hasBegun = true;
      handlers.onEvent(BEGIN);
    }
    handlers.onEvent(event);
  };
  return { ...handlers, onEvent };
}
