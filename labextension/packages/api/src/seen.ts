/** Work of a page that waits until somebody sees the page. */

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
