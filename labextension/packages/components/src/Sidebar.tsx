/** The sidebar: my share, my projects, submit, jobs. */

import { useEffect, useState, type ReactNode } from 'react';

import { useGpuState, useText } from './context';
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
  const text = useText();
  const { connection, message } = useGpuState();
  if (connection === 'none') {
    return (
      <div className="jgq-sidebar">
        <p className="jgq-quiet">
          {text('This server has no GPU service. It is there when JupyterHub starts the server and its configuration calls setup_gpu_quota(c).')}
        </p>
      </div>
    );
  }
  return (
    <div className="jgq-sidebar">
      {connection === 'loading' && <p className="jgq-quiet">{text('Loading …')}</p>}
      {connection === 'away' && (
        <p className="jgq-error" role="alert">
          {message}
        </p>
      )}
      {job !== null ? (
        <JobPanel id={job} onBack={onBack} />
      ) : (
        <>
          <Section title={text('My share')}>
            <ShareCard />
          </Section>
          <Section title={text('My project')}>
            <ProjectCards />
          </Section>
          <Section title={text('Submit')}>
            <SubmitForm drafts={drafts} />
          </Section>
          <Section title={text('Jobs')}>
            <JobList />
          </Section>
        </>
      )}
    </div>
  );
}

function Section({ title, children }: { title: string; children: ReactNode }): JSX.Element {
  const key = `jupyter-gpu-quota:closed:${title}`;
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
