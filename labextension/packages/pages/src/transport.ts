/** The service from a page of its own: the login is the browser's cookie, with the XSRF token of the page. */

import { NO_IDLE_STATE, Service, ServiceError, type Transport } from '@jupyter-gpu-quota/api';

import type { Frame } from './frame';

const REQUEST_TIMEOUT_MS = 30_000;
/** The largest code bundle by default, 256 MiB, at 2 Mbit/s. The form has a button that cancels the upload. */
const UPLOAD_TIMEOUT_MS = 20 * 60_000;
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
    const limit = request.url.includes('/bundles/') ? UPLOAD_TIMEOUT_MS : REQUEST_TIMEOUT_MS;
    const signal = AbortSignal.any([request.signal, AbortSignal.timeout(limit)]);
    try {
      return await send(new Request(request, { signal }));
    } catch (error) {
      if (error instanceof DOMException && error.name === 'TimeoutError') {
        throw new ServiceError(0, 'timeout', `The service did not answer within ${limit / 1000} s. Try again.`);
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
    since: frame.seenEvent,
    status: () => Promise.resolve({ configured: true, notebook: null, version: '', project: null }),
    idle: () => Promise.resolve(NO_IDLE_STATE),
    keep: () => Promise.reject(new Error('a page has no notebook')),
    cancelWait: () => Promise.reject(new Error('a page has no kernel')),
    submit: (request, _, signal) => service.submit(request, signal),
    openEvents: (since, signal) => stream('events', since === undefined ? {} : { since }, signal),
    openLog: (id, query, signal) => stream(`jobs/${encodeURIComponent(id)}/logs`, query, signal),
  };
}
