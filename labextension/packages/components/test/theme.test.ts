import { createElement, type DependencyList, type ReactNode } from 'react';
import { renderToStaticMarkup } from 'react-dom/server';
import { expect, test, vi } from 'vitest';

import type { Job } from '@jupyter-gpu-quota/api';

import { PanelContextProvider } from '../src/context';
import { LineChart } from '../src/LineChart';
import { Sparkline } from '../src/Sparkline';

const { effects } = vi.hoisted(() => ({ effects: new Map<string, DependencyList | undefined>() }));

vi.mock('react', async original => ({
  ...(await original<typeof import('react')>()),
  useEffect: (effect: () => void, dependencies?: DependencyList) => void effects.set(String(effect), dependencies),
}));
vi.mock('uplot', () => ({ default: class {} }));

const JOB = { id: 'a', metrics: { loss: 1 } } as unknown as Job;

test.each([
  ['a chart', createElement(LineChart, { label: 'loss', times: [], lines: [], name: 'loss' }), 1],
  ['a line of a row', createElement(Sparkline, { job: JOB, name: 'loss' }), 2],
])('%s is drawn again with another theme', (_, shown: ReactNode, count) => {
  effects.clear();
  const value = { model: {}, trans: { __: (text: string) => text }, theme: 'JupyterLab Dark' } as never;
  renderToStaticMarkup(createElement(PanelContextProvider, { value }, shown));
  const drawing = [...effects].filter(([effect]) => effect.includes('plot'));
  expect(drawing.map(([, dependencies]) => dependencies?.includes('JupyterLab Dark'))).toEqual(Array(count).fill(true));
});
