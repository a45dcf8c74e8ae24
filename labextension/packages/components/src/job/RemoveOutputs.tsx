/** A button that removes the outputs of a job that has ended, and reads them until they are gone. */

import { useEffect, useState } from 'react';

import { ENDED, mayChange, type Job } from '@jupyter-gpu-quota/api';

import { ActionButton } from '../ActionButton';
import { useAction, useGpuState, usePanelContext } from '../context';
import { ErrorText } from '../ErrorText';

const READ_AGAIN_MS = 1_000;

export interface RemoveOutputsProps {
  job: Job;
  /** How many are left. */
  left: number;
  /** Read them again. */
  again(): void;
  /** The element that gets the focus when they are gone. */
  after(): HTMLElement | null;
}

export function RemoveOutputs({ job, left, again, after }: RemoveOutputsProps): JSX.Element | null {
  const { model, trans, confirm, say } = usePanelContext();
  const { me } = useGpuState();
  const { busy, error, run } = useAction();
  const [removing, setRemoving] = useState(false);
  useEffect(() => {
    const timer = removing ? setInterval(() => document.hidden || again(), READ_AGAIN_MS) : undefined;
    return () => clearInterval(timer);
  }, [removing, again]);
  useEffect(() => {
    if (removing && left === 0) {
      setRemoving(false);
      say?.(trans.__('The outputs are removed.'));
    }
  }, [removing, left, say, trans]);
  if (left === 0 || !ENDED.has(job.state) || !mayChange(me, job)) {
    return null;
  }
  const remove = async (): Promise<void> => {
    if (await confirm(trans.__('Remove the outputs of %1?', job.name), trans.__('The files are deleted. The log of the job stays.'), trans.__('Remove outputs'))) {
      await model.transport.service.removeOutputs(job.id);
      setRemoving(true);
    }
  };
  return (
    <div className="jgq-row">
      <ActionButton id="jgq-remove-outputs" className="jgq-danger" busy={busy || removing} after={after} onClick={() => void run(remove)}>
        {removing ? trans.__('Removing…') : trans.__('Remove outputs')}
      </ActionButton>
      <ErrorText error={error} />
    </div>
  );
}
