import { createElement, type ReactNode } from 'react';
import { renderToStaticMarkup } from 'react-dom/server';
import { expect, test, vi } from 'vitest';

import { INITIAL_STATE, type Job, type Model, type State } from '@jupyter-gpu-quota/api';

import { PanelContextProvider, type PanelContext } from '../src/context';
import { DataTable } from '../src/DataTable';
import { Attempt } from '../src/job/Provenance';
import { RemoveOutputs } from '../src/job/RemoveOutputs';
import { ShareCard } from '../src/share/ShareCard';
import { DraftStore } from '../src/submit/draft';
import { isRefused, type Outcome } from '../src/submit/preview';
import { DryRunResult, SubmitForm } from '../src/submit/SubmitForm';
import { Field } from '../src/submit/SubmitFields';

vi.mock('react', async original => ({
  ...(await original<typeof import('react')>()),
  useSyncExternalStore: (_: unknown, snapshot: () => unknown) => snapshot(),
  useLayoutEffect: () => undefined,
}));

/** Every action is still running, after an earlier one failed. */
vi.mock('../src/context', async original => ({
  ...(await original<typeof import('../src/context')>()),
  useAction: () => ({ busy: true, error: 'No answer.', run: () => Promise.resolve() }),
}));

const TRANS = { __: (text: string) => text, _n: (text: string) => text };

function drawn(state: Partial<State>, shown: ReactNode): string {
  const model = { state, subscribe: () => () => undefined, snapshot: () => ({ ...INITIAL_STATE, ...state }) } as unknown as Model;
  return renderToStaticMarkup(createElement(PanelContextProvider, { value: { model, trans: TRANS } as unknown as PanelContext }, shown));
}

/** The button with these words. */
function button(page: string, words: string): string {
  return page.match(/<button[^>]*>[^<]*/g)?.find(one => one.endsWith(`>${words}`)) ?? 'none';
}

const MESSAGE = 'In 4 minutes its kernels that use the GPU are suspended: their variables are kept.';
const WARNED = {
  me: { name: 'bob', role: 'member' },
  notebookId: 'n',
  countdown: { idle: { state: 'warned', message: MESSAGE, keeps_left: 1 }, freeAt: 240_000 },
  waiting: [{ kernel: 'k', message: 'It waits.' }],
} as unknown as State;
const ENDED = { id: 'a', user: 'bob', project: 'p', state: 'failed', attempt: 1 } as Job;
const ADMIN = { me: { name: 'bob', hub_admin: true } } as unknown as State;

test('the text beside the countdown is that of the service, which knows whether kernels are suspended', () => {
  const page = drawn(WARNED, createElement(ShareCard));
  expect(page).toContain(MESSAGE);
  expect(page).not.toContain('variables are lost');
});

test.each([
  ['Keep my GPU', WARNED, createElement(ShareCard)],
  ['Cancel the kernel start', WARNED, createElement(ShareCard)],
  ['Remove outputs', ADMIN, createElement(RemoveOutputs, { job: ENDED, left: 1, again: () => undefined, after: () => null })],
  ['Try again', ADMIN, createElement(Attempt, { job: ENDED })],
  ['Submit', ADMIN, createElement(SubmitForm, { drafts: new DraftStore('draft', { getItem: () => null } as unknown as Storage) })],
])('the button "%s" keeps the focus while it does nothing', (words, state, shown) => {
  const found = button(drawn(state, shown), words);
  expect(found).toContain('aria-disabled="true"');
  expect(found).not.toMatch(/ disabled/);
});

test('screen readers read the hint of a field with it', () => {
  const input = (id: string, hintId?: string): JSX.Element => createElement('input', { id, 'aria-describedby': hintId });
  const page = drawn({}, createElement(Field, { label: 'Command', hint: 'Runs in a copy.', children: input }));
  const id = /aria-describedby="([^"]+)"/.exec(page)?.[1];
  expect(page).toContain(`<small id="${id}" class="jgq-quiet">Runs in a copy.</small>`);
  expect(drawn({}, createElement(Field, { label: 'Name', children: input }))).not.toContain('aria-describedby');
});

test('the hints of the form belong to its fields', () => {
  const drafts = new DraftStore('draft', { getItem: () => null } as unknown as Storage);
  expect(drawn(ADMIN, createElement(SubmitForm, { drafts }))).toMatch(/<input[^>]*aria-describedby[^>]*placeholder="python train.py/);
});

test('a row of a table has no aria-selected, also if it is selected', () => {
  const columns = [{ id: 'name', header: 'Name', cell: () => 'a job' }];
  const page = drawn({}, createElement(DataTable<Job>, { id: 't', caption: 'Jobs', items: [ENDED], columns, keyOf: job => job.id, selection: { a: true } }));
  expect(page).toContain('data-selected="true"');
  expect(page).not.toContain('aria-selected');
});

const REFUSAL: Outcome = { of: 'refusal', message: 'No node has 9 GPU.' };

function preview(of: string, asked: string): string {
  return drawn({}, createElement(DryRunResult, { preview: { asked: of, outcome: REFUSAL }, asked, unavailable: false, notes: [] }));
}

test('after an edit the preview is marked until there is one of the new form', () => {
  expect(preview('old', 'new')).toMatch(/aria-busy="true".*Checking….*No node has 9 GPU/);
  expect(preview('new', 'new')).toMatch(/aria-busy="false"(?!.*Checking…).*No node has 9 GPU/);
});

test('only a refusal of the present form prevents its submission', () => {
  expect(isRefused({ asked: 'new', outcome: REFUSAL }, 'new')).toBe(true);
  expect(isRefused({ asked: 'old', outcome: REFUSAL }, 'new')).toBe(false);
  expect(isRefused({ asked: 'new', outcome: { of: 'no answer', message: '' } }, 'new')).toBe(false);
  expect(isRefused(null, 'new')).toBe(false);
});
