/** The state of one front end: read once, then changed by the event stream. */

import type { StreamEvent } from './events';
import type { Change, Changed, Idle, Job, JobRequest, Repeat } from './service';
import { isRefusal, newKey, ServiceError } from './service';
import { whenSeen } from './seen';
import { followShared } from './shared';
import { applyChange, applyJob, countdownOf, INITIAL_STATE, limited, MAX_JOBS, notificationsOf, withReading } from './state';
import type { JobNotification, State, WaitingKernel } from './state';
import type { ServerStatus, Transport } from './transport';

const PROJECTS_EVERY_MS = 3_000;
const RETRY_MS = 10_000;
const CONFLICT = 409;
/** Quotas, memberships and the use of a slice change without an event. */
const PROJECTS_AT_LEAST_EVERY_MS = 20_000;

export class Model {
  private current: State = INITIAL_STATE;
  private readonly listeners = new Set<() => void>();
  private readonly ending = new AbortController();
  /** Stops the read of the projects that is due. */
  private stopProjects: (() => void) | undefined;
  private refreshing: Promise<void> | null = null;
  /** The stream began, or lost events, during the present read: what changed after an answer of that read is in neither. */
  private readAgain = false;
  /** Changes that arrived while the listings were read. */
  private arrived: Changed[] = [];
  private following = false;
  private rereading: ReturnType<typeof setInterval> | undefined;
  /** The idempotency keys of repeated jobs that have no answer yet, by action and job. */
  private readonly repeatKeys = new Map<string, string>();
  private readonly changeListeners = new Set<(change: Changed | null) => void>();
  /** Sentences about files that were not sent, by job, for the jobs that this model has submitted. */
  readonly notes = new Map<string, readonly string[]>();
  status: ServerStatus | null = null;

  /** `maxJobs`: how many of the newest jobs are read at the start. Jobs that change later are added. */
  constructor(
    readonly transport: Transport,
    private readonly onNotification: (notification: JobNotification) => void = () => undefined,
    private readonly maxJobs = MAX_JOBS,
  ) {}

