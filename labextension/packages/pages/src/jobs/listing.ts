/** The jobs of a query, part by part as one scrolls, and kept up to date by the stream. */

import { whenSeen, type Changed, type Job, type JobsQuery, type Model } from '@jupyter-gpu-quota/api';

const FIRST = 200;
/** The largest part that the service sends at once. */
const LARGEST = 1_000;
const REREAD_EVERY_MS = 3_000;

export interface Listing {
  readonly jobs: readonly Job[];
  readonly total: number;
  /** Nothing was read yet for this query. */
  readonly loading: boolean;
  readonly error: string;
}

const EMPTY: Listing = { jobs: [], total: 0, loading: true, error: '' };

export class JobListing {
  private current = EMPTY;
  private readonly listeners = new Set<() => void>();
  private query: (() => JobsQuery) | null = null;
  /** The query whose jobs are kept; another one than `query` until that has an answer. */
  private answered: (() => JobsQuery) | null = null;
  /** Grows with each read, so that the answer of an older one is dropped. */
  private turn = 0;
  private reading = false;
  /** Stops the read that is due. */
  private stopDue: (() => void) | undefined;

  constructor(private readonly model: Model) {}

  readonly snapshot = (): Listing => this.current;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    const end = this.model.subscribeToChanges(change => this.apply(change));
    return () => {
      end();
      this.stopDue?.();
      this.stopDue = undefined;
      this.listeners.delete(listener);
    };
  };

  /** Show another query; the jobs of the one before stay until it is answered. */
  show(query: () => JobsQuery): void {
    this.query = query;
    void this.read(0, FIRST);
  }

  /** Read the next part. */
  readonly more = (): void => {
    if (!this.reading) {
      void this.read(this.current.jobs.length, FIRST);
    }
  };

  /** Read again what is shown. */
  readonly reread = (): void => {
    void this.read(0, Math.min(LARGEST, Math.max(FIRST, this.current.jobs.length)));
  };

  private async read(from: number, limit: number): Promise<void> {
    const asked = this.query;
    if (asked === null) {
      return;
    }
    const turn = ++this.turn;
    this.reading = true;
    const isSameQuery = asked === this.answered;
    const offset = isSameQuery ? from : 0;
    const query = { ...asked(), offset: String(offset), limit: String(limit) };
    const found = await this.model.transport.service.jobsPage(query).catch((error: Error) => error);
    if (turn !== this.turn) {
      return;
    }
    this.reading = false;
    if (found instanceof Error) {
      this.set({ ...this.current, loading: false, error: found.message });
      this.rereadSoon(REREAD_EVERY_MS);
      return;
    }
    this.answered = asked;
    const before = this.current.jobs.slice(0, offset);
    const known = new Set(before.map(job => job.id));
    const after = isSameQuery && offset === 0 && found.items.length === limit ? this.current.jobs.slice(limit) : [];
    found.items.forEach(job => known.add(job.id));
    const added = found.items.filter(job => offset === 0 || !before.some(one => one.id === job.id));
    this.set({ jobs: [...before, ...added, ...after.filter(job => !known.has(job.id))], total: found.total, loading: false, error: '' });
  }

  /** Changed jobs are shown at once; whether they still belong here, and where, the service says a little later. */
  private apply(change: Changed | null): void {
    if (change !== null && change.jobs.length > 0) {
      const changed = new Map(change.jobs.map(job => [job.id, job]));
      if (this.current.jobs.some(job => changed.has(job.id))) {
        this.set({ ...this.current, jobs: this.current.jobs.map(job => changed.get(job.id) ?? job) });
      }
    }
    if (change === null || change.jobs.length > 0) {
      this.rereadSoon(this.current.loading ? 0 : REREAD_EVERY_MS);
    }
  }

  private rereadSoon(afterMs: number): void {
    if (this.listeners.size > 0) {
      this.stopDue ??= whenSeen(() => {
        this.stopDue = undefined;
        this.reread();
      }, afterMs);
    }
  }

  private set(next: Listing): void {
    this.current = next;
    this.listeners.forEach(listener => listener());
  }
}
