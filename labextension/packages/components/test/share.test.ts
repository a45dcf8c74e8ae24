import { createElement } from 'react';
import { renderToStaticMarkup } from 'react-dom/server';
import { expect, test, vi } from 'vitest';

import { INITIAL_STATE } from '@jupyter-gpu-quota/api';

import type { ActionButtonProps } from '../src/ActionButton';
import { PanelContextProvider } from '../src/context';
import { ShareCard } from '../src/share/ShareCard';

const { buttons } = vi.hoisted(() => ({ buttons: new Map<unknown, () => void>() }));

vi.mock('../src/ActionButton', () => ({
  ActionButton: ({ children, onClick }: ActionButtonProps) => (buttons.set(children, onClick), null),
}));
vi.mock('react', async original => ({
  ...(await original<typeof import('react')>()),
  useSyncExternalStore: (_: unknown, snapshot: () => unknown) => snapshot(),
}));

/** Draw the card. Returns its text, and the list of the model's actions that are called. */
function drawn(say?: (message: string) => void): { page: string; called: string[] } {
  const countdown = { idle: { state: 'warned', message: 'It is idle.', keeps_left: 1 }, freeAt: 240_000 };
  const state = { ...INITIAL_STATE, me: { name: 'bob' }, notebookId: 'n', countdown, waiting: [{ kernel: 'k', message: 'It waits.' }] };
  const called: string[] = [];
  const keep = (): Promise<unknown> => (called.push('keep'), Promise.resolve({ message: 'It was kept just now.' }));
  const cancelWait = (kernel: string): Promise<void> => (called.push(`cancel ${kernel}`), Promise.resolve());
  const model = { subscribe: () => () => undefined, snapshot: () => state, keep, cancelWait };
  const value = { model, say, trans: { __: (text: string) => text } } as never;
  return { page: renderToStaticMarkup(createElement(PanelContextProvider, { value }, createElement(ShareCard))), called };
}

/** Draw the card and click the button with these words. Returns which of the model's actions were called. */
function clicked(words: string, say?: (message: string) => void): string[] {
  const { called } = drawn(say);
  buttons.get(words)!();
  return called;
}

test('a sentence that changes with the time is in no live region', () => {
  expect(drawn().page).toContain('<p>It is idle.</p>');
});

test.each([
  ['Keep my GPU', 'keep', 'It was kept just now.'],
  ['Cancel the kernel start', 'cancel k', 'The kernel start is cancelled.'],
])('the outcome of "%s" is announced where the front end has a place for it', async (words, action, expected) => {
  const say = vi.fn();
  expect(clicked(words, say)).toEqual([action]);
  await vi.waitFor(() => expect(say).toHaveBeenCalledWith(expected));
  expect(clicked(words)).toEqual([action]);
});
