import { expect, test } from 'vitest';

import { errorOf, isRefusal, ServiceError } from '../src/service';

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
