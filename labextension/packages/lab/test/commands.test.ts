import { expect, test, vi } from 'vitest';

import { addCommands, RUN_FILE, RUN_NOTEBOOK } from '../src/commands';

vi.mock('../src/panel', () => ({ gpuIcon: null }));

interface Command {
  isVisible?(): boolean;
  isEnabled?(): boolean;
  execute(): unknown;
}

/** JupyterLab with this file selected, and open if it is a notebook. Its drives are S3, and RTC with the user's own files. */
function lab(path: string): { run(id: string): unknown; isOffered(id: string): boolean | undefined; folders: string[] } {
  const added = new Map<string, Command>();
  const folders: string[] = [];
  const driveName = (of: string): string => /^(S3|RTC):/.exec(of)?.[1] ?? '';
  const contents = { driveName, localPath: (of: string) => of.replace(/^(S3|RTC):/, ''), get: () => Promise.resolve({ content: { cells: [] } }) };
  const commands = { addCommand: (id: string, command: Command) => added.set(id, command), notifyCommandChanged: () => undefined };
  const app = { commands, serviceManager: { contents }, shell: { activateById: () => undefined } };
  const drafts = { change: ({ folder }: { folder: string }) => folders.push(folder) };
  const selectedItems = (): Iterator<{ path: string }> => [{ path }].values();
  const files = { tracker: { currentWidget: { selectedItems } } };
  const currentWidget = { context: { path, save: () => Promise.resolve() } };
  const notebooks = { currentWidget, currentChanged: { connect: () => undefined } };
  const trans = { __: (text: string) => text };
  const targets = { files, notebooks, palette: null, launcher: null };
  addCommands(app as never, { drafts, showForm: () => undefined } as never, () => Promise.resolve(), trans as never, targets as never);
  const isOffered = (id: string): boolean | undefined => (added.get(id)!.isVisible ?? added.get(id)!.isEnabled)?.();
  return { run: id => added.get(id)!.execute(), isOffered, folders };
}

test.each([
  ['models/train.py', RUN_FILE, ['models']],
  ['RTC:models/train.py', RUN_FILE, ['models']],
  ['S3:models/train.py', RUN_FILE, []],
  ['models/train.ipynb', RUN_NOTEBOOK, ['models']],
  ['S3:models/train.ipynb', RUN_NOTEBOOK, []],
])('of the file %s the command %s packs the folders %j', async (path, id, expected) => {
  const { run, isOffered, folders } = lab(path);
  expect(isOffered(id)).toBe(expected.length > 0);
  await run(id);
  expect(folders).toEqual(expected);
});
