/**
 * In a notebook whose kernel was shut down to free its GPU: what happened, and a button that starts one, until a kernel runs again. After a
 * reload of the page, where JupyterLab starts a new kernel or asks for one, it is shown until it is closed.
 */

import { ReactWidget, type ISessionContext, type ISessionContextDialogs } from '@jupyterlab/apputils';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import { useEffect, useRef } from 'react';

import type { ShutDownKernel } from '@jupyter-gpu-quota/api';
import { ActionButton, duration, ErrorText, localTime, useAction } from '@jupyter-gpu-quota/components';

import type { KernelMemory } from './kernel-memory';

/** Watches the notebooks. JupyterLab detects the end of a kernel, and the Jupyter server knows the cause. */
export class StoppedNotebooks {
  /** The newest kernel of each notebook, by id. */
  private readonly kernels = new Map<NotebookPanel, string>();
  private readonly banners = new Map<NotebookPanel, StoppedBanner>();
  /** The notebooks that had a kernel before the page was loaded, and have not said what became of it. */
  private readonly earlier = new Set<NotebookPanel>();

  constructor(
    notebooks: INotebookTracker,
    private readonly read: () => Promise<readonly ShutDownKernel[]>,
    private readonly dialogs: ISessionContextDialogs,
    private readonly memory: KernelMemory,
    private readonly trans: TranslationBundle,
  ) {
    notebooks.forEach(panel => this.watch(panel));
    notebooks.widgetAdded.connect((_, panel) => this.watch(panel));
  }

  /** Show a banner in each notebook whose newest kernel was shut down; returns their names. */
  async check(): Promise<string[]> {
    const shutDown = await this.shutDown();
    for (const [panel, found] of shutDown) {
      if (this.banners.get(panel)?.kernel !== found.kernel) {
        const run = (): Promise<void> => this.restart(panel.sessionContext);
        const restart = { label: this.trans.__('Start New Kernel'), run, after: () => focusedIn(panel) };
        this.forget(panel);
        this.show(panel, new StoppedBanner(found, restart, this.trans));
      }
    }
    return [...shutDown.keys()].map(panel => panel.title.label);
  }

  /** Start a kernel in each notebook whose newest kernel was shut down, and in no other. */
  async restartAll(): Promise<void> {
    for (const { sessionContext } of (await this.shutDown()).keys()) {
      await this.restart(sessionContext);
    }
  }

  private async shutDown(): Promise<Map<NotebookPanel, ShutDownKernel>> {
    const shutDown = await this.read();
    const newest = [...this.kernels].map(([panel, kernel]) => [panel, shutDown.find(one => one.kernel === kernel)] as const);
    return new Map(newest.filter((pair): pair is [NotebookPanel, ShutDownKernel] => pair[1] !== undefined));
  }

  private async restart(context: ISessionContext): Promise<void> {
    await context.shutdown().catch(() => undefined); // The kernel is gone already.
    await this.dialogs.restart(context);
  }

  private show(panel: NotebookPanel, banner: StoppedBanner): void {
    this.banners.set(panel, banner);
    panel.contentHeader.addWidget(banner);
  }

  private hide(panel: NotebookPanel): void {
    this.banners.get(panel)?.dispose();
    this.banners.delete(panel);
  }

  /** The kernel before a load of the page: if it was shut down, the notebook says so until that is closed. */
  private async showEarlier(panel: NotebookPanel, before: string): Promise<void> {
    const found = (await this.read()).find(one => one.kernel === before);
    if (found === undefined) {
      this.forget(panel);
    } else if (!panel.isDisposed && this.earlier.has(panel) && !this.banners.has(panel)) {
      const run = (): Promise<void> => Promise.resolve(this.forget(panel));
      const close = { label: this.trans.__('Close'), run, after: () => focusedIn(panel) };
      this.show(panel, new StoppedBanner(found, close, this.trans));
    }
  }

  /** The present kernel of the notebook is the one that a later load of the page asks about. */
  private forget(panel: NotebookPanel): void {
    this.earlier.delete(panel);
    this.hide(panel);
    this.memory.remember(panel.context.path, this.kernels.get(panel));
  }

  private watch(panel: NotebookPanel): void {
    const { sessionContext } = panel;
    const failed = (error: unknown): void => console.warn('jupyter-gpu-quota: the cause of a shutdown cannot be read:', error);
    const before = this.memory.kernelOf(panel.context.path);
    if (before !== null) {
      this.earlier.add(panel);
      this.showEarlier(panel, before).catch(failed);
    }
    const look = (): void => {
      const kernel = sessionContext.session?.kernel;
      if (kernel && kernel.status !== 'dead' && kernel.id !== this.kernels.get(panel)) {
        const isFirst = !this.kernels.has(panel);
        this.kernels.set(panel, kernel.id);
        if (!isFirst || !this.earlier.has(panel)) {
          this.forget(panel);
        }
      } else if (!kernel || kernel.status === 'dead') {
        this.check().catch(failed);
      }
    };
    sessionContext.kernelChanged.connect(look);
    sessionContext.sessionChanged.connect(look);
    sessionContext.statusChanged.connect(look);
    panel.disposed.connect(() => {
      this.kernels.delete(panel);
      this.banners.delete(panel);
      this.earlier.delete(panel);
    });
  }
}

/** The element of a notebook that gets the focus. */
function focusedIn({ content }: NotebookPanel): HTMLElement {
  return content.activeCell?.node ?? content.node;
}

class StoppedBanner extends ReactWidget {
  private readonly at: string;

  constructor(
    private readonly shutDown: ShutDownKernel,
    private readonly action: Action,
    private readonly trans: TranslationBundle,
  ) {
    super();
    this.at = new Date(Date.now() - shutDown.shut_down_ms).toISOString();
    this.addClass('jgq-stopped');
    this.node.setAttribute('role', 'status'); // It is in the page before its text, so that screen readers announce the text.
  }

  get kernel(): string {
    return this.shutDown.kernel;
  }

  protected override render(): JSX.Element {
    return <Stopped shutDown={this.shutDown} at={this.at} action={this.action} trans={this.trans} onHeight={this.setHeight} />;
  }

  /** Lab's layout gives a widget its minimum height; here it depends on how the text wraps. */
  private readonly setHeight = (px: number): void => {
    this.node.style.minHeight = `${px}px`;
    this.parent?.fit();
  };
}

/** What the button of a banner does. */
interface Action {
  readonly label: string;
  readonly run: () => Promise<void>;
  /** The element that gets the focus when the banner is removed. */
  readonly after: () => HTMLElement;
}

interface StoppedProps {
  shutDown: ShutDownKernel;
  at: string;
  action: Action;
  trans: TranslationBundle;
  onHeight(px: number): void;
}

function Stopped({ shutDown, at, action, trans, onHeight }: StoppedProps): JSX.Element {
  const { busy, error, run } = useAction();
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const observer = new ResizeObserver(() => onHeight(box.current?.offsetHeight ?? 0));
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, [onHeight]);
  const time = localTime(at, Date.now());
  const why =
    shutDown.message ||
    trans.__('It had not been used for %1, and its GPU was not in use. Its variables are lost.', duration(shutDown.unused_ms ?? 0));
  return (
    <div className="jgq-stopped-box" ref={box}>
      <p>
        <b>{trans.__('The kernel of this notebook was shut down at %1.', time)}</b> {why}
      </p>
      <ActionButton busy={busy} after={action.after} onClick={() => void run(action.run)}>
        {action.label}
      </ActionButton>
      <ErrorText error={error} />
    </div>
  );
}
