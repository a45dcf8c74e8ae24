/** The sidebar: my share, my projects, submit, jobs. */

import { useEffect, useState, type ReactNode } from 'react';

import { useGpuState, useTrans } from './context';
import type { DraftStore } from './draft';
import { JobList } from './JobList';
import { JobPanel } from './JobPanel';
import { ProjectCards } from './ProjectCard';
import { ShareCard } from './ShareCard';
import { SubmitForm } from './SubmitForm';

export interface SidebarProps {
  drafts: DraftStore;
  /** The job that is shown instead of the list. */
  job: string | null;
  onBack(): void;
}

export function Sidebar({ drafts, job, onBack }: SidebarProps): JSX.Element {
  const trans = useTrans();
  const { connection, message } = useGpuState();
  if (connection === 'none') {
    return (
      <div className="jgq-sidebar">
        <p className="jgq-quiet">
          {trans.__('The GPU service is not configured for this server. Start the server from a JupyterHub whose configuration calls setup_gpu_quota(c).')}
        </p>
      </div>
    );
  }
  return (
    <div className="jgq-sidebar">
      {connection === 'loading' && <p className="jgq-quiet">{trans.__('Loading …')}</p>}
      {connection === 'unavailable' && (
        <p className="jgq-error" role="alert">
          {message}
        </p>
      )}
      {job !== null ? (
        <JobPanel id={job} onBack={onBack} />
      ) : (
        <>
          <Section name="share" title={trans.__('My share')}>
            <ShareCard />
          </Section>
          <Section name="project" title={trans.__('My project')}>
            <ProjectCards />
          </Section>
          <Section name="submit" title={trans.__('Submit')}>
            <SubmitForm drafts={drafts} />
          </Section>
          <Section name="jobs" title={trans.__('Jobs')}>
            <JobList />
          </Section>
        </>
      )}
    </div>
  );
}

function Section({ name, title, children }: { name: string; title: string; children: ReactNode }): JSX.Element {
  const key = `jupyter-gpu-quota:closed:${name}`;
  const [open, setOpen] = useState(() => window.localStorage.getItem(key) === null);
  useEffect(() => {
    open ? window.localStorage.removeItem(key) : window.localStorage.setItem(key, '1');
  }, [key, open]);
  return (
    <details className="jgq-section" open={open} onToggle={event => setOpen(event.currentTarget.open)}>
      <summary>
        <h3>{title}</h3>
      </summary>
      {children}
    </details>
  );
}
