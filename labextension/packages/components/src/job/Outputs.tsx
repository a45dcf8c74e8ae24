/** The files that a job left in its outputs folder. */

import { useCallback, useEffect, useRef, useState } from 'react';

import type { Job, Output } from '@jupyter-gpu-quota/api';

import { bytes } from '../amounts';
import { usePanelContext, useTrans } from '../context';
import { ErrorText } from '../ErrorText';
import { RemoveOutputs } from './RemoveOutputs';

export interface FoundOutputs {
  readonly files: Output[];
  readonly total: number;
  readonly truncated: boolean;
}

/** The outputs, null before the first answer. With an `error` they are those of an earlier read. */
export function useOutputs(job: Job): { found: FoundOutputs | null; error: string; again(): void } {
  const { model } = usePanelContext();
  const [found, setFound] = useState<FoundOutputs | null>(null);
  const [error, setError] = useState('');
  const [reads, setReads] = useState(0);
  const again = useCallback(() => setReads(count => count + 1), []);
  const reader = useRef({ id: '', isDue: false, isReading: false });
  // One read at a time, and then one more if anything changed: listing thousands of files takes longer than a step of the job.
  const read = useCallback(async (): Promise<void> => {
    const one = reader.current;
    one.isDue = true;
    if (one.isReading) {
      return;
    }
    one.isReading = true;
    while (one.isDue) {
      one.isDue = false;
      const { id } = one;
      const answer = await model.transport.service.outputs(id).catch((failure: Error) => failure);
      if (id === one.id) {
        answer instanceof Error ? setError(answer.message) : (setFound(answer), setError(''));
      }
    }
    one.isReading = false;
  }, [model]);
  useEffect(() => {
    reader.current.id = job.id;
    void read();
  }, [read, job.id, job.state, job.progress?.done, reads]);
  useEffect(() => {
    const one = reader.current;
    return () => {
      one.id = '';
      one.isDue = false;
    };
  }, []);
  return { found, error, again };
}

export function Outputs({ job }: { job: Job }): JSX.Element {
  const { download } = usePanelContext();
  const trans = useTrans();
  const { found, error, again } = useOutputs(job);
  const files = found?.files ?? [];
  return (
    <>
      {(error !== '' || files.length > 0) && <h4>{trans.__('Outputs')}</h4>}
      <OutputsError error={error} again={again} />
      {files.length > 0 && (
        <ul className="jgq-outputs">
          {files.map(file => (
            <li key={file.path}>
              <button className="jgq-link" onClick={() => download(job.id, file.path)}>
                {file.path}
              </button>{' '}
              <span className="jgq-quiet">{bytes(file.size_bytes)}</span>
            </li>
          ))}
        </ul>
      )}
      <RemoveOutputs job={job} left={files.length} again={again} after={() => document.getElementById('jgq-job-title')} />
      {found && found.total > files.length && (
        <p className="jgq-quiet">{trans.__('Showing the first %1 of %2 files.', files.length, found.total)}</p>
      )}
    </>
  );
}

/** That the outputs could not be read, with a button that reads them again. */
export function OutputsError({ error, again }: { error: string; again(): void }): JSX.Element | null {
  const trans = useTrans();
  return error === '' ? null : (
    <div className="jgq-row">
      <ErrorText error={trans.__('The outputs could not be read: %1', error)} />
      <button className="jgq-button" type="button" onClick={again}>
        {trans.__('Try again')}
      </button>
    </div>
  );
}
