/** One job with its ranks and the explanation of its state, kept up to date by the stream. */

import { useEffect, useState } from 'react';

import { ServiceError, WAITING, whenSeen, type Explanation, type JobDetail } from '@jupyter-gpu-quota/api';
import { usePanelContext } from '@jupyter-gpu-quota/components';

const READ_AFTER_MS = 300;
/** What would start a waiting job changes without an event of that job. */
const EXPLAIN_EVERY_MS = 15_000;

export interface Detail {
  readonly job: JobDetail | null;
  readonly explanation: Explanation | null;
  /** Why the job cannot be shown any more. */
  readonly refusal: string;
}

export function useDetail(id: string): Detail {
  const { model } = usePanelContext();
  const [detail, setDetail] = useState<Detail>({ job: null, explanation: null, refusal: '' });
  useEffect(() => {
    const { service } = model.transport;
    let ended = false;
    let stop: (() => void) | undefined;
    const read = async (): Promise<void> => {
      try {
        const [job, explanation] = await Promise.all([service.job(id), service.explain(id)]);
        if (!ended) {
          setDetail({ job, explanation, refusal: '' });
        }
      } catch (error) {
        if (error instanceof ServiceError && (error.status === 403 || error.status === 404)) {
          end();
          setDetail({ job: null, explanation: null, refusal: 'This job no longer exists, or you may not see it now.' });
        }
      }
    };
    const soon = (): void => {
      stop ??= whenSeen(() => {
        stop = undefined;
        void read();
      }, READ_AFTER_MS);
    };
    const unsubscribe = model.subscribeToChanges(change => {
      const changed = change?.jobs.find(job => job.id === id);
      if (changed) {
        setDetail(before => (before.job ? { ...before, job: { ...before.job, ...changed } } : before));
      }
      if (change === null || changed) {
        soon();
      }
    });
    const timer = setInterval(() => {
      setDetail(before => {
        if (before.job && WAITING.has(before.job.state) && !document.hidden) {
          soon();
        }
        return before;
      });
    }, EXPLAIN_EVERY_MS);
    const end = (): void => {
      ended = true;
      unsubscribe();
      clearInterval(timer);
      stop?.();
    };
    void read();
    return end;
  }, [model, id]);
  return detail;
}