  get state(): State {
    return this.current;
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly snapshot = (): State => this.current;

  /** Listen to the changes of the stream; null: some were missed, so everything must be read again. */
  readonly subscribeToChanges = (listener: (change: Changed | null) => void): (() => void) => {
    this.changeListeners.add(listener);
    return () => this.changeListeners.delete(listener);
  };

  /** Read everything and follow the stream; try again until the service has answered. */
  async start(): Promise<void> {
    while (!this.ending.signal.aborted && this.current.connection !== 'live' && this.current.connection !== 'none') {
      await this.refresh();
      await new Promise(resolve => setTimeout(resolve, this.current.connection === 'unavailable' ? RETRY_MS : 0));
    }
  }

  dispose(): void {
    this.ending.abort();
    this.stopProjects?.();
    clearInterval(this.rereading);
    this.listeners.clear();
    this.changeListeners.clear();
  }

  /** Read everything again, one read at a time. A failure sets the state `unavailable`, with its message. */
  refresh(): Promise<void> {
    this.refreshing ??= this.read()
      .catch(error => this.unavailable(error))
      .finally(() => {
        this.refreshing = null;
        if (this.readAgain && !this.ending.signal.aborted) {
          this.readAgain = false;
          void this.refresh();
        }
      });
    return this.refreshing;
  }

  async change(id: string, change: Change): Promise<Job> {
    const { service } = this.transport;
    try {
      return this.withJob(await service.change(id, change));
    } catch (error) {
      if (error instanceof ServiceError && error.status === CONFLICT) {
        await service.job(id).then(job => this.withJob(job), () => undefined); // Somebody else has changed it.
      }
      throw error;
    }
  }

  /** Queue a job again. What is repeated after a failure queues no second job, unless the service has refused it. */
  async repeat(id: string, again: Repeat, secrets: Readonly<Record<string, string>> = {}): Promise<Job> {
    const action = `${again} ${id}`;
    const key = this.repeatKeys.get(action) ?? newKey();
    this.repeatKeys.set(action, key);
    try {
      const job = await this.transport.service.repeat(id, again, key, secrets);
      this.repeatKeys.delete(action);
      return this.withJob(job);
    } catch (error) {
      if (isRefusal(error)) {
        this.repeatKeys.delete(action);
      }
      throw error;
    }
  }

  async submit(request: JobRequest, folder: string, signal: AbortSignal): Promise<Job> {
    const { notes, ...job } = await this.transport.submit(request, folder, signal);
    if (notes !== undefined) {
      this.notes.set(job.id, notes);
    }
    return this.withJob(job);
  }

  async keep(): Promise<Idle> {
    const idle = await this.transport.keep();
    this.set({ ...this.current, countdown: countdownOf(idle, Date.now()) });
    return idle;
  }

  /** Read the idle state that the Jupyter server has just got from the service. */
  async readIdle(): Promise<void> {
    const { idle } = await this.transport.idle();
    if (idle !== null) {
      this.set({ ...this.current, countdown: countdownOf(idle, Date.now()) });
    }
  }

  async cancelWait(kernel: string): Promise<void> {
    await this.transport.cancelWait(kernel);
    this.setWaiting(this.current.waiting.filter(one => one.kernel !== kernel));
  }

  setWaiting(waiting: readonly WaitingKernel[]): void {
    this.set({ ...this.current, waiting });
  }

  private async read(): Promise<void> {
    const { service } = this.transport;
    const status = (this.status = await this.transport.status());
    if (!status.configured) {
      this.set({ ...this.current, connection: 'none', message: '' });
      return;
    }
    this.follow();
    this.arrived = [];
    const [me, projects, listed, kernels, version] = await Promise.all([
      service.me(),
      service.projects(),
      service.jobs(this.maxJobs),
      this.transport.idle(),
      service.version().catch(() => null),
    ]);
    const notebook = status.notebook === null ? null : await service.notebook(status.notebook).catch(() => null);
    const state: State = {
      connection: 'live',
      message: '',
      me,
      projects,
      jobs: limited(new Map(listed.jobs.map(job => [job.id, job])), MAX_JOBS, me),
      jobsTotal: listed.total,
      notebookId: status.notebook,
      notebook,
      countdown: countdownOf(notebook?.idle ?? kernels.idle, Date.now()), // The Jupyter server has an older copy.
      waiting: kernels.waiting,
      releases: version && { server: status.version, service: version.version },
    };
    this.set(this.arrived.reduce((before, change) => applyChange(before, change, Date.now()), state));
  }

  private withJob(job: Job): Job {
    this.set(applyJob(this.current, job));
    return job;
  }

  private follow(): void {
    if (this.following) {
      return;
    }
    this.following = true;
    this.rereading = setInterval(() => {
      if (!document.hidden && this.current.connection === 'live') {
        void this.readProjects();
      }
    }, PROJECTS_AT_LEAST_EVERY_MS);
    const handlers = {
      onEvent: (event: StreamEvent) => this.take(event),
      onAlive: (alive: boolean) => this.onAlive(alive),
    };
    followShared(
      `jupyter-gpu-quota:${this.transport.stream ?? this.transport.service.base}`,
      (since, signal) => this.transport.openEvents(since, signal),
      handlers,
      error => this.unavailable(error),
      this.ending.signal,
      this.transport.since,
    );
  }

  private take(event: StreamEvent): void {
    if (event.name === 'reset' || event.name === 'begin') {
      this.readAgain = this.refreshing !== null;
      void this.refresh();
      this.changeListeners.forEach(listener => listener(null));
      return;
    }
    if (event.name !== 'changed') {
      return;
    }
    const change = JSON.parse(event.data) as Changed;
    if (this.refreshing !== null) {
      this.arrived.push(change);
    }
    const before = this.current;
    this.set(applyChange(before, change, Date.now()));
    this.changeListeners.forEach(listener => listener(change));
    notificationsOf(before, change, before.me?.name ?? '').forEach(this.onNotification);
    if (change.jobs.length > 0 || change.notebooks.length > 0) {
      this.stopProjects ??= whenSeen(() => void this.readProjects(), PROJECTS_EVERY_MS);
    }
  }

  /** A failure is only logged: the stream detects an unavailable service, and the next change reads the quotas again. */
  private async readProjects(): Promise<void> {
    this.stopProjects = undefined;
    try {
      const { service } = this.transport;
      const before = this.current;
      const id = before.notebookId;
      const [projects, read] = await Promise.all([service.projects(), id === null ? null : service.notebook(id)]);
      const state = { ...this.current, projects };
      this.set(read ? withReading(state, before, read, Date.now()) : state);
    } catch (error) {
      console.warn('jupyter-gpu-quota: the projects cannot be read:', error);
    }
  }

  private onAlive(alive: boolean): void {
    if (!alive) {
      this.unavailable(new ServiceError(0, 'service_unavailable', 'The connection to the GPU service is lost. Trying again.'));
    } else if (this.current.connection === 'unavailable' && this.current.me !== null) {
      void this.refresh();
    }
  }

  private unavailable(error: unknown): void {
    if (!this.ending.signal.aborted) {
      const message = error instanceof Error ? error.message : String(error);
      this.set({ ...this.current, connection: 'unavailable', message });
    }
  }

  private set(state: State): void {
    this.current = state;
    this.listeners.forEach(listener => listener());
  }
}
