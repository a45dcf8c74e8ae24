/** The notebook's own slice of a GPU: its size and use, how it is enforced, and the countdown while it is idle. */

import type { Countdown, Notebook, WaitingKernel } from '@jupyter-gpu-quota/api';

import { duration, gpus, mebibytes } from './amounts';
import { useAction, useGpuState, useNow, usePanelContext, useTrans } from './context';
import { ErrorText } from './ErrorText';
import { QuotaBar } from './QuotaBar';

export function ShareCard(): JSX.Element {
  const state = useGpuState();
  const trans = useTrans();
  if (state.me === null) {
    return <p className="jgq-quiet">{trans.__('Loading…')}</p>;
  }
  if (state.notebookId === null) {
    return <p className="jgq-quiet">{trans.__('This server was started without a GPU. Restart it from the hub to choose one.')}</p>;
  }
  return (
    <>
      {state.notebook && <Slice notebook={state.notebook} />}
      {state.countdown && <IdleWarning countdown={state.countdown} />}
      {state.waiting.map(one => (
        <Waiting key={one.kernel} waiting={one} />
      ))}
    </>
  );
}

function Slice({ notebook }: { notebook: Notebook }): JSX.Element {
  const trans = useTrans();
  const memory = notebook.allocations.reduce((sum, part) => sum + part.memory_mib, 0);
  const used = notebook.utilised_milli;
  const label =
    used == null
      ? trans.__('Use unknown: %1', notebook.utilised_unknown ?? trans.__('no measurement yet'))
      : trans.__('%1 of %2 GPU in use', gpus(used), gpus(notebook.gpu_milli));
  return (
    <>
      <p className="jgq-figures">
        <b>{gpus(notebook.gpu_milli)}</b> GPU
        {memory > 0 && <span> · {mebibytes(memory)}</span>}
        <span className="jgq-quiet"> · {notebook.pool}</span>
        {notebook.simulated && <span className="jgq-tag">{trans.__('simulated')}</span>}
      </p>
      <QuotaBar parts={[{ milli: used ?? 0, kind: 'notebook' }]} quotaMilli={notebook.gpu_milli} label={label} />
      <p className="jgq-quiet">{label}</p>
      {notebook.reason && notebook.state !== 'booked' && <p>{notebook.reason.message}</p>}
      {notebook.warning && <p className="jgq-warn">{notebook.warning}</p>}
      {notebook.enforcement && (
        <p className="jgq-quiet" title={notebook.enforcement.why ?? ''}>
          {trans.__('Enforced: memory %1, compute %2', notebook.enforcement.memory, notebook.enforcement.compute)}
        </p>
      )}
    </>
  );
}

function IdleWarning({ countdown }: { countdown: Countdown }): JSX.Element | null {
  const { model } = usePanelContext();
  const trans = useTrans();
  const now = useNow(1_000);
  const { busy, error, run } = useAction();
  const { idle, freeAt } = countdown;
  if (idle.stage === 'in_use') {
    return null;
  }
  return (
    <div className={idle.stage === 'warned' ? 'jgq-note jgq-warn' : 'jgq-note'}>
      <p role="status">{idle.message}</p>
      {freeAt !== null && (
        <p>
          <b className="jgq-countdown" role="timer">{duration(freeAt - now)}</b>{' '}
          {idle.keeps_left > 0 && (
            <button className="jgq-button" disabled={busy} onClick={() => void run(() => model.keep())}>
              {trans.__('Keep my GPU')}
            </button>
          )}
        </p>
      )}
      <ErrorText error={error} />
    </div>
  );
}

function Waiting({ waiting }: { waiting: WaitingKernel }): JSX.Element {
  const { model } = usePanelContext();
  const trans = useTrans();
  const { busy, error, run } = useAction();
  return (
    <div className="jgq-note" role="status">
      <p>{waiting.message}</p>
      <button className="jgq-button" disabled={busy} onClick={() => void run(() => model.cancelWait(waiting.kernel))}>
        {trans.__('Cancel the kernel start')}
      </button>
      <ErrorText error={error} />
    </div>
  );
}
