/** How a front end reaches the service. */

import type { Idle, Job, JobRequest, Service } from './service';
import type { ShutDownKernel, WaitingKernel } from './state';

export interface ServerStatus {
  readonly configured: boolean;
  readonly notebook: string | null;
  readonly version: string;
  /** The project of the notebook, which is the default of its jobs. */
  readonly project: string | null;
}

export interface IdleState {
  readonly idle: Idle | null;
  readonly waiting: readonly WaitingKernel[];
  readonly shut_down: readonly ShutDownKernel[];
}

export const NO_IDLE_STATE: IdleState = { idle: null, waiting: [], shut_down: [] };

/** A job that was submitted; `notes` are sentences about the files of its folder that were not sent. */
export type SubmittedJob = Job & { readonly notes?: readonly string[] };

/** Through a notebook's server, or as a page of the hub. Every call has a time-out and throws ServiceError. */
export interface Transport {
  readonly service: Service;
  /** The name of the stream that the tabs of a browser share; by default the address of the service. */
  readonly stream?: string;
  /** The id of the event that the stream begins after; without one, it begins when the page is seen. */
  readonly since?: string;
  status(): Promise<ServerStatus>;
  idle(): Promise<IdleState>;
  keep(): Promise<Idle>;
  cancelWait(kernel: string): Promise<void>;
  /** Pack the folder, send it and queue the job. */
  submit(request: JobRequest, folder: string, signal: AbortSignal): Promise<SubmittedJob>;
  /** Notes on the files of such a job, such as a script that its folder lacks. A page of the hub sees no folder. */
  notes?(request: JobRequest, folder: string, signal: AbortSignal): Promise<readonly string[]>;
  openEvents(since: string | undefined, signal: AbortSignal): Promise<Response>;
  openLog(id: string, query: Record<string, string>, signal: AbortSignal): Promise<Response>;
}
