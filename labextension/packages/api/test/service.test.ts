import { expect, test } from 'vitest';

import { errorOf, isRefusal, Service, ServiceError } from '../src/service';

const said = { reason: 'over_limit', message: 'The job needs 9 GPU.' };

test.each([
  ['a refusal with its reason', errorOf(422, said), true],
  ['a missing permission', errorOf(403, said), true],
  ['an answer of a proxy without a reason', errorOf(403, '<html>'), false],
  ['a login that has ended', new ServiceError(401, 'login_ended', 'Log in again.'), false],
  ['too many requests', errorOf(429, said), false],
  ['a service that is not ready', errorOf(503, said), false],
  ['a time-out', new ServiceError(0, 'timeout', 'No answer within 30 s.'), false],
  ['an error of the page', new TypeError('x is undefined'), false],
])('%s is a refusal of the job only if the service has examined it', (_, failure, expected) => {
  expect(isRefusal(failure)).toBe(expected);
});

test.each([
  ['the service', 422, said, said.message],
  ['a Jupyter server whose handler failed', 500, { message: 'Unhandled error', reason: null, traceback: '' }, /^The server failed to answer\./],
  ['a Jupyter server that lacks the XSRF token', 403, { message: "'_xsrf' argument missing from POST", reason: null }, /Log in again\.$/],
  ['a proxy', 502, null, /cannot be reached.*\(status 502\)$/],
])('an error of %s is a sentence for its user', (_, status, body, expected) => {
  expect(errorOf(status, body).message).toMatch(expected);
});

test('a job is queued again with the idempotency key of the action', async () => {
  const sent: unknown[] = [];
  const service = new Service('http://hub/api', async request => {
    sent.push([new URL(request.url).pathname, await request.json()]);
    return Response.json({ id: 'b' }, { status: 201 });
  });
  await service.repeat('a', 'rerun', 'k1', { TOKEN: 'x' });
  expect(sent).toEqual([['/api/jobs/a/actions/rerun', { secrets: { TOKEN: 'x' }, idempotency_key: 'k1' }]]);
});

test('all projects are read, a page at a time', async () => {
  const names = Array.from({ length: 250 }, (_, at) => `p${at}`);
  const asked: string[] = [];
  const service = new Service('http://hub/api', async request => {
    const { searchParams, search } = new URL(request.url);
    asked.push(search);
    const offset = Number(searchParams.get('offset'));
    const items = names.slice(offset, offset + Number(searchParams.get('limit'))).map(name => ({ name }));
    return Response.json({ items, _pagination: { offset, limit: 200, total: names.length, next: null } });
  });
  expect((await service.projects()).map(one => one.name)).toEqual(names);
  expect(asked).toEqual(['?offset=0&limit=200', '?offset=200&limit=200']);
});

test('where there are more jobs than are kept, live jobs and my own are read, too', async () => {
  const listings: Record<string, string[]> = { all: ['d', 'c', 'b', 'a'], live: ['c', 'b'], mine: ['d', 'a'] };
  const asked: string[] = [];
  const service = new Service('http://hub/api', async request => {
    const { searchParams } = new URL(request.url);
    const which = searchParams.get('live') ? 'live' : searchParams.get('mine') ? 'mine' : 'all';
    asked.push(which);
    const items = listings[which]!.slice(0, Number(searchParams.get('limit'))).map(id => ({ id }));
    return Response.json({ items, _pagination: { offset: 0, limit: 200, total: listings[which]!.length, next: null } });
  });
  const { jobs, total } = await service.jobs(2);
  expect([jobs.map(job => job.id), total]).toEqual([['d', 'c', 'c', 'b', 'd', 'a'], 4]);
  expect((await service.jobs(4)).jobs.map(job => job.id)).toEqual(listings.all);
  expect([await service.jobs(0), asked]).toEqual([{ jobs: [], total: 0 }, ['all', 'live', 'mine', 'all']]);
});
