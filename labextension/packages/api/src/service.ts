/** The service's REST API: typed calls that throw the service's reason. */

import createClient, { type Client } from 'openapi-fetch';

import type { components, paths } from './schema';

type Schemas = components['schemas'];
export type Job = Schemas['JobView'];
export type JobDetail = Schemas['JobDetail'];
export type JobRequest = Partial<Schemas['JobRequest']> & { command: string[] };
export type Me = Schemas['MeView'];
export type Project = Schemas['ProjectView'];
export type ProjectPool = Schemas['ProjectPoolView'];
export type Notebook = Schemas['NotebookView'];
export type Idle = Schemas['IdleView'];
export type Explanation = Schemas['ExplainView'];
export type DryRun = Schemas['DryRunView'];
export type Metrics = Schemas['MetricsView'];
export type Point = Schemas['PointView'];
export type SubmitChoices = Schemas['SubmitView'];
export type Output = Schemas['OutputView'];
export type Provenance = Schemas['ProvenanceView'];
export type Changed = Schemas['ChangedView'];
export type Pool = Schemas['PoolView'];
export type Device = Schemas['DeviceView'];
export type Sample = Schemas['SampleView'];
export type Holder = Schemas['HolderView'];
export type Rank = Schemas['RankView'];
export type Ready = Schemas['ReadyView'];
export type Revision = Schemas['QuotaView'];
export type QuotaEdit = Schemas['QuotaEdit'];
export type Preview = Schemas['PreviewView'];
export type AuditRow = Schemas['AuditView'];
export type Verified = Schemas['VerifiedView'];
export type Usage = Schemas['UsageView'];
export type Change = 'hold' | 'release' | 'cancel';
export type Repeat = 'clone' | 'rerun';
export type Fetch = (request: Request) => Promise<Response>;

/** The service or a server on the way refused; `status` is HTTP's, 0 without an answer, `reason` a short code. */
export class ServiceError extends Error {
  constructor(
    readonly status: number,
    readonly reason: string,
    message: string,
  ) {
    super(message);
    this.name = 'ServiceError';
  }
}

/** A login that has ended, a slow or a too frequent request: they say nothing about the content of the request. */
const NOT_ABOUT_THE_REQUEST: ReadonlySet<number> = new Set([401, 408, 429]);

/** Whether the service answered that the request itself is not possible; any other failure leaves that open. */
export function isRefusal(failure: unknown): failure is ServiceError {
  return (
    failure instanceof ServiceError &&
    failure.status >= 400 &&
    failure.status < 500 &&
    !NOT_ABOUT_THE_REQUEST.has(failure.status) &&
    failure.reason !== ''
  );
}

/** A new idempotency key: a request that is sent again with it queues no second job. */
export function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), byte => byte.toString(16).padStart(2, '0')).join('');
}

const UNAVAILABLE = 'The GPU service cannot be reached. The data shown may be out of date.';

const BY_STATUS: Record<number, string> = {
  401: 'Your session has expired. Log in again.',
  403: 'Your session has expired, or you may not do this. Log in again.',
  404: 'The Jupyter server does not know this address. Is its extension jupyter_gpu_quota enabled?',
  500: 'The server failed to answer. Try again; if it fails again, an admin finds the cause in its log.',
};

/** The error of a response that is not ok. Only the service and this server's extension give a reason with their message. */
export function errorOf(status: number, body: unknown): ServiceError {
  const said = (typeof body === 'object' && body !== null ? body : {}) as Record<string, unknown>;
  const reason = typeof said.reason === 'string' ? said.reason : '';
  const message = reason !== '' && typeof said.message === 'string' ? said.message : '';
  return new ServiceError(status, reason, message || (BY_STATUS[status] ?? `${UNAVAILABLE} (status ${status})`));
}

interface Answered<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

async function answerOf<T>(call: Promise<Answered<T>>): Promise<T> {
  let answered: Answered<T>;
  try {
    answered = await call;
  } catch (error) {
    if (error instanceof ServiceError || (error instanceof DOMException && error.name === 'AbortError')) {
      throw error;
    }
    throw new ServiceError(0, 'service_unavailable', UNAVAILABLE);
  }
  if (!answered.response.ok) {
    throw errorOf(answered.response.status, answered.error);
  }
  return answered.data as T;
}

const PAGE = 200;
const LARGEST_PAGE = 1_000;

/** A part of a listing, and how many items there are. */
export interface Page<T> {
  readonly items: T[];
  readonly total: number;
}

interface Listed<T> {
  items: T[];
  _pagination: { total: number };
}

function pageOf<T>({ items, _pagination }: Listed<T>): Page<T> {
  return { items, total: _pagination.total };
}

