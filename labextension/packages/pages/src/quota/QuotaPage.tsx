/** The quota file in force, its history, and for admins its editor. */

import { useCallback, useEffect, useState } from 'react';

import { mayApplyQuota, ServiceError, type Page, type Revision } from '@jupyter-gpu-quota/api';
import { ErrorText, useGpuState, usePanelContext } from '@jupyter-gpu-quota/components';

import { When } from '../pieces';
import type { Accepted } from './edit';
import { Editor } from './Editor';
import { History } from './History';

const REREAD_EVERY_MS = 15_000;

interface Quota {
  readonly current: Revision | null;
  readonly history: Page<Revision>;
}

export function QuotaPage(): JSX.Element {
  const { me } = useGpuState();
  const { quota, error, reread } = useQuota();
  const [accepted, setAccepted] = useState<Accepted>({ overcommit: false, removal: false, stops: false });
  if (quota === null || me === null) {
    return error ? <ErrorText error={error} /> : <p className="muted">Loading…</p>;
  }
  const { current, history } = quota;
  const mayApply = mayApplyQuota(me);
  return (
    <>
      <ErrorText error={error} />
      {current ? (
        <p className="lead">
          Revision {current.revision} is in force. {current.author} applied it <When at={current.at} />
          {current.comment && `: ${current.comment}`}.
        </p>
      ) : (
        <p className="lead">No quota file is in force yet.</p>
      )}
      {current && (current.in_force ?? []).length > 0 && (
        <section aria-labelledby="in-force-title" id="in-force">
          <h2 id="in-force-title">In force now</h2>
          <ul id="in-force-list">
            {current.in_force?.map(line => <li key={line}>{line}</li>)}
          </ul>
        </section>
      )}
      {mayApply ? (
        <Editor current={current} accepted={accepted} onAccept={setAccepted} reread={reread} />
      ) : (
        current && (
          <pre className="file" tabIndex={0} role="region" aria-label="The quota file in force">
            {current.text}
          </pre>
        )
      )}
      <section aria-labelledby="history-title" id="history">
        <h2 id="history-title">History</h2>
        <History history={history} current={current?.revision ?? 0} mayApply={mayApply} accepted={accepted} onReverted={reread} />
      </section>
    </>
  );
}

/** The file in force and its history, read again from time to time: another admin may edit. */
function useQuota(): { quota: Quota | null; error: string; reread: () => Promise<void> } {
  const { model } = usePanelContext();
  const [quota, setQuota] = useState<Quota | null>(null);
  const [error, setError] = useState('');
  const reread = useCallback(async () => {
    const { service } = model.transport;
    try {
      const [current, history] = await Promise.all([service.quota().catch(noneOf), service.revisions()]);
      setQuota({ current, history });
      setError('');
    } catch (failure) {
      setError((failure as Error).message);
    }
  }, [model]);
  useEffect(() => {
    void reread();
    const timer = setInterval(() => document.hidden || void reread(), REREAD_EVERY_MS);
    return () => clearInterval(timer);
  }, [reread]);
  return { quota, error, reread };
}

function noneOf(error: unknown): null {
  if (error instanceof ServiceError && error.status === 404) {
    return null; // No file is in force yet.
  }
  throw error;
}
