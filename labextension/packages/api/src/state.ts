/** The state of a front end as one readonly value, and the pure functions that change it. */

import type { Changed, Idle, Job, Me, Notebook, Project } from './service';

/** `loading`: not read yet; `live`: changes arrive; `unavailable`: the last known state; `none`: not configured. */
export type Connection = 'loading' | 'live' | 'unavailable' | 'none';

export interface WaitingKernel {
  readonly kernel: string;
  readonly message: string;
}

/** A kernel that was shut down to free its GPU, a time ago. `message`: the cause, if it was not that it was unused. */
export interface ShutDownKernel {
  readonly kernel: string;
  readonly shut_down_ms: number;
  readonly unused_ms: number | null;
  readonly message: string;
}

export interface Countdown {
  readonly idle: Idle;
  /** When the GPU is freed, in milliseconds of Date.now(); null without a countdown. */
  readonly freeAt: number | null;
}

export interface State {
  readonly connection: Connection;
  /** Why the service is unavailable. */
  readonly message: string;
  readonly me: Me | null;
  readonly projects: readonly Project[];
  readonly jobs: ReadonlyMap<string, Job>;
  readonly jobsTotal: number;
  readonly notebookId: string | null;
  readonly notebook: Notebook | null;
  readonly countdown: Countdown | null;
  readonly waiting: readonly WaitingKernel[];
  /** The releases of this front end's server and of the service; null while unknown. */
  readonly releases: { readonly server: string; readonly service: string } | null;
}

/** Jobs that a front end keeps; the hub's page lists all. */
export const MAX_JOBS = 1_000;

export const INITIAL_STATE: State = {
  connection: 'loading',
  message: '',
  me: null,
  projects: [],
  jobs: new Map(),
  jobsTotal: 0,
  notebookId: null,
  notebook: null,
  countdown: null,
  waiting: [],
  releases: null,
};

export const WAITING: ReadonlySet<string> = new Set(['queued', 'paused']);
export const RUNNING: ReadonlySet<string> = new Set(['starting', 'running', 'pausing']);
export const ENDED: ReadonlySet<string> = new Set(['succeeded', 'failed', 'cancelled']);

/** The countdown of an idle state that arrived at `now`. */
export function countdownOf(idle: Idle | null | undefined, now: number): Countdown | null {
  return idle ? { idle, freeAt: idle.free_in_ms === null ? null : now + idle.free_in_ms } : null;
}

/**
 * The state after the event `changed`, which has complete views of the changed objects; some of them may be new. Before the
 * first read, which finds the user, events make no state `live`.
 */
export function applyChange(state: State, change: Changed, now: number): State {
  const jobs = new Map(state.jobs);
  for (const job of change.jobs) {
    jobs.set(job.id, job);
  }
  const added = jobs.size - state.jobs.size;
  const notebook = change.notebooks.find(one => one.id === state.notebookId);
  return {
    ...state,
    ...(state.me !== null && { connection: 'live', message: '' }),
    jobs: change.jobs.length > 0 ? limited(jobs, MAX_JOBS, state.me) : state.jobs,
    jobsTotal: state.jobsTotal + added,
    notebook: notebook ?? state.notebook,
    countdown: notebook?.idle ? countdownOf(notebook.idle, now) : state.countdown,
  };
}

export function applyJob(state: State, job: Job): State {
  const jobs = new Map(state.jobs).set(job.id, job);
  return { ...state, jobs, jobsTotal: state.jobsTotal + jobs.size - state.jobs.size };
}

/** The jobs, without the oldest ended ones if there are more than `most`: first those of others, then those of `me`. */
export function limited(jobs: Map<string, Job>, most: number, me: Me | null): Map<string, Job> {
  if (jobs.size > most) {
    const isMine = (job: Job): number => Number(job.user === me?.name);
    const ended = [...jobs.values()].filter(job => ENDED.has(job.state)).sort((a, b) => isMine(a) - isMine(b) || -ORDERS.newest(a, b));
    ended.slice(0, jobs.size - most).forEach(job => jobs.delete(job.id));
  }
  return jobs;
}

