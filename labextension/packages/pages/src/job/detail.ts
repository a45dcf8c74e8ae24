/** One job with its ranks and the explanation of its state, kept up to date by the stream. */

import { useMemo, useSyncExternalStore } from 'react';

import { ServiceError, WAITING, whenSeen, type Changed, type Explanation, type JobDetail, type Model } from '@jupyter-gpu-quota/api';
import { usePanelContext } from '@jupyter-gpu-quota/components';

const READ_AFTER_MS = 300;
const RETRY_MS = 5_000;
/** What would start a waiting job changes without an event of that job. */
const EXPLAIN_EVERY_MS = 15_000;

export interface Detail {
  readonly job: JobDetail | null;
  readonly explanation: Explanation | null;
  /** Why the newest read failed; the job is read again. */
  readonly error: string;
  /** Why the job cannot be shown any more. */
  readonly refusal: string;
}

const EMPTY: Detail = { job: null, explanation: null, error: '', refusal: '' };

/** A job that is followed while somebody listens, until it cannot be shown any more. */
export class FollowedJob {
  private current = EMPTY;
  private readonly listeners = new Set<() => void>();
  private end = (): void => undefined;
  /** Stops the read that is due. */
  private stopDue: (() => void) | undefined;
  /** How many reads have begun, and the newest of them that has an answer: the answer of an older one is dropped. */
  private begun = 0;
  private answered = 0;

  constructor(
    private readonly model: Model,
    private readonly id: string,
  ) {}

  readonly snapshot = (): Detail => this.current;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    const unsubscribe = this.model.subscribeToChanges(change => this.apply(change));
    const timer = setInterval(() => this.explain(), EXPLAIN_EVERY_MS);
    this.end = () => {
      this.listeners.delete(listener);
      unsubscribe();
      clearInterval(timer);
      this.stopDue?.();
    };
    void this.read();
    return () => this.end();
  };

  private async read(): Promise<void> {
    const turn = ++this.begun;
    const { service } = this.model.transport;
    const found = await Promise.all([service.job(this.id), service.explain(this.id)]).catch((error: Error) => error);
    if (turn < this.answered) {
      return;
    }
    this.answered = turn;
    if (!(found instanceof Error)) {
      this.set({ ...EMPTY, job: found[0], explanation: found[1] });
    } else if (found instanceof ServiceError && (found.status === 403 || found.status === 404)) {
      this.set({ ...EMPTY, refusal: 'This job no longer exists, or you may not see it now.' });
      this.end();
    } else {
      this.set({ ...this.current, error: found.message });
      this.readAfter(RETRY_MS);
    }
  }

  /** A change is shown at once; its ranks and its explanation are read a little later. */
  private apply(change: Changed | null): void {
    const changed = change?.jobs.find(job => job.id === this.id);
    if (changed && this.current.job) {
      this.set({ ...this.current, job: { ...this.current.job, ...changed } });
    }
    if (change === null || changed) {
      this.readAfter(READ_AFTER_MS);
    }
  }

  private explain(): void {
    if (this.current.job && WAITING.has(this.current.job.state) && !document.hidden) {
      this.readAfter(READ_AFTER_MS);
    }
  }

  private readAfter(ms: number): void {
    if (this.listeners.size > 0) {
      this.stopDue ??= whenSeen(() => {
        this.stopDue = undefined;
        void this.read();
      }, ms);
    }
  }

  private set(next: Detail): void {
    this.current = next;
    this.listeners.forEach(listener => listener());
  }
}

export function useDetail(id: string): Detail {
  const { model } = usePanelContext();
  const followed = useMemo(() => new FollowedJob(model, id), [model, id]);
  return useSyncExternalStore(followed.subscribe, followed.snapshot);
}
