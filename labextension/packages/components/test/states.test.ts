import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

import { expect, test, vi } from 'vitest';

import type { Change, Job, Model } from '@jupyter-gpu-quota/api';

import type { PanelContext } from '../src/context';
import { changeJob } from '../src/job/outcomes';
import { logText, stateText } from '../src/job/states';

const PACKAGES = fileURLToPath(new URL('../..', import.meta.url));
const DUTCH: Record<string, string> = { queued: 'wacht', 'Log: live': 'Logboek: actueel', '%1 is held.': '%1 is aangehouden.' };
const TRANS = {
  __: (text: string, ...args: unknown[]) => (DUTCH[text] ?? text).replace(/%(\d)/g, (_, at: string) => String(args[Number(at) - 1])),
  _n: (one: string) => one,
};

/** The sources of all packages by their paths. */
const SOURCES = ['api', 'components', 'lab', 'pages'].flatMap(name =>
  readdirSync(`${PACKAGES}/${name}/src`, { recursive: true, encoding: 'utf8' })
    .filter(path => /\.tsx?$/.test(path))
    .map(path => [`${name}/${path}`, readFileSync(`${PACKAGES}/${name}/src/${path}`, 'utf8')] as const),
);

test('every text that is translated is a literal: a translator finds only these', () => {
  const calls = SOURCES.flatMap(([path, text]) => [...text.matchAll(/trans\.(?:__|_n)\(\s*(.)/g)].map(([call, first]) => [path, call, first] as const));
  expect(calls.length).toBeGreaterThan(100);
  expect(calls.filter(([, , first]) => first !== "'")).toEqual([]);
});

test('states are translated, and one that is not known has the word of the API', () => {
  expect(['queued', 'new'].map(state => stateText(state, TRANS))).toEqual(['wacht', 'new']);
  expect(['live', 'queued'].map(status => logText(status, TRANS))).toEqual(['Logboek: actueel', null]);
});

test.each<[Change, string, string]>([
  ['hold', 'held', 'digits is aangehouden.'],
  ['hold', 'running', 'digits saves and stops; then it is held.'],
  ['cancel', 'running', 'digits saves and stops; then it is cancelled.'],
  ['cancel', 'cancelled', 'digits is cancelled.'],
  ['release', 'queued', 'digits is released: it is wacht.'],
])('the outcome of %s, after which the job is %s: %s', async (change, state, expected) => {
  const say = vi.fn();
  const job = { id: 'a', name: 'digits', state } as Job;
  const model = { change: () => Promise.resolve(job), subscribeToChanges: () => () => undefined } as unknown as Model;
  await changeJob({ model, say, trans: TRANS } as unknown as PanelContext, job, change);
  expect(say.mock.calls).toEqual([[expected]]);
});

test.each([
  ['held', 'digits is aangehouden.'],
  ['succeeded', 'digits succeeded.'],
  ['failed', 'digits failed.'],
])('a running job that is held, and then is %s: %s', async (state, expected) => {
  const say = vi.fn();
  const job = { id: 'b', name: 'digits', state: 'running' } as Job;
  let tell: (changes: { jobs: Job[] }) => void = () => undefined;
  const subscribeToChanges = (listener: typeof tell): (() => void) => ((tell = listener), () => undefined);
  const model = { change: () => Promise.resolve(job), subscribeToChanges } as unknown as Model;
  await changeJob({ model, say, trans: TRANS } as unknown as PanelContext, job, 'hold');
  tell({ jobs: [{ ...job, state: 'pausing' }] });
  tell({ jobs: [{ ...job, state } as Job] });
  expect(say.mock.lastCall).toEqual([expected]);
  expect(say).toHaveBeenCalledTimes(2);
});
