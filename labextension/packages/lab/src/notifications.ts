/** Notifications in JupyterLab: an idle warning, a kernel that was shut down or waits for its slice, the user's jobs. */

import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import type { Event } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';

import type { Idle, JobNotification, WaitingKernel } from '@jupyter-gpu-quota/api';

const EVENTS = 'https://events.jupyter.org/jupyter_gpu_quota/';

type IdleStateName = Idle['state'];

interface IdleEvent {
  state: IdleStateName;
  message: string;
  keeps_left?: number;
}

interface WaitingEvent extends WaitingKernel {
  state: 'waiting' | 'ready' | 'refused' | 'given_up';
}

/** JupyterLab cuts the text of a notification here, and shows the rest nowhere. */
const MOST_CHARACTERS = 140;
/** Of the names in a sentence, so that the sentence is not cut. */
const MOST_OF_A_NAME = 40;

function shortened(name: string): string {
  return name.length > MOST_OF_A_NAME ? `${name.slice(0, MOST_OF_A_NAME - 1)}…` : name;
}

export interface NotificationActions {
  keep(): Promise<void>;
  openJob(id: string): void;
  /** The names of the open notebooks whose kernels were shut down. */
  stopped(): Promise<string[]>;
  /** Start the kernels of these notebooks. */
  restart(): Promise<void>;
  /** The idle state of this server has changed. */
  onIdle(): Promise<void>;
  onWaiting(event: WaitingEvent): void;
}

/** Shows the events of this server. One notification for each warning is updated with the warning. */
export class Notifications {
  private warning: string | null = null;

  constructor(
    private readonly trans: TranslationBundle,
    private readonly actions: NotificationActions,
  ) {}

  take(event: Event.Emission): void {
    if (event.schema_id === `${EVENTS}idle/v1`) {
      void this.idle(event as unknown as IdleEvent).catch(this.showError);
      this.actions.onIdle().catch(error => console.warn('jupyter-gpu-quota: the idle state cannot be read:', error));
    } else if (event.schema_id === `${EVENTS}kernel_waiting/v1`) {
      this.waiting(event as unknown as WaitingEvent);
    }
  }

  job({ job, kind }: JobNotification): void {
    const why = kind === 'started' || kind === 'resumed' || kind === 'retried' ? '' : job.reason?.message ?? '';
    const message = `${jobText(kind, shortened(job.name), this.trans)} ${why}`.trim(); // Open shows a reason that is cut.
    const actions = [{ label: this.trans.__('Open'), callback: () => this.actions.openJob(job.id) }];
    Notification.emit(message, kind === 'failed' ? 'error' : kind === 'succeeded' ? 'success' : 'info', {
      autoClose: kind === 'failed' ? false : 8_000,
      actions,
    });
  }

  private async idle({ state, message, keeps_left }: IdleEvent): Promise<void> {
    const { trans, actions } = this;
    if (state === 'in_use' || state === 'reported') {
      this.dismiss();
    } else if (state === 'warned') {
      const keep = { label: trans.__('Keep my GPU'), callback: () => void actions.keep() };
      this.show(warningText(Boolean(keeps_left), trans), keeps_left ? [keep] : []);
    } else {
      const names = state === 'freed' ? await actions.stopped() : [];
      const restart = { label: trans.__('Start New Kernel'), callback: () => void actions.restart().catch(this.showError) };
      this.show(names.length > 0 ? shutDownText(names, trans) : message, names.length > 0 ? [restart] : this.all(message));
    }
  }

  private show(message: string, actions: Notification.IAction[]): void {
    if (this.warning === null || !Notification.update({ id: this.warning, message, type: 'warning', actions, autoClose: false })) {
      this.warning = Notification.warning(message, { autoClose: false, actions });
    }
  }

  private dismiss(): void {
    if (this.warning !== null) {
      Notification.dismiss(this.warning);
      this.warning = null;
    }
  }

  private waiting(event: WaitingEvent): void {
    this.actions.onWaiting(event);
    if (event.state === 'waiting' || event.state === 'refused') {
      Notification.info(event.message, { autoClose: 10_000, actions: this.all(event.message) });
    }
  }

  private readonly showError = ({ message }: Error): void => void Notification.error(message, { actions: this.all(message) });

  /** A button that shows a text which is cut. */
  private all(body: string): Notification.IAction[] {
    const { trans } = this;
    const show = (): void =>
      void showDialog({ title: trans.__('GPU quota'), body, buttons: [Dialog.okButton({ label: trans.__('Close') })] });
    return body.length > MOST_CHARACTERS ? [{ label: trans.__('Show All'), callback: show }] : [];
  }
}

/** The countdown, and whether kernels are suspended, are in the sidebar. */
function warningText(mayKeep: boolean, trans: TranslationBundle): string {
  return mayKeep
    ? trans.__('Your GPU is idle. It is freed soon, and variables of its kernels may be lost. Run a cell, or keep it, to prevent that.')
    : trans.__('Your GPU is idle. It is freed soon, and variables of its kernels may be lost. Run a cell to prevent that.');
}

/** What became of the kernels of these notebooks. Each notebook says it, too. */
function shutDownText(names: readonly string[], trans: TranslationBundle): string {
  return names.length === 1
    ? trans.__('The kernel of %1 was shut down, because it did not use its GPU. Its variables are lost.', shortened(names[0]!))
    : trans.__('The kernels of %1 notebooks were shut down, because they did not use their GPU. Their variables are lost.', names.length);
}

function jobText(kind: JobNotification['kind'], name: string, trans: TranslationBundle): string {
  const texts: Record<JobNotification['kind'], string> = {
    started: trans.__('Job %1: started.', name),
    paused: trans.__('Job %1: paused.', name),
    resumed: trans.__('Job %1: resumed.', name),
    retried: trans.__('Job %1: retried.', name),
    succeeded: trans.__('Job %1: succeeded.', name),
    failed: trans.__('Job %1: failed.', name),
    cancelled: trans.__('Job %1: cancelled.', name),
  };
  return texts[kind];
}