/** The query of GET jobs, as names and words. */
export type AuditQuery = NonNullable<paths['/audit']['get']['parameters']['query']>;
export type UsageQuery = NonNullable<paths['/usage']['get']['parameters']['query']>;
export type JobsQuery = NonNullable<paths['/jobs']['get']['parameters']['query']>;

/** One person's view of the service. `base` is the address below which the paths of openapi.json lie. */
export class Service {
  private readonly client: Client<paths>;

  constructor(
    readonly base: string,
    fetch: Fetch,
  ) {
    this.client = createClient<paths>({ baseUrl: base.replace(/\/$/, ''), fetch });
  }

  version(): Promise<Schemas['VersionView']> {
    return answerOf(this.client.GET('/version'));
  }

  me(): Promise<Me> {
    return answerOf(this.client.GET('/me'));
  }

  async projects(): Promise<Project[]> {
    const found: Project[] = [];
    for (;;) {
      const query = { offset: String(found.length), limit: String(PAGE) };
      const { items, _pagination } = await answerOf(this.client.GET('/projects', { params: { query } }));
      found.push(...items);
      if (items.length === 0 || found.length >= _pagination.total) {
        return found;
      }
    }
  }

  notebook(id: string): Promise<Notebook> {
    return answerOf(this.client.GET('/notebooks/{id}', { params: { path: { id } } }));
  }

  /** The newest jobs of one's projects, at most `most`, and how many there are. Where that is more, the newest of those that have
   * not ended and of one's own are there, too; some jobs are then there twice. */
  async jobs(most: number): Promise<{ jobs: Job[]; total: number }> {
    const { jobs, total } = await this.newestJobs(most, {});
    const more = total > most ? await Promise.all([this.newestJobs(most, { live: '1' }), this.newestJobs(most, { mine: '1' })]) : [];
    return { jobs: [...jobs, ...more.flatMap(found => found.jobs)], total };
  }

  private async newestJobs(most: number, which: JobsQuery): Promise<{ jobs: Job[]; total: number }> {
    const jobs: Job[] = [];
    if (most === 0) {
      return { jobs, total: 0 };
    }
    for (;;) {
      const query = { ...which, offset: String(jobs.length), limit: String(Math.min(PAGE, most - jobs.length)) };
      const page = await answerOf(this.client.GET('/jobs', { params: { query } }));
      jobs.push(...page.items);
      const total = page._pagination.total;
      if (page.items.length === 0 || jobs.length >= Math.min(most, total)) {
        return { jobs, total };
      }
    }
  }

  job(id: string): Promise<JobDetail> {
    return answerOf(this.client.GET('/jobs/{id}', { params: { path: { id } } }));
  }

  explain(id: string): Promise<Explanation> {
    return answerOf(this.client.GET('/explain/{id}', { params: { path: { id } } }));
  }

  metrics(id: string): Promise<Metrics> {
    return answerOf(this.client.GET('/jobs/{id}/metrics', { params: { path: { id } } }));
  }

  /** The first outputs of a job, and how many there are; `truncated`: more than are counted. */
  async outputs(id: string): Promise<{ files: Output[]; total: number; truncated: boolean }> {
    const params = { path: { id }, query: { limit: String(PAGE) } };
    const page = await answerOf(this.client.GET('/jobs/{id}/outputs', { params }));
    return { files: page.items, total: page._pagination.total, truncated: 'truncated' in page && page.truncated === true };
  }

  /** Have the outputs of a job that has ended removed. */
  async removeOutputs(id: string): Promise<void> {
    await answerOf<unknown>(this.client.DELETE('/jobs/{id}/outputs', { params: { path: { id } } }));
  }

  change(id: string, change: Change): Promise<Job> {
    return answerOf(this.client.POST('/jobs/{id}/actions/{change}', { params: { path: { id, change } } }));
  }

  /** What an attempt was made of; without `attempt`, the newest one. */
  provenance(id: string, attempt?: number): Promise<Provenance> {
    const query = attempt === undefined ? {} : { attempt: String(attempt) };
    return answerOf(this.client.GET('/jobs/{id}/provenance', { params: { path: { id }, query } }));
  }

  /** Queue the job again, once for each `key`. `secrets`: the values of its secrets, which the service does not keep. */
  repeat(id: string, repeat: Repeat, key: string, secrets: Readonly<Record<string, string>>): Promise<Job> {
    const params = { path: { id, repeat } };
    const body = { secrets, idempotency_key: key } as Schemas['CloneRequest'];
    return answerOf(this.client.POST('/jobs/{id}/actions/{repeat}', { params, body }));
  }

  /** What would happen to such a job now; nothing is stored. */
  async dryRun(request: JobRequest, signal?: AbortSignal): Promise<DryRun> {
    const body = { ...request, dry_run: true } as Schemas['JobRequest'];
    return (await answerOf(this.client.POST('/jobs', { body, signal }))) as unknown as DryRun;
  }

