import { createElement } from 'react';
import { renderToStaticMarkup } from 'react-dom/server';
import { beforeEach, expect, test, vi } from 'vitest';

import { INITIAL_STATE, type Job } from '@jupyter-gpu-quota/api';

import type { ActionButtonProps } from '../src/ActionButton';
import { PanelContextProvider } from '../src/context';
import { RemoveOutputs } from '../src/job/RemoveOutputs';

const { buttons } = vi.hoisted(() => ({ buttons: new Array<ActionButtonProps>() }));

vi.mock('../src/ActionButton', () => ({ ActionButton: (props: ActionButtonProps) => (buttons.push(props), null) }));

/** The outputs are being removed: all flags are set, and effects run at once. */
vi.mock('react', async original => ({
  ...(await original<typeof import('react')>()),
  useState: (initial: unknown) => [initial === false ? true : initial, () => undefined],
  useEffect: (effect: () => unknown) => void effect(),
  useSyncExternalStore: (_: unknown, snapshot: () => unknown) => snapshot(),
}));

const HEADING = { id: 'heading' } as HTMLElement;

function drawn(left: number): string[] {
  const said: string[] = [];
  const state = { ...INITIAL_STATE, me: { name: 'bob', projects: {} } };
  const model = { subscribe: () => () => undefined, snapshot: () => state };
  const value = { model, say: (words: string) => said.push(words), trans: { __: (text: string) => text } } as never;
  const job = { id: 'a', user: 'bob', project: 'p', state: 'failed' } as Job;
  const shown = createElement(RemoveOutputs, { job, left, again: () => undefined, after: () => HEADING });
  renderToStaticMarkup(createElement(PanelContextProvider, { value }, shown));
  return said;
}

beforeEach(() => {
  vi.useFakeTimers();
  buttons.length = 0;
});

test('while outputs are left their button stays, and passes the focus to a heading when it is removed', () => {
  expect(drawn(1)).toEqual([]);
  expect(buttons.map(({ busy, after }) => [busy, after?.()])).toEqual([[true, HEADING]]);
});

test('it is announced that the outputs are gone', () => {
  expect(drawn(0)).toEqual(['The outputs are removed.']);
  expect(buttons).toEqual([]);
});