/**
 * The state with what a later reading of its notebook has and what changes without an event; its other facts come with the
 * stream. `before` is the state when the reading began: what arrived since then is newer than the reading.
 */
export function withReading(state: State, before: State, read: Notebook, now: number): State {
  const { notebook, countdown } = state;
  if (notebook === null && before.notebook === null && read.id === state.notebookId) {
    return { ...state, notebook: read, countdown: read.idle ? countdownOf(read.idle, now) : countdown }; // the first read failed
  }
  if (notebook === null || notebook !== before.notebook || countdown !== before.countdown) {
    return state;
  }
  const { utilised_milli, utilised_unknown, memory_used_mib, warning, enforcement, idle } = read;
  return {
    ...state,
    notebook: { ...notebook, utilised_milli, utilised_unknown, memory_used_mib, warning, enforcement, idle },
    countdown: idle ? countdownOf(idle, now) : countdown,
  };
}

export interface JobNotification {
  readonly job: Job;
  readonly kind: 'started' | 'paused' | 'resumed' | 'retried' | 'succeeded' | 'failed' | 'cancelled';
}

/** The changes of the jobs of `user` of which the user is notified. */
export function notificationsOf(before: State, change: Changed, user: string): JobNotification[] {
  return change.jobs.flatMap(job => {
    const was = before.jobs.get(job.id);
    const kind = job.user === user && was && was.state !== job.state ? kindOf(was, job) : null;
    return kind ? [{ job, kind }] : [];
  });
}

function kindOf(was: Job, job: Job): JobNotification['kind'] | null {
  switch (job.state) {
    case 'paused':
    case 'succeeded':
    case 'failed':
    case 'cancelled':
      return job.state;
    case 'running':
      return was.attempt < job.attempt || was.state === 'starting' ? startOf(job) : null;
    default:
      return null;
  }
}

function startOf(job: Job): JobNotification['kind'] {
  return job.attempt === 1 ? 'started' : job.pauses > 0 ? 'resumed' : 'retried';
}

export interface JobFilter {
  readonly mine: boolean;
  readonly project: string;
  readonly state: '' | 'waiting' | 'running' | 'ended' | 'held';
  readonly text: string;
  readonly order: 'newest' | 'name' | 'state' | 'priority';
}

export const MY_JOBS: JobFilter = { mine: true, project: '', state: '', text: '', order: 'newest' };

const IN: Record<Exclude<JobFilter['state'], ''>, ReadonlySet<string>> = {
  waiting: WAITING,
  running: RUNNING,
  ended: ENDED,
  held: new Set(['held']),
};

const STATE_ORDER = ['running', 'starting', 'pausing', 'queued', 'paused', 'held', 'failed', 'succeeded', 'cancelled'];

const ORDERS: Record<JobFilter['order'], (a: Job, b: Job) => number> = {
  newest: (a, b) => compare(b.submitted_at, a.submitted_at),
  name: (a, b) => compare(a.name, b.name),
  state: (a, b) => STATE_ORDER.indexOf(a.state) - STATE_ORDER.indexOf(b.state),
  priority: (a, b) => b.priority - a.priority,
};

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

/** The jobs that a filter shows, in its order; equal ones newest first, then by id. */
export function filterJobs(state: State, filter: JobFilter): Job[] {
  const text = filter.text.trim().toLowerCase();
  const states = filter.state ? IN[filter.state] : null;
  const shown = [...state.jobs.values()].filter(
    job =>
      (!filter.mine || job.user === state.me?.name) &&
      (!filter.project || job.project === filter.project) &&
      (!states || states.has(job.state)) &&
      (!text || `${job.name} ${job.id} ${job.user} ${job.project} ${job.command.join(' ')}`.toLowerCase().includes(text)),
  );
  const order = ORDERS[filter.order];
  return shown.sort((a, b) => order(a, b) || ORDERS.newest(a, b) || compare(a.id, b.id));
}
