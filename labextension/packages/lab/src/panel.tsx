/** The sidebar as a widget of JupyterLab. */

import { Dialog, Notification, ReactWidget, showDialog } from '@jupyterlab/apputils';
import { URLExt } from '@jupyterlab/coreutils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { LabIcon } from '@jupyterlab/ui-components';

import type { Job, Model } from '@jupyter-gpu-quota/api';
import { DraftStore, Sidebar, PanelContextProvider, type PanelContext } from '@jupyter-gpu-quota/components';

import icon from '../style/icon.svg';

export const gpuIcon = new LabIcon({ name: 'jupyter-gpu-quota:icon', svgstr: icon });

const SAID_MS = 6_000;

export class GpuPanel extends ReactWidget {
  readonly drafts: DraftStore;
  private job: string | null = null;
  private formFocused = 0;
  /** What screen readers announce; it is removed after a while, so that the same words are announced again. */
  private said = '';
  private silence: ReturnType<typeof setTimeout> | undefined;
  private context: PanelContext;

  constructor(model: Model, trans: TranslationBundle) {
    super();
    this.drafts = new DraftStore(`jupyter-gpu-quota:draft:${model.transport.service.base}`);
    this.context = {
      model,
      trans,
      openJob: id => this.showJob(id),
      onSubmitted: job => this.showSubmitted(job),
      download: (job, path) => openOutput(model.transport.service.base, job, path),
      confirm: (title, body, action) => confirmed(trans, title, body, action),
      say: message => this.say(message),
    };
    this.id = 'jupyter-gpu-quota';
    this.title.icon = gpuIcon;
    this.title.caption = trans.__('GPU quota');
    this.addClass('jgq-panel');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('GPU quota'));
  }

  showJob(id: string | null): void {
    this.job = id;
    this.update();
  }

  /** Draw the charts in the colours of a theme. */
  showTheme(theme: string): void {
    this.context = { ...this.context, theme };
    this.update();
  }

  private say(message: string): void {
    const set = (said: string): void => {
      this.said = said;
      this.update();
    };
    set(message);
    clearTimeout(this.silence);
    this.silence = setTimeout(() => set(''), SAID_MS);
  }

  private showSubmitted(job: Job): void {
    if (this.job === null) {
      this.showJob(job.id);
    } else {
      const { trans } = this.context;
      const open = { label: trans.__('Open'), callback: () => this.showJob(job.id) };
      Notification.info(trans.__('Job %1 was submitted.', job.name), { autoClose: 8_000, actions: [open] });
    }
  }

  /** Show the form, with the cursor in its command. */
  showForm(): void {
    this.formFocused += 1;
    this.showJob(null);
  }

  protected override render(): JSX.Element {
    return (
      <PanelContextProvider value={this.context}>
        <p className="jgq-unseen" role="status">
          {this.said}
        </p>
        <Sidebar drafts={this.drafts} job={this.job} formFocused={this.formFocused} onBack={() => this.showJob(null)} />
      </PanelContextProvider>
    );
  }
}

async function confirmed(trans: TranslationBundle, title: string, body: string, action: string): Promise<boolean> {
  const buttons = [Dialog.cancelButton({ label: trans.__('Back') }), Dialog.warnButton({ label: action })];
  return (await showDialog({ title, body, buttons })).button.accept;
}

/** Download an output. The service sends it as an attachment, so the page is not left. */
function openOutput(base: string, job: string, path: string): void {
  const url = URLExt.join(base, 'jobs', encodeURIComponent(job), 'outputs', ...path.split('/').map(encodeURIComponent));
  window.open(url, '_blank', 'noopener');
}
