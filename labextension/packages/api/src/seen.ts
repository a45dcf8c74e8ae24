/** Work of a page that waits until somebody sees the page. */

const END_WHEN_HIDDEN_MS = 60_000;

/** Call `then` after `ms`, or later when the page is seen again. Returns what prevents the call. */
export function whenSeen(then: () => void, ms: number): () => void {
  const check = (): void => {
    if (!document.hidden) {
      stop();
      then();
    }
  };
  const timer = setTimeout(() => {
    document.addEventListener('visibilitychange', check);
    check();
  }, ms);
  const stop = (): void => {
    clearTimeout(timer);
    document.removeEventListener('visibilitychange', check);
  };
  return stop;
}

/**
 * Run `read` until it ends by itself, or `signal` aborts. In a page that is hidden for a minute `turn` aborts, and when the
 * page is seen again `read` begins again.
 */
export async function whileSeen(read: (turn: AbortSignal) => Promise<void>, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    await visible(signal);
    const turn = new AbortController();
    const end = (): void => turn.abort();
    signal.addEventListener('abort', end);
    const unwatch = whenLongHidden(end);
    try {
      await read(turn.signal);
    } finally {
      unwatch();
      signal.removeEventListener('abort', end);
    }
    if (!turn.signal.aborted) {
      return;
    }
  }
}

/** Resolves when the page is visible, or `signal` aborted. */
function visible(signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    const check = (): void => {
      if (!document.hidden || signal.aborted) {
        document.removeEventListener('visibilitychange', check);
        signal.removeEventListener('abort', check);
        resolve();
      }
    };
    document.addEventListener('visibilitychange', check);
    signal.addEventListener('abort', check);
    check();
  });
}

function whenLongHidden(then: () => void): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const check = (): void => {
    clearTimeout(timer);
    timer = document.hidden ? setTimeout(then, END_WHEN_HIDDEN_MS) : undefined;
  };
  document.addEventListener('visibilitychange', check);
  check();
  return () => {
    clearTimeout(timer);
    document.removeEventListener('visibilitychange', check);
  };
}
