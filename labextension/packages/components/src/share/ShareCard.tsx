/** The notebook's own slice of a GPU: its size and use, how it is enforced, and the countdown while it is idle. */

import { useEffect, useRef } from 'react';

import type { Countdown, Idle, Notebook, WaitingKernel } from '@jupyter-gpu-quota/api';

import { ActionButton } from '../ActionButton';
import { duration, gpus, mebibytes } from '../amounts';
import { useAction, useGpuState, useNow, usePanelContext, useTrans, type Translations } from '../context';
import { ErrorText } from '../ErrorText';
import { QuotaBar } from './QuotaBar';

export function ShareCard(): JSX.Element {
  const state = useGpuState();
  const trans = useTrans();
  if (state.me === null) {
    return <p className="jgq-quiet">{trans.__('Loading…')}</p>;
  }
  if (state.notebookId === null) {
    return (
      <p className="jgq-quiet">
        {trans.__('This server was started without a GPU. To choose a GPU, stop the server in File > Hub Control Panel, then start it again.')}
      </p>
    );
  }
  return (
    <>
      {state.notebook && <Slice notebook={state.notebook} />}
      {state.countdown && state.notebook?.state !== 'lent' && <IdleWarning countdown={state.countdown} />}
      {state.waiting.map(one => (
        <Waiting key={one.kernel} waiting={one} />
      ))}
    </>
  );
}

function Slice({ notebook }: { notebook: Notebook }): JSX.Element {
  const trans = useTrans();
  const used = notebook.utilised_milli;
  const label =
    used == null
      ? trans.__('GPU use unknown: %1', notebook.utilised_unknown ?? trans.__('no measurement yet'))
      : trans.__('%1 of %2 GPU in use', gpus(used), gpus(notebook.gpu_milli));
  return (
    <>
      <p className="jgq-figures">
        <b>{gpus(notebook.gpu_milli)} GPU</b> <span className="jgq-quiet">{trans.__('in pool %1', notebook.pool)}</span>
        {notebook.simulated && <span className="jgq-tag">{trans.__('simulated')}</span>}
      </p>
      <QuotaBar parts={[{ milli: used ?? 0, kind: 'notebook' }]} quotaMilli={notebook.gpu_milli} label={label} />
      <p className="jgq-quiet">{label}</p>
      <MemoryUse notebook={notebook} />
      {notebook.reason && notebook.state !== 'booked' && <p>{notebook.reason.message}</p>}
      {notebook.warning && (
        <p className="jgq-note jgq-warn" role="status">
          {notebook.warning}
        </p>
      )}
      {notebook.enforcement && <EnforcementText found={notebook.enforcement} />}
    </>
  );
}

function MemoryUse({ notebook }: { notebook: Notebook }): JSX.Element | null {
  const trans = useTrans();
  const memory = notebook.allocations.reduce((sum, part) => sum + part.memory_mib, 0);
  const used = notebook.memory_used_mib;
  if (memory === 0) {
    return null;
  }
  const label =
    used == null
      ? trans.__('%1 of GPU memory, use unknown', mebibytes(memory))
      : trans.__('%1 of %2 GPU memory in use', mebibytes(used), mebibytes(memory));
  return (
    <>
      {used != null && <QuotaBar parts={[{ milli: used, kind: 'notebook' }]} quotaMilli={memory} label={label} />}
      <p className="jgq-quiet">{label}</p>
    </>
  );
}

function EnforcementText({ found }: { found: NonNullable<Notebook['enforcement']> }): JSX.Element {
  const trans = useTrans();
  const text = trans.__('Memory limit: %1. Compute limit: %2.', limitText(found.memory, trans), limitText(found.compute, trans));
  return found.why ? (
    <details className="jgq-quiet">
      <summary>{text}</summary>
      <p>{found.why}</p>
    </details>
  ) : (
    <p className="jgq-quiet">{text}</p>
  );
}

/** An enforcement level in words, with the word of the API where one is known. */
function limitText(level: string, trans: Translations): string {
  const texts: Record<string, string> = {
    hardware: trans.__('by the hardware'),
    driver: trans.__('by the driver'),
    mps: trans.__('by MPS'),
    policed: trans.__('work above it is stopped'),
    cooperative: trans.__('cooperative, a setting of the framework'),
    none: trans.__('not enforced'),
  };
  return texts[level] ?? level;
}

/** The heading of the card, which gets the focus when a button of the card is removed. */
function heading(): HTMLElement | null {
  return document.getElementById('jgq-heading-share');
}

/** Announce the idle state when it changes; its message also changes with the time. */
function useAnnounced({ state, message }: Idle): void {
  const { say } = usePanelContext();
  const announced = useRef(state);
  useEffect(() => {
    if (state !== announced.current) {
      announced.current = state;
      state !== 'in_use' && say?.(message);
    }
  }, [state, message, say]);
}

function IdleWarning({ countdown }: { countdown: Countdown }): JSX.Element | null {
  const { model, say, trans } = usePanelContext();
  const now = useNow(1_000);
  const { busy, error, run } = useAction();
  const { idle, freeAt } = countdown;
  useAnnounced(idle);
  if (idle.state === 'in_use') {
    return null;
  }
  const keep = async (): Promise<void> => {
    const { message } = await model.keep();
    say?.(message);
  };
  return (
    <div className={freeAt === null ? 'jgq-note' : 'jgq-note jgq-warn'}>
      <p>{idle.message}</p>
      {freeAt !== null && (
        <p>
          <b className="jgq-countdown" role="timer">{duration(freeAt - now)}</b>{' '}
          {idle.keeps_left > 0 && (
            <ActionButton busy={busy} after={heading} onClick={() => void run(keep)}>
              {trans.__('Keep my GPU')}
            </ActionButton>
          )}
        </p>
      )}
      <ErrorText error={error} />
    </div>
  );
}

function Waiting({ waiting }: { waiting: WaitingKernel }): JSX.Element {
  const { model, say, trans } = usePanelContext();
  const { busy, error, run } = useAction();
  const cancel = async (): Promise<void> => {
    await model.cancelWait(waiting.kernel);
    say?.(trans.__('The kernel start is cancelled.'));
  };
  return (
    <div className="jgq-note" role="status">
      <p>{waiting.message}</p>
      <ActionButton busy={busy} after={heading} onClick={() => void run(cancel)}>
        {trans.__('Cancel the kernel start')}
      </ActionButton>
      <ErrorText error={error} />
    </div>
  );
}
