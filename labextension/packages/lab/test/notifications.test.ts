import { beforeEach, expect, test, vi } from 'vitest';

import type { Job, JobNotification } from '@jupyter-gpu-quota/api';

import { Notifications, type NotificationActions } from '../src/notifications';

interface Shown {
  readonly message: string;
  readonly actions: readonly { label: string; callback(): void }[];
}

const { shown, dialogs } = vi.hoisted(() => ({ shown: new Array<Shown>(), dialogs: new Array<{ body: string }>() }));

vi.mock('@jupyterlab/apputils', () => {
  const show = (message: string, options?: Partial<Shown>): string => (shown.push({ message, actions: options?.actions ?? [] }), 'id');
  const emit = (message: string, _: string, options: Partial<Shown>): string => show(message, options);
  return {
    Notification: { warning: show, info: show, error: show, emit, dismiss: () => undefined },
    Dialog: { okButton: () => ({}) },
    showDialog: (options: { body: string }) => (dialogs.push(options), Promise.resolve()),
  };
});

const SCHEMA = 'https://events.jupyter.org/jupyter_gpu_quota/';
/** JupyterLab cuts the text of a notification here. */
const CUT_AT = 140;
const LONG = 'It waits for a slice that is lent to a job. '.repeat(5);
const TRANS = { __: (text: string, ...args: unknown[]) => text.replace(/%(\d)/g, (_, at: string) => String(args[Number(at) - 1])) };

function notifications(stopped: readonly string[] = []): Notifications {
  const actions = { onIdle: () => Promise.resolve(), onWaiting: () => undefined, stopped: () => Promise.resolve(stopped) };
  return new Notifications(TRANS as never, actions as unknown as NotificationActions);
}

/** The notification of an event of this server. */
async function of(schema: string, event: object, stopped: readonly string[] = []): Promise<Shown> {
  notifications(stopped).take({ schema_id: `${SCHEMA}${schema}/v1`, ...event } as never);
  await vi.waitFor(() => expect(shown).toHaveLength(1));
  return shown[0]!;
}

beforeEach(() => {
  shown.length = 0;
  dialogs.length = 0;
});

test('an idle event of this server is also shown by the countdown', () => {
  const onIdle = vi.fn(() => Promise.resolve());
  const made = new Notifications(TRANS as never, { onIdle } as unknown as NotificationActions);
  made.take({ schema_id: `${SCHEMA}kernel_suspension/v1` } as never);
  expect(onIdle).not.toHaveBeenCalled();
  made.take({ schema_id: `${SCHEMA}idle/v1`, state: 'warned', message: 'It is idle.' } as never);
  expect(onIdle).toHaveBeenCalledOnce();
});

test.each([
  [1, 'Run a cell, or keep it, to prevent that.', ['Keep my GPU']],
  [0, 'Run a cell to prevent that.', []],
])('an idle warning that can be postponed %i times says what to do before JupyterLab cuts it', async (keeps_left, words, labels) => {
  const { message, actions } = await of('idle', { state: 'warned', message: LONG, keeps_left });
  expect(message).toMatch(/may be lost/);
  expect(message.endsWith(words)).toBe(true);
  expect(message.length).toBeLessThanOrEqual(CUT_AT);
  expect(actions.map(one => one.label)).toEqual(labels);
});

test.each([
  [['Untitled.ipynb'], /^The kernel of Untitled.ipynb was shut down/],
  [['a'.repeat(200)], /^The kernel of a+… was shut down/],
  [['one.ipynb', 'two.ipynb', 'three.ipynb'], /^The kernels of 3 notebooks were shut down/],
])('after a shutdown of the kernels of %s their variables are not cut off', async (names, words) => {
  const { message } = await of('idle', { state: 'freed', message: 'It is freed.' }, names);
  expect(message).toMatch(words);
  expect(message).toMatch(/variables are lost\.$/);
  expect(message.length).toBeLessThanOrEqual(CUT_AT);
});

test.each([
  ['idle', 'freed'],
  ['idle', 'stopping'],
  ['kernel_waiting', 'waiting'],
  ['kernel_waiting', 'refused'],
])('a long text of the event %s, %s, is shown by a button', async (schema, state) => {
  const { actions } = await of(schema, { state, message: LONG });
  expect(actions.map(one => one.label)).toEqual(['Show All']);
  actions[0]!.callback();
  expect(dialogs.map(one => one.body)).toEqual([LONG]);
});

test('a short text has no such button', async () => {
  expect(await of('kernel_waiting', { state: 'waiting', message: 'It waits.' })).toEqual({ message: 'It waits.', actions: [] });
});

test.each<[JobNotification['kind'], string, string]>([
  ['failed', 'digits', 'Job digits: failed. Exit 1.'],
  ['started', 'digits', 'Job digits: started.'],
  ['cancelled', 'x'.repeat(128), `Job ${'x'.repeat(39)}…: cancelled. Exit 1.`],
])('a job that has %s is named with its state, also if its name is long', (kind, name, expected) => {
  notifications().job({ kind, job: { id: 'a', name, reason: { message: 'Exit 1.' } } as Job });
  expect(shown.map(one => one.message)).toEqual([expected]);
});
