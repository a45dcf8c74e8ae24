import type { ReactElement } from 'react';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import type { PanelContext } from '@jupyter-gpu-quota/components';

import { GpuPanel } from '../src/panel';

vi.mock('@jupyterlab/apputils', () => ({
  ReactWidget: class {
    node = { setAttribute: () => undefined };
    title = {};
    addClass(): void {}
    update(): void {}
  },
}));
vi.mock('@jupyterlab/ui-components', () => ({ LabIcon: class {} }));
vi.mock('../style/icon.svg', () => ({ default: '' }));

beforeEach(() => void vi.useFakeTimers());
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test('the panel announces the outcome of an action, and is ready to announce the same again', () => {
  vi.stubGlobal('window', { localStorage: { getItem: () => null } });
  const panel = new GpuPanel({ transport: { service: { base: '/' } } } as never, { __: (text: string) => text } as never);
  const drawn = (): ReactElement => (panel as unknown as { render(): ReactElement }).render();
  const status = (): string => drawn().props.children.find((one: ReactElement) => one.props.role === 'status').props.children;
  const { say } = drawn().props.value as PanelContext;
  expect(status()).toBe('');
  say?.('train is held.');
  expect(status()).toBe('train is held.');
  vi.advanceTimersByTime(10_000);
  expect(status()).toBe('');
});

test('the charts of the panel know the theme in force', () => {
  vi.stubGlobal('window', { localStorage: { getItem: () => null } });
  const panel = new GpuPanel({ transport: { service: { base: '/' } } } as never, { __: (text: string) => text } as never);
  const context = (): PanelContext => (panel as unknown as { render(): ReactElement }).render().props.value as PanelContext;
  const before = context();
  panel.showTheme('JupyterLab Dark');
  expect(context()).toEqual({ ...before, theme: 'JupyterLab Dark' });
});
