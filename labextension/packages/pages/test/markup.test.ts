import { createElement, type ReactNode } from 'react';
import { renderToStaticMarkup } from 'react-dom/server';
import { expect, test, vi } from 'vitest';

import type { Revision, Usage } from '@jupyter-gpu-quota/api';
import * as components from '@jupyter-gpu-quota/components';
import type { PanelContext } from '@jupyter-gpu-quota/components';

import { Enforcement, Utilised } from '../src/pieces';
import { Editor } from '../src/quota/Editor';
import { History } from '../src/quota/History';
import { HOURS } from '../src/usage/columns';

vi.mock('@jupyter-gpu-quota/components', async original => ({ ...(await original<typeof components>()) }));

const ACCEPTED = { overcommit: false, removal: false, stops: false };
const done = (): Promise<void> => Promise.resolve();

function drawn(shown: ReactNode): string {
  const value = { model: { transport: { service: {} } } } as unknown as PanelContext;
  return renderToStaticMarkup(createElement(components.PanelContextProvider, { value }, shown));
}

function usedHours(row: Partial<Usage>): ReactNode {
  const cell = HOURS.find(column => column.id === 'used')!.cell as (context: { row: { original: Partial<Usage> } }) => ReactNode;
  return cell({ row: { original: row } });
}

test.each([
  ['the use of work', createElement(Utilised, { of: { utilised_unknown: 'not sampled yet' } }), 'unknown', 'not sampled yet'],
  ['used hours', usedHours({ allocated_milli_h: 0, used_milli_h: null, used_unknown: 'no reading' }), 'unknown', 'no reading'],
  [
    'an enforcement',
    createElement(Enforcement, { of: { enforcement: { memory: 'none', compute: 'mps', why: 'no driver' } } }),
    'memory none, compute mps',
    'no driver',
  ],
])('why %s is as it is can be read without a mouse', (_, shown, words, why) => {
  expect(drawn(shown)).toBe(`<details class="explained"><summary>${words}</summary>${why}</details>`);
});

test('Apply keeps the focus while it does nothing', () => {
  const current = { revision: 1, text: 'projects: []' } as Revision;
  const page = drawn(createElement(Editor, { current, accepted: ACCEPTED, onAccept: () => undefined, reread: done }));
  const [apply] = /<button[^>]*id="quota-apply"[^>]*>/.exec(page)!;
  expect(apply).toContain('aria-disabled="true"');
  expect(apply).not.toMatch(/ disabled/);
  expect(page).not.toContain('quota-load');
});

test.each([
  [1, 'none'],
  [201, 'The newest 1 of 201; <code>jupyter gpu-quota quota history</code> lists all.'],
  [1_234, 'The newest 1 of 1,234; <code>jupyter gpu-quota quota history</code> lists the newest 1,000.'],
])('a history that shows one of %i revisions says where the others are', (total, expected) => {
  const items = [{ revision: total, at: '2026-01-01T00:00:00Z', author: 'ann', comment: '', text: '' } as Revision];
  const page = drawn(createElement(History, { history: { items, total }, current: total, mayApply: false, accepted: ACCEPTED, onReverted: done }));
  expect(/id="history-cut">(.*?)<\/p>/.exec(page)?.[1] ?? 'none').toBe(expected);
  expect(page).toContain(`aria-rowcount="${total + 1}"`);
});

test('a history that is read again, or whose revert runs, has the same cells', () => {
  const columns: unknown[] = [];
  const draw = vi.spyOn(components, 'DataTable').mockImplementation(props => {
    columns.push(...props.columns.map(column => column.cell));
    return createElement('table');
  });
  for (const current of [1, 2]) {
    drawn(createElement(History, { history: { items: [], total: 0 }, current, mayApply: true, accepted: { ...ACCEPTED }, onReverted: done }));
  }
  draw.mockRestore();
  expect(columns.slice(6)).toEqual(columns.slice(0, 6));
  expect(columns.length).toBe(12);
});
