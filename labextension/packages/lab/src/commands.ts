/** The commands, and their entries in the palette, the launcher and the context menus. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ICommandPalette } from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import type { IFileBrowserFactory } from '@jupyterlab/filebrowser';
import type { ILauncher } from '@jupyterlab/launcher';
import type { INotebookTracker } from '@jupyterlab/notebook';
import type { Contents } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';

import { parametersOf, quotedName, type Parameter } from '@jupyter-gpu-quota/components';

import { gpuIcon, type GpuPanel } from './panel';

export const OPEN = 'jupyter-gpu-quota:open';
export const RUN_FILE = 'jupyter-gpu-quota:run-file';
export const RUN_NOTEBOOK = 'jupyter-gpu-quota:run-notebook';
export const KEEP = 'jupyter-gpu-quota:keep';

/** Drives whose files are in the user's home: the default one, and that of older releases of jupyter-collaboration. */
const HOME_DRIVES: ReadonlySet<string> = new Set(['', 'RTC']);

const PROGRAMS: Record<string, string> = { '.py': 'python ', '.sh': 'bash ', '.ipynb': '' };

/** The command line that runs a file in its folder; null for other files. */
export function commandOf(name: string): string | null {
  const program = PROGRAMS[PathExt.extname(name)];
  return program === undefined ? null : program + quotedName(name);
}

/** Of nbformat's cells, the part that is read here. */
interface Cell {
  readonly cell_type: string;
  readonly metadata: { readonly tags?: unknown };
  readonly source: string | string[];
}

/** The parameters of a notebook's file; none if it cannot be read, which the job itself will say. */
async function notebookParameters(contents: Contents.IManager, path: string): Promise<Parameter[]> {
  try {
    const { cells } = (await contents.get(path, { type: 'notebook', content: true })).content as { cells: Cell[] };
    const tagged = cells.find(cell => cell.cell_type === 'code' && [cell.metadata.tags].flat().includes('parameters'));
    return tagged ? parametersOf([tagged.source].flat().join('')) : [];
  } catch (error) {
    console.warn(`jupyter-gpu-quota: the parameters of ${path} cannot be read:`, error);
    return [];
  }
}

/** The parts of Lab in which commands are found; null where an application does not have one. */
export interface CommandTargets {
  files: IFileBrowserFactory | null;
  notebooks: INotebookTracker | null;
  palette: ICommandPalette | null;
  launcher: ILauncher | null;
}

export function addCommands(
  app: JupyterFrontEnd,
  panel: GpuPanel,
  keep: () => Promise<void>,
  trans: TranslationBundle,
  targets: CommandTargets,
): void {
  const { commands } = app;
  const open = (): void => app.shell.activateById(panel.id);
  const { contents } = app.serviceManager;
  const isInHome = (drivePath: string): boolean => HOME_DRIVES.has(contents.driveName(drivePath));
  const prepare = async (drivePath: string): Promise<void> => {
    const path = contents.localPath(drivePath);
    const command = commandOf(PathExt.basename(path));
    if (command !== null && isInHome(drivePath)) {
      const parameters = PathExt.extname(path) === '.ipynb' ? await notebookParameters(contents, drivePath) : [];
      panel.drafts.change({ command, folder: PathExt.dirname(path), name: '', parameters });
      open();
      panel.showForm();
    }
  };
  const selected = (): string | undefined => targets.files?.tracker.currentWidget?.selectedItems().next().value?.path;
  commands.addCommand(OPEN, { label: trans.__('GPU Jobs'), caption: trans.__('Submit and watch GPU jobs'), icon: gpuIcon, execute: open });
  commands.addCommand(RUN_FILE, {
    label: trans.__('Run as GPU Job…'),
    icon: gpuIcon,
    isVisible: () => commandOf(selected() ?? '') !== null && isInHome(selected() ?? ''),
    execute: () => prepare(selected() ?? ''),
  });
  commands.addCommand(RUN_NOTEBOOK, {
    label: args => (args.toolbar ? '' : trans.__('Run Notebook as GPU Job…')),
    caption: trans.__('Run this notebook as a GPU job'),
    icon: gpuIcon,
    isEnabled: () => targets.notebooks?.currentWidget != null && isInHome(targets.notebooks.currentWidget.context.path),
    execute: async () => {
      const notebook = targets.notebooks?.currentWidget;
      if (notebook) {
        await notebook.context.save();
        await prepare(notebook.context.path);
      }
    },
  });
  targets.notebooks?.currentChanged.connect(() => commands.notifyCommandChanged(RUN_NOTEBOOK));
  commands.addCommand(KEEP, { label: trans.__('Keep My GPU'), execute: keep });
  for (const command of [OPEN, RUN_NOTEBOOK, KEEP]) {
    targets.palette?.addItem({ command, category: trans.__('GPU') });
  }
  targets.launcher?.add({ command: OPEN, category: trans.__('Other'), rank: 1 });
}
