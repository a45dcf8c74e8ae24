/** A button that removes the outputs of a job that has ended, and reads them until they are gone. */

import { useEffect, useState } from 'react';

import { ENDED, mayChange, type Job } from '@jupyter-gpu-quota/api';

import { ActionButton } from '../ActionButton';
import { useAction, useGpuState, usePanelContext } from '../context';
import { ErrorText } from '../ErrorText';

const READ_AGAIN_MS = 1_000;

export function RemoveOutputs({ job, again }: { job: Job; again(): void }): JSX.Element | null {
  const { model, trans, confirm } = usePanelContext();
  const { me } = useGpuState();
  const { busy, error, run } = useAction();
  const [removing, setRemoving] = useState(false);
  useEffect(() => {
    const timer = removing ? setInterval(() => document.hidden || again(), READ_AGAIN_MS) : undefined;
    return () => clearInterval(timer);
  }, [removing, again]);
  if (!ENDED.has(job.state) || !mayChange(me, job)) {
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
      <ActionButton id="jgq-remove-outputs" className="jgq-danger" busy={busy || removing} onClick={() => void run(remove)}>
        {removing ? trans.__('Removing…') : trans.__('Remove outputs')}
      </ActionButton>
      <ErrorText error={error} />
    </div>
  );
}
