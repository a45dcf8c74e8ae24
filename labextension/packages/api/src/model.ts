/** The state of one front end, kept current: read once, then changed by the event stream. */

import { StreamOver, type StreamEvent } from './events';
import type { Change, Changed, Idle, Job, JobRequest, Service } from './service';
import { ServiceError } from './service';
import { followShared } from './shared';
import { afterChange, afterJob, countdownOf, NOTHING_YET, noticesOf } from './state';
import type { JobNotice, State, WaitingKernel } from './state';

export interface ServerStatus {
  readonly configured: boolean;
  readonly notebook: string | null;
  readonly version: string;
  readonly project: string | null;
}

/** How a front end reaches the service: through a notebook's server, or as a page of the hub. */
export interface Transport {
  readonly service: Service;
  status(): Promise<ServerStatus>;
  idle(): Promise<{ idle: Idle | null; waiting: WaitingKernel[] }>;
  keep(): Promise<Idle>;
  giveUp(kernel: string): Promise<void>;
  /** Pack the folder, send it and queue the job. */
  submit(request: JobRequest, folder: string, signal: AbortSignal): Promise<Job>;
  openEvents(since: string | undefined, signal: AbortSignal): Promise<Response>;
  openLog(id: string, query: Record<string, string>, signal: AbortSignal): Promise<Response>;
}

/** Jobs that a front end keeps; older ones are found on the hub's page. */
export const MOST_JOBS = 1_000;
const PROJECTS_EVERY_MS = 3_000;
const RETRY_MS = 10_000;

export class Model {
  private current: State = NOTHING_YET;
  private readonly listeners = new Set<() => void>();
  private readonly ending = new AbortController();
  private projectsDue: ReturnType<typeof setTimeout> | undefined;
  status: ServerStatus | null = null;

  constructor(
    readonly transport: Transport,
    private readonly onNotice: (notice: JobNotice) => void = () => undefined,
  ) {}

  get state(): State {
    return this.current;
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly snapshot = (): State => this.current;

  /** Read everything, then follow the stream; repeated until the service answers. */
  async start(): Promise<void> {
    try {
      await this.refresh();
    } catch (error) {
      this.away(error);
      setTimeout(() => !this.ending.signal.aborted && void this.start(), RETRY_MS);
      return;
    }
    if (this.current.connection !== 'none') {
      this.follow();
    }
  }

  dispose(): void {
    this.ending.abort();
    clearTimeout(this.projectsDue);
    this.listeners.clear();
  }

  async refresh(): Promise<void> {
    const { service } = this.transport;
    const status = (this.status = await this.transport.status());
    if (!status.configured) {
      this.set({ ...this.current, connection: 'none', message: '' });
      return;
    }
    const [me, projects, environments, listed, kernels] = await Promise.all([
      service.me(),
      service.projects(),
      service.environments(),
      service.jobs(MOST_JOBS),
      this.transport.idle(),
    ]);
    const notebook = status.notebook === null ? null : await service.notebook(status.notebook).catch(() => null);
    this.set({
      connection: 'live',
      message: '',
      me,
      projects,
      environments,
      jobs: new Map(listed.jobs.map(job => [job.id, job])),
      jobsTotal: listed.total,
      notebookId: status.notebook,
      notebook,
      countdown: countdownOf(kernels.idle ?? notebook?.idle, Date.now()),
      waiting: kernels.waiting,
    });
  }

  async change(id: string, change: Change): Promise<void> {
    this.set(afterJob(this.current, await this.transport.service.change(id, change)));
  }

  async repeat(id: string, again: 'clone' | 'rerun'): Promise<Job> {
    return this.withJob(await this.transport.service.repeat(id, again));
  }

  async submit(request: JobRequest, folder: string, signal: AbortSignal): Promise<Job> {
    return this.withJob(await this.transport.submit(request, folder, signal));
  }

  async keep(): Promise<void> {
    const countdown = countdownOf(await this.transport.keep(), Date.now());
    this.set({ ...this.current, countdown });
  }

  async giveUp(kernel: string): Promise<void> {
    await this.transport.giveUp(kernel);
    this.setWaiting(this.current.waiting.filter(one => one.kernel !== kernel));
  }

  setWaiting(waiting: readonly WaitingKernel[]): void {
    this.set({ ...this.current, waiting });
  }

  private withJob(job: Job): Job {
    this.set(afterJob(this.current, job));
    return job;
  }

  private follow(): void {
    const handlers = {
      onEvent: (event: StreamEvent) => this.take(event),
      onAlive: (alive: boolean) => this.onAlive(alive),
    };
    const name = `jupyter-gpu-quota:${this.transport.service.base}`;
    followShared(name, (since, signal) => this.transport.openEvents(since, signal), handlers, this.ending.signal);
  }

  private take(event: StreamEvent): void {
    if (event.name === 'reset') {
      this.refresh().catch(error => this.away(error));
      return;
    }
    if (event.name !== 'changed') {
      return;
    }
    const change = JSON.parse(event.data) as Changed;
    const before = this.current;
    this.set(afterChange(before, change, Date.now()));
    noticesOf(before, change, before.me?.name ?? '').forEach(this.onNotice);
    if (change.jobs.length > 0 || change.notebooks.length > 0) {
      this.projectsDue ??= setTimeout(() => void this.readProjects(), PROJECTS_EVERY_MS);
    }
  }

  private async readProjects(): Promise<void> {
    this.projectsDue = undefined;
    try {
      const projects = await this.transport.service.projects();
      this.set({ ...this.current, projects });
    } catch (error) {
      this.away(error);
    }
  }

  private onAlive(alive: boolean): void {
    if (!alive) {
      this.away(new ServiceError(0, 'service_away', 'The connection to the GPU service is lost. Trying again.'));
    } else if (this.current.connection === 'away') {
      this.refresh().catch(error => this.away(error));
    }
  }

  private away(error: unknown): void {
    if (error instanceof StreamOver || this.ending.signal.aborted) {
      return;
    }
    const message = error instanceof Error ? error.message : String(error);
    this.set({ ...this.current, connection: 'away', message });
  }

  private set(state: State): void {
    this.current = state;
    this.listeners.forEach(listener => listener());
  }
}
