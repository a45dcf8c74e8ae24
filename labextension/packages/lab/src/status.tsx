/** The item in the status bar: the notebook's GPU, and the countdown of an idle warning. */

import { ReactWidget } from '@jupyterlab/apputils';
import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import type { IStatusBar } from '@jupyterlab/statusbar';
import type { TranslationBundle } from '@jupyterlab/translation';
import { useSyncExternalStore } from 'react';

import type { Model } from '@jupyter-gpu-quota/api';
import { duration, gpus, useNow } from '@jupyter-gpu-quota/components';

export class GpuStatus extends ReactWidget {
  constructor(
    private readonly model: Model,
    private readonly trans: TranslationBundle,
    private readonly open: () => void,
  ) {
    super();
    this.addClass('jp-mod-highlighted');
  }

  protected override render(): JSX.Element {
    return <Item model={this.model} trans={this.trans} open={this.open} />;
  }
}

/** How the item is registered. The status bar shows and hides its items itself, and asks for this setting each time. */
export function statusItem(item: GpuStatus, settings: ISettingRegistry.ISettings | null): IStatusBar.IItem {
  const isActive = (): boolean => settings?.get('statusBar').composite !== false;
  return { item, align: 'right', rank: 30, isActive, activeStateChanged: settings?.changed };
}

function Item({ model, trans, open }: { model: Model; trans: TranslationBundle; open: () => void }): JSX.Element | null {
  const { notebook, countdown } = useSyncExternalStore(model.subscribe, model.snapshot);
  if (notebook === null) {
    return null;
  }
  const freeAt = countdown?.idle.state === 'warned' ? countdown.freeAt : null;
  return (
    <button className={freeAt === null ? 'jgq-status' : 'jgq-status jgq-warn'} onClick={open} title={trans.__('GPU quota')}>
      GPU {gpus(notebook.gpu_milli)}
      {freeAt !== null && <Left freeAt={freeAt} trans={trans} />}
    </button>
  );
}

function Left({ freeAt, trans }: { freeAt: number; trans: TranslationBundle }): JSX.Element {
  const now = useNow(1_000);
  return <> · {trans.__('freed in %1', duration(freeAt - now))}</>;
}
