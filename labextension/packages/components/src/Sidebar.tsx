/** The sidebar: my share, my projects, submit, jobs. */

import { useEffect, useLayoutEffect, useRef, useState, type ReactNode } from 'react';

import { useGpuState, useTrans } from './context';
import type { DraftStore } from './submit/draft';
import { JobList } from './JobList';
import { JobPanel } from './job/JobPanel';
import { ProjectCards } from './share/ProjectCard';
import { ShareCard } from './share/ShareCard';
import { SubmitForm } from './submit/SubmitForm';

export interface SidebarProps {
  drafts: DraftStore;
  /** The job that is shown instead of the list. */
  job: string | null;
  /** How often the form was asked for; with each time it is opened, and its command gets the focus. */
  formFocused: number;
  onBack(): void;
}

export function Sidebar({ drafts, job, formFocused, onBack }: SidebarProps): JSX.Element {
  const trans = useTrans();
  const { connection, message, releases } = useGpuState();
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
      {connection === 'loading' && <p className="jgq-quiet">{trans.__('Loading…')}</p>}
      {connection === 'unavailable' && (
        <p className="jgq-error" role="alert">
          {message}
        </p>
      )}
      {releases !== null && releases.server !== releases.service && (
        <p className="jgq-note" role="status">
          {trans.__(
            'This server has release %1 of jupyter-gpu-quota, the GPU service has %2. Reading works; an action may be refused until the server is restarted with that release.',
            releases.server,
            releases.service,
          )}
        </p>
      )}
      {job !== null && <JobPanel id={job} onBack={onBack} />}
      <Kept shown={job === null}>
        <Section name="share" title={trans.__('My share')}>
          <ShareCard />
        </Section>
        <Section name="project" title={trans.__('My project')}>
          <ProjectCards />
        </Section>
        <Section name="submit" title={trans.__('Submit')} opened={formFocused}>
          <SubmitForm drafts={drafts} focused={formFocused} />
        </Section>
        <Section name="jobs" title={trans.__('Jobs')}>
          <JobList />
        </Section>
      </Kept>
    </div>
  );
}

/**
 * Hidden while a job is shown, so that an upload can be cancelled, and a refusal, the filter and the selection stay. Then the
 * element that had the focus gets it again, or the list of jobs.
 */
function Kept({ shown, children }: { shown: boolean; children: ReactNode }): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const focused = useRef<HTMLElement | null>(null);
  const wasShown = useRef(shown);
  useLayoutEffect(() => {
    if (shown && !wasShown.current) {
      const before = focused.current?.isConnected ? focused.current : box.current?.querySelector<HTMLElement>('#jgq-jobs-scroll');
      before?.focus();
    }
    wasShown.current = shown;
  }, [shown]);
  return (
    <div ref={box} hidden={!shown} onFocus={event => (focused.current = event.target)}>
      {children}
    </div>
  );
}

interface SectionProps {
  name: string;
  title: string;
  /** How often something asked to open it. */
  opened?: number;
  children: ReactNode;
}

function Section({ name, title, opened = 0, children }: SectionProps): JSX.Element {
  const key = `jupyter-gpu-quota:closed:${name}`;
  const [open, setOpen] = useState(() => isOpen(key));
  useEffect(() => {
    if (opened > 0) {
      setOpen(true);
    }
  }, [opened]);
  useEffect(() => {
    keepOpen(key, open);
  }, [key, open]);
  return (
    <details className="jgq-section" open={open} onToggle={event => setOpen(event.currentTarget.open)}>
      <summary id={`jgq-heading-${name}`}>
        <h3>{title}</h3>
      </summary>
      {children}
    </details>
  );
}

function isOpen(key: string): boolean {
  try {
    return window.localStorage.getItem(key) === null;
  } catch {
    return true; // The storage is blocked.
  }
}

function keepOpen(key: string, open: boolean): void {
  try {
    open ? window.localStorage.removeItem(key) : window.localStorage.setItem(key, '1');
  } catch {
    // The storage is full or blocked: it lasts until the page is closed.
  }
}
