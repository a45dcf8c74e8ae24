/** Notifications in JupyterLab: an idle warning, a kernel that was shut down or waits for its slice, the user's jobs. */

import { Notification } from '@jupyterlab/apputils';
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

function showError(error: Error): void {
  Notification.error(error.message);
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
      void this.idle(event as unknown as IdleEvent).catch(showError);
      this.actions.onIdle().catch(error => console.warn('jupyter-gpu-quota: the idle state cannot be read:', error));
    } else if (event.schema_id === `${EVENTS}kernel_waiting/v1`) {
      this.waiting(event as unknown as WaitingEvent);
    }
  }

  job({ job, kind }: JobNotification): void {
    const why = kind === 'started' || kind === 'resumed' || kind === 'retried' ? '' : job.reason?.message ?? '';
    const message = `${this.trans.__('Job %1: %2.', job.name, this.trans.__(kind))} ${why}`.trim();
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
      this.show(message, keeps_left ? [keep] : []);
    } else {
      const names = state === 'freed' ? await actions.stopped() : [];
      const restart = { label: trans.__('Start New Kernel'), callback: () => void actions.restart().catch(showError) };
      // Lab cuts a notification at 140 characters.
      const why = trans.__('The kernel of %1 was shut down, because it did not use its GPU. Its variables are lost.', names.join(', '));
      this.show(names.length > 0 ? why : message, names.length > 0 ? [restart] : []);
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
      Notification.info(event.message, { autoClose: 10_000 });
    }
  }
}
