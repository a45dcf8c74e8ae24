import { expect, test } from 'vitest';

import type { Usage } from '@jupyter-gpu-quota/api';

import { addressOf, filterOf, queryOf } from '../src/usage/filter';
import { hoursOf } from '../src/usage/hours';

const NOW = new Date(2027, 0, 15, 10, 30);

test('the default period is the last seven days, the day of today included', () => {
  expect(filterOf('', NOW)).toEqual({ by: '', from: '2027-01-09', to: '2027-01-15' });
});

test('a key that does not exist is the default one', () => {
  expect(filterOf('?by=colour&from=2027-01-01&to=2027-01-02', NOW)).toEqual({ by: '', from: '2027-01-01', to: '2027-01-02' });
  expect(filterOf(addressOf({ by: 'user', from: '2027-01-01', to: '2027-01-02' }), NOW).by).toBe('user');
});

test('the last day is in the period', () => {
  const query = queryOf({ by: '', from: '2027-01-01', to: '2027-01-31' }, 'group');
  expect(query).toEqual({ by: 'group', from: new Date(2027, 0, 1).toISOString(), to: new Date(2027, 1, 1).toISOString() });
});

test('a day that is not complete is left to the service', () => {
  expect(queryOf({ by: '', from: '', to: '' }, 'user')).toEqual({ by: 'user' });
});

function row(name: string, used: number | null): Usage {
  return { name, allocated_milli_h: 1000, allocated_milli_s: 3_600_000, used_milli_h: used, used_milli_s: used === null ? null : used * 3600 } as Usage;
}

test('an hour without work is 0, an hour without readings is a gap', () => {
  const found = hoursOf([row('2027-01-15T11:00:00Z', null), row('2027-01-15T08:00:00Z', 500)]);
  expect(found.times.map(at => (at / 3600) % 24)).toEqual([8, 9, 10, 11]);
  expect([found.allocated, found.used]).toEqual([
    [1, 0, 0, 1],
    [0.5, 0, 0, null],
  ]);
});

test('no hour', () => expect(hoursOf([])).toEqual({ times: [], allocated: [], used: [] }));