  /** Store the code of a job, a gzipped tar; returns its digest. */
  async putBundle(bytes: Uint8Array, signal?: AbortSignal): Promise<string> {
    if (crypto.subtle === undefined) {
      throw new ServiceError(0, 'not_secure', 'The browser sends files to addresses with https only; use JupyterLab or the command line.');
    }
    const hash = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
    const digest = Array.from(hash, byte => byte.toString(16).padStart(2, '0')).join('');
    const body = new Blob([bytes]) as unknown as string;
    const sent = { params: { path: { digest } }, body, bodySerializer: (blob: unknown) => blob as Blob, headers: { 'Content-Type': 'application/gzip' } };
    await answerOf<unknown>(this.client.PUT('/bundles/{digest}', { ...sent, signal }));
    return digest;
  }

  submit(request: JobRequest, signal?: AbortSignal): Promise<Job> {
    return answerOf(this.client.POST('/jobs', { body: request as Schemas['JobRequest'], signal }));
  }

  async jobsPage(query: JobsQuery): Promise<Page<Job>> {
    return pageOf(await answerOf(this.client.GET('/jobs', { params: { query } })));
  }

  /** Whether the service is ready; one that is not answers 503 with the reason. */
  async ready(): Promise<Ready> {
    const answered = await this.client.GET('/ready');
    const found: unknown = answered.data ?? answered.error;
    if (typeof found !== 'object' || found === null || !('ready' in found)) {
      throw errorOf(answered.response.status, found);
    }
    return found as Ready;
  }

  async pools(): Promise<Pool[]> {
    return (await answerOf(this.client.GET('/pools', { params: { query: { limit: String(LARGEST_PAGE) } } }))).items;
  }

  async devices(offset: number): Promise<Page<Device>> {
    const query = { offset: String(offset), limit: String(LARGEST_PAGE) };
    return pageOf(await answerOf(this.client.GET('/devices', { params: { query } })));
  }

  /** The newest stored readings of a device, newest first. */
  async deviceHistory(device: string): Promise<Sample[]> {
    const query = { device, limit: String(LARGEST_PAGE) };
    return (await answerOf(this.client.GET('/samples', { params: { query } }))).items;
  }

  /** The live slices, and the recently stopped ones. */
  async notebooks(): Promise<Page<Notebook>> {
    const query = { stopped: '1', limit: String(LARGEST_PAGE) };
    return pageOf(await answerOf(this.client.GET('/notebooks', { params: { query } })));
  }

  keepNotebook(id: string): Promise<Idle> {
    return answerOf(this.client.POST('/notebooks/{id}/actions/keep', { params: { path: { id } } }));
  }

  async usage(which: UsageQuery): Promise<Page<Usage>> {
    const query = { ...which, limit: String(LARGEST_PAGE) };
    return pageOf(await answerOf(this.client.GET('/usage', { params: { query } })));
  }

  quota(): Promise<Revision> {
    return answerOf(this.client.GET('/quota'));
  }

  async revisions(): Promise<Page<Revision>> {
    return pageOf(await answerOf(this.client.GET('/quota/revisions', { params: { query: { limit: String(PAGE) } } })));
  }

  previewQuota(edit: QuotaEdit, base: number): Promise<Preview> {
    return answerOf(this.client.POST('/quota/preview', { body: edit, headers: ifMatch(base) }));
  }

  applyQuota(edit: QuotaEdit, base: number): Promise<Revision> {
    return answerOf(this.client.PUT('/quota', { body: edit, headers: ifMatch(base) }));
  }

  revertQuota(revision: number, accepted: { accept_removal?: string; accept_stops?: string }): Promise<Revision> {
    const params = { path: { revision: String(revision) }, query: accepted };
    return answerOf(this.client.POST('/quota/revisions/{revision}/actions/revert', { params }));
  }

  async audit(offset: number, limit: number, which: AuditQuery = {}): Promise<Page<AuditRow>> {
    const query = { ...which, offset: String(offset), limit: String(limit) };
    return pageOf(await answerOf(this.client.GET('/audit', { params: { query } })));
  }

  /** The kinds of the audit's rows, with their words. */
  async auditActions(): Promise<Schemas['AuditActionView'][]> {
    return (await answerOf(this.client.GET('/audit/actions', { params: { query: { limit: String(LARGEST_PAGE) } } }))).items;
  }

  verifyAudit(): Promise<Verified> {
    return answerOf(this.client.GET('/audit/verify'));
  }
}

function ifMatch(revision: number): { 'If-Match': string } {
  return { 'If-Match': `"${revision}"` };
}
