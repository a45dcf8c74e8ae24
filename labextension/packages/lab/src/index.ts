/** GPU quotas and jobs in JupyterLab and Jupyter Notebook. */

import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, ISessionContextDialogs, IThemeManager, Notification, SessionContextDialogs } from '@jupyterlab/apputils';
import { IFileBrowserFactory } from '@jupyterlab/filebrowser';
import { ILauncher } from '@jupyterlab/launcher';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { Model, type JobNotification, type ShutDownKernel } from '@jupyter-gpu-quota/api';

import { addCommands, OPEN } from './commands';
import { KernelMemory } from './kernel-memory';
import { Notifications } from './notifications';
import { GpuPanel } from './panel';
import { GpuStatus, statusItem } from './status';
import { StoppedNotebooks } from './stopped';
import { labTransport } from './transport';

const PLUGIN_ID = 'jupyter-gpu-quota:plugin';
const DEFAULT_EVENTS = ['paused', 'resumed', 'retried', 'succeeded', 'failed'];

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN_ID,
  description: 'A sidebar with the GPU share, the quota and the jobs of a JupyterHub user.',
  autoStart: true,
  optional: [
    ITranslator,
    ICommandPalette,
    ILauncher,
    IFileBrowserFactory,
    INotebookTracker,
    IStatusBar,
    ISettingRegistry,
    ILayoutRestorer,
    ISessionContextDialogs,
    IThemeManager,
  ],
  activate,
};

function activate(
  app: JupyterFrontEnd,
  translator: ITranslator | null,
  palette: ICommandPalette | null,
  launcher: ILauncher | null,
  files: IFileBrowserFactory | null,
  notebooks: INotebookTracker | null,
  statusBar: IStatusBar | null,
  settings: ISettingRegistry | null,
  restorer: ILayoutRestorer | null,
  dialogs: ISessionContextDialogs | null,
  themes: IThemeManager | null,
): void {
  const trans = (translator ?? nullTranslator).load('jupyter_gpu_quota');
  let shownEvents = DEFAULT_EVENTS;
  let notifications: Notifications | null = null;
  const onNotification = (notification: JobNotification): void =>
    void (shownEvents.includes(notification.kind) && notifications?.job(notification));
  const model = new Model(labTransport(app.serviceManager.serverSettings), onNotification);
  const panel = new GpuPanel(model, trans);
  themes?.themeChanged.connect((_, { newValue }) => panel.showTheme(newValue ?? ''));
  const keep = (): Promise<void> =>
    model.keep().then(
      () => undefined,
      (error: Error) => void Notification.error(error.message),
    );
  const openJob = (id: string): void => {
    panel.showJob(id);
    void app.commands.execute(OPEN);
  };
  const readShutDown = async (): Promise<readonly ShutDownKernel[]> => (await model.transport.idle()).shut_down;
  const sessionDialogs = dialogs ?? new SessionContextDialogs({ translator: translator ?? undefined });
  const memory = new KernelMemory(app.serviceManager.serverSettings.baseUrl);
  const stopped = notebooks && new StoppedNotebooks(notebooks, readShutDown, sessionDialogs, memory, trans);
  notifications = new Notifications(trans, {
    keep,
    openJob,
    stopped: async () => (await stopped?.check()) ?? [],
    restart: async () => stopped?.restartAll(),
    onIdle: () => model.readIdle(),
    onWaiting: event => {
      const others = model.state.waiting.filter(one => one.kernel !== event.kernel);
      model.setWaiting(event.state === 'waiting' ? [...others, event] : others);
    },
  });
  app.serviceManager.events.stream.connect((_, event) => notifications?.take(event));

  app.shell.add(panel, 'left', { rank: 600 });
  restorer?.add(panel, panel.id);
  addCommands(app, panel, keep, trans, { files, notebooks, palette, launcher });
  const status = new GpuStatus(model, trans, () => void app.commands.execute(OPEN));
  const apply = (found: ISettingRegistry.ISettings): void => {
    shownEvents = found.get('notifications').composite as string[];
  };
  void readSettings(settings).then(found => {
    statusBar?.registerStatusItem(PLUGIN_ID, statusItem(status, found));
    if (found !== null) {
      found.changed.connect(apply);
      apply(found);
    }
  });
  void model.start();
}

/** The settings of this extension; null where there are none. */
async function readSettings(registry: ISettingRegistry | null): Promise<ISettingRegistry.ISettings | null> {
  try {
    return (await registry?.load(PLUGIN_ID)) ?? null;
  } catch (error) {
    console.warn('jupyter-gpu-quota: the settings cannot be read:', error);
    return null;
  }
}

export default plugin;
