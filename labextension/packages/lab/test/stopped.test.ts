import type { NotebookPanel } from '@jupyterlab/notebook';
import type { ComponentProps, ReactElement } from 'react';
import { renderToStaticMarkup } from 'react-dom/server';
import { expect, test, vi } from 'vitest';

import type { ShutDownKernel } from '@jupyter-gpu-quota/api';
import type { ActionButton } from '@jupyter-gpu-quota/components';

import { KernelMemory } from '../src/kernel-memory';
import { StoppedNotebooks } from '../src/stopped';

vi.mock('@jupyterlab/apputils', () => ({
  ReactWidget: class {
    node = { setAttribute: () => undefined };
    isDisposed = false;
    addClass(): void {}
    dispose(): void {
      this.isDisposed = true;
    }
  },
}));

vi.mock('@jupyter-gpu-quota/components', async original => ({
  ...(await original<typeof import('@jupyter-gpu-quota/components')>()),
  ActionButton: ({ after, children }: ComponentProps<typeof ActionButton>) => `${children as string}, then ${after?.() as unknown as string}`,
}));

type Shown = { isDisposed: boolean; action: { label: string }; render(): ReactElement };

interface World {
  readonly stopped: StoppedNotebooks;
  readonly restarted: string[];
  buttons(name: string): string[];
  /** The text of the newest banner. */
  text(name: string): string;
}

/** Notebooks by name, each with a live kernel of this id and, before the load of the page, the kernel `before-NAME`. */
function opened(kernels: Record<string, string>, shutDown: readonly string[]): World {
  const banners = new Map<string, Shown[]>();
  const restarted: string[] = [];
  const signal = { connect: () => undefined };
  const panels = Object.entries(kernels).map(([name, id]) => {
    banners.set(name, []);
    let look = (): void => undefined;
    const statusChanged = { connect: (slot: () => void) => (look = slot) };
    const session = { kernel: { id, status: 'idle' } };
    const sessionContext = { name, session, kernelChanged: signal, sessionChanged: signal, statusChanged, shutdown: () => Promise.resolve() };
    const contentHeader = { addWidget: (banner: Shown) => banners.get(name)!.push(banner) };
    const content = { activeCell: name === 'empty' ? null : { node: 'a cell' }, node: 'the notebook' };
    return { panel: { title: { label: name }, context: { path: name }, sessionContext, contentHeader, content, disposed: signal }, look: () => look() };
  });
  const kept = new Map(Object.keys(kernels).map(name => [`jupyter-gpu-quota:kernel:/:${name}`, `before-${name}`]));
  const storage = { getItem: (key: string) => kept.get(key) ?? null, setItem: (key: string, id: string) => kept.set(key, id) };
  const notebooks = { forEach: (watch: (panel: NotebookPanel) => void) => panels.forEach(({ panel }) => watch(panel as never)), widgetAdded: signal };
  const read = (): Promise<readonly ShutDownKernel[]> => Promise.resolve(shutDown.map(kernel => ({ kernel, shut_down_ms: 0, unused_ms: 0, message: '' })));
  const dialogs = { restart: (context: { name: string }) => Promise.resolve(restarted.push(context.name)) };
  const memory = new KernelMemory('/', storage as unknown as Storage);
  const stopped = new StoppedNotebooks(notebooks as never, read, dialogs as never, memory, { __: (text: string) => text } as never);
  panels.forEach(({ look }) => look());
  const buttons = (name: string): string[] => banners.get(name)!.flatMap(banner => (banner.isDisposed ? [] : [banner.action.label]));
  const text = (name: string): string => renderToStaticMarkup(banners.get(name)!.at(-1)!.render());
  return { stopped, restarted, buttons, text };
}

test('only notebooks whose newest kernel was shut down are named and restarted', async () => {
  const { stopped, restarted, buttons } = opened({ live: 'a', gone: 'b' }, ['before-live', 'b']);
  await vi.waitFor(() => expect(buttons('live')).toEqual(['Close']));
  expect(await stopped.check()).toEqual(['gone']);
  await stopped.restartAll();
  expect(restarted).toEqual(['gone']);
});

test('a banner about an earlier kernel is replaced when the newest one is shut down', async () => {
  const shutDown = ['before-nb'];
  const { stopped, buttons } = opened({ nb: 'a' }, shutDown);
  await vi.waitFor(() => expect(buttons('nb')).toEqual(['Close']));
  shutDown.push('a');
  expect(await stopped.check()).toEqual(['nb']);
  expect(await stopped.check()).toEqual(['nb']);
  expect(buttons('nb')).toEqual(['Start New Kernel']);
});

test('the notebook gets the focus after its banner', async () => {
  const { stopped, buttons, text } = opened({ nb: 'a', empty: 'b' }, ['before-nb', 'b']);
  await vi.waitFor(() => expect(buttons('nb')).toEqual(['Close']));
  await stopped.check();
  expect([text('nb'), text('empty')]).toEqual([
    expect.stringContaining('Close, then a cell'),
    expect.stringContaining('Start New Kernel, then the notebook'),
  ]);
});
