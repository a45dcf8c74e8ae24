/** The service from a page of its own: the login is the browser's cookie, with the XSRF token of the page. */

import { NO_IDLE_STATE, Service, ServiceError, type Transport } from '@jupyter-gpu-quota/api';

import type { Frame } from './frame';

const REQUEST_TIMEOUT_MS = 30_000;
const SLOW = `The service did not answer within ${REQUEST_TIMEOUT_MS / 1000} s. Try again.`;
const LOGIN_ENDED = 'Your login has ended. Load the page again to log in.';

export function pageTransport(frame: Frame): Transport {
  const base = new URL(frame.api, window.location.href).href;

  const send = async (request: Request): Promise<Response> => {
    request.headers.set('X-XSRFToken', frame.xsrf);
    const answer = await fetch(request);
    if (answer.status === 401) {
      throw new ServiceError(401, 'login_ended', LOGIN_ENDED);
    }
    return answer;
  };

  const timed = async (request: Request): Promise<Response> => {
    const signal = AbortSignal.any([request.signal, AbortSignal.timeout(REQUEST_TIMEOUT_MS)]);
    try {
      return await send(new Request(request, { signal }));
    } catch (error) {
      if (error instanceof DOMException && error.name === 'TimeoutError') {
        throw new ServiceError(0, 'timeout', SLOW);
      }
      throw error;
    }
  };

  const stream = (path: string, query: Record<string, string>, signal: AbortSignal): Promise<Response> => {
    const address = new URL(`${path}?${new URLSearchParams(query)}`, base);
    return send(new Request(address, { signal, cache: 'no-store', headers: { Accept: 'text/event-stream' } }));
  };

  const service = new Service(base, timed);
  return {
    service,
    stream: `${base}:${frame.user}`,
    since: frame.version,
    status: () => Promise.resolve({ configured: true, notebook: null, version: '', project: null }),
    idle: () => Promise.resolve(NO_IDLE_STATE),
    keep: () => Promise.reject(new Error('a page has no notebook')),
    cancelWait: () => Promise.reject(new Error('a page has no kernel')),
    submit: request => service.submit(request),
    openEvents: (since, signal) => stream('events', since === undefined ? {} : { since }, signal),
    openLog: (id, query, signal) => stream(`jobs/${encodeURIComponent(id)}/logs`, query, signal),
  };
}
