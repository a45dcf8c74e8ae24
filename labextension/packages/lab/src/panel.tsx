/** The sidebar as a widget of Lab. */

import { Dialog, ReactWidget, showDialog } from '@jupyterlab/apputils';
import { URLExt } from '@jupyterlab/coreutils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { LabIcon } from '@jupyterlab/ui-components';

import type { Model } from '@jupyter-gpu-quota/api';
import { DraftStore, Sidebar, SurroundingsProvider, type Surroundings } from '@jupyter-gpu-quota/components';

import icon from '../style/icon.svg';

export const gpuIcon = new LabIcon({ name: 'jupyter-gpu-quota:icon', svgstr: icon });

export class GpuPanel extends ReactWidget {
  readonly drafts: DraftStore;
  private job: string | null = null;
  private readonly surroundings: Surroundings;

  constructor(model: Model, trans: TranslationBundle) {
    super();
    this.drafts = new DraftStore(`jupyter-gpu-quota:draft:${model.transport.service.base}`);
    this.surroundings = {
      model,
      text: (message, ...given) => trans.__(message, ...given),
      openJob: id => this.showJob(id),
      download: (job, path) => openOutput(model.transport.service.base, job, path),
      confirm: (title, body, action) => confirmed(trans, title, body, action),
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

  protected override render(): JSX.Element {
    return (
      <SurroundingsProvider value={this.surroundings}>
        <Sidebar drafts={this.drafts} job={this.job} onBack={() => this.showJob(null)} />
      </SurroundingsProvider>
    );
  }
}

async function confirmed(trans: TranslationBundle, title: string, body: string, action: string): Promise<boolean> {
  const buttons = [Dialog.cancelButton({ label: trans.__('Back') }), Dialog.warnButton({ label: action })];
  return (await showDialog({ title, body, buttons })).button.accept;
}

/** The service always sends a file of a job as a download, never as a page. */
function openOutput(base: string, job: string, path: string): void {
  const link = document.createElement('a');
  link.href = URLExt.join(base, 'jobs', encodeURIComponent(job), 'outputs', ...path.split('/').map(encodeURIComponent));
  link.download = path.split('/').pop() ?? path;
  link.click();
}
