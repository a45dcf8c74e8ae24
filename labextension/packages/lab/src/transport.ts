/** The service through the Jupyter server, whose API token never reaches the browser. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import {
  errorOf,
  NO_IDLE_STATE,
  Service,
  ServiceError,
  type Idle,
  type IdleState,
  type ServerStatus,
  type SubmittedJob,
  type Transport,
} from '@jupyter-gpu-quota/api';

const REQUEST_TIMEOUT_MS = 30_000;
const TIMED_OUT = `The Jupyter server did not answer within ${REQUEST_TIMEOUT_MS / 1000} s. Try again.`;
const NO_EXTENSION: ServerStatus = { configured: false, notebook: null, version: '', project: null };

export function labTransport(settings: ServerConnection.ISettings): Transport {
  const base = URLExt.join(settings.baseUrl, 'gpu-quota');

  const send = async (url: string, init: RequestInit): Promise<Response> => {
    try {
      return await ServerConnection.makeRequest(url, init, settings);
    } catch (error) {
      if (init.signal?.aborted) {
        const { reason } = init.signal as { reason: unknown };
        throw reason instanceof DOMException && reason.name === 'TimeoutError' ? new ServiceError(0, 'timeout', TIMED_OUT) : reason;
      }
      throw new ServiceError(0, 'server_unavailable', 'The Jupyter server cannot be reached.');
    }
  };

  const ask = async <T>(path: string, body?: unknown, signal?: AbortSignal): Promise<T> => {
    const post = body === undefined ? {} : { method: 'POST', body: JSON.stringify(body) };
    const answer = await send(URLExt.join(base, path), { ...post, signal: signal ?? AbortSignal.timeout(REQUEST_TIMEOUT_MS) });
    const found: unknown = await answer.json().catch(() => null);
    if (!answer.ok) {
      throw errorOf(answer.status, found);
    }
    return found as T;
  };

  const stream = (path: string, query: Record<string, string>, signal: AbortSignal): Promise<Response> =>
    send(URLExt.join(base, 'api', path) + URLExt.objectToQueryString(query), {
      signal,
      cache: 'no-store',
      headers: { Accept: 'text/event-stream' },
    });

  const fetch = async (request: Request): Promise<Response> => {
    const body = request.method === 'GET' ? undefined : await request.text();
    const signal = AbortSignal.any([request.signal, AbortSignal.timeout(REQUEST_TIMEOUT_MS)]);
    return send(request.url, { method: request.method, body, signal });
  };

  return {
    service: new Service(URLExt.join(base, 'api'), fetch),
    status: () =>
      ask<ServerStatus>('status').catch(error => {
        if (error instanceof ServiceError && error.status === 404) {
          return NO_EXTENSION;
        }
        throw error;
      }),
    idle: () =>
      ask<IdleState>('idle').catch(error => {
        if (error instanceof ServiceError && error.status === 404) {
          return NO_IDLE_STATE;
        }
        throw error;
      }),
    keep: () => ask<Idle>('keep', {}),
    cancelWait: kernel => ask<void>('give-up', { kernel }),
    submit: (request, folder, signal) => ask<SubmittedJob>('jobs', { request, folder }, signal),
    notes: (request, folder, signal) => ask<{ notes: string[] }>('notes', { request, folder }, signal).then(({ notes }) => notes),
    openEvents: (since, signal) => stream('events', { without_devices: '1', ...(since ? { since } : {}) }, signal),
    openLog: (id, query, signal) => stream(`jobs/${encodeURIComponent(id)}/logs`, query, signal),
  };
}
