/** The parts that all pages have: the state, the banners, the message about an outcome. */

import { Component, useEffect, useMemo, useRef, useState, type ReactNode } from 'react';

import { MAX_JOBS, Model, type Ready } from '@jupyter-gpu-quota/api';
import { PanelContextProvider, useGpuState, usePanelContext, type PanelContext, type Translations } from '@jupyter-gpu-quota/components';

import { AuditPage } from './audit/AuditPage';
import { outputAddress, type Frame } from './frame';
import { JobPage } from './job/JobPage';
import { JobsPage } from './jobs/JobsPage';
import { OverviewPage } from './overview/OverviewPage';
import { ColourProvider, coloursOf } from './pieces';
import { MyQuotaPage } from './quota/MyQuotaPage';
import { QuotaPage } from './quota/QuotaPage';
import { useTheme } from './theme-state';
import { pageTransport } from './transport';
import { UsagePage } from './usage/UsagePage';

const TOAST_MS = 6_000;
const READY_EVERY_MS = 30_000;

const UNTRANSLATED: Translations = {
  __: (message, ...args) => message.replace(/%(\d)/g, (_, at: string) => String(args[Number(at) - 1])),
  _n: (one, many, count, ...args) => UNTRANSLATED.__(count === 1 ? one : many, count, ...args),
};

export function App({ frame }: { frame: Frame }): JSX.Element {
  const [said, say] = useSaid();
  const context = useMemo((): PanelContext => {
    const model = new Model(pageTransport(frame), undefined, frame.page === 'my-quota' ? MAX_JOBS : 0);
    void model.start();
    const openJob = (id: string): void => window.location.assign(`${frame.prefix}jobs/${encodeURIComponent(id)}`);
    return {
      model,
      say,
      inPlace: true,
      trans: UNTRANSLATED,
      openJob,
      onSubmitted: job => openJob(job.id),
      download: (job, path) => window.location.assign(outputAddress(frame, job, path)),
      confirm: (title, body) => Promise.resolve(window.confirm(`${title}\n${body}`)),
    };
  }, [frame, say]);
  const theme = useTheme();
  const themed = useMemo(() => ({ ...context, theme }), [context, theme]);
  return (
    <PanelContextProvider value={themed}>
      <Banners />
      <Failures>
        <Colours>
          <Content frame={frame} />
        </Colours>
      </Failures>
      <p className="toast" id="said" role="status" aria-live="polite">
        {said}
      </p>
    </PanelContextProvider>
  );
}

function Content({ frame }: { frame: Frame }): JSX.Element {
  if (frame.page === 'job') {
    return <JobPage frame={frame} />; // Its heading is the name of the job.
  }
  const pages: Record<string, JSX.Element> = {
    overview: <OverviewPage prefix={frame.prefix} />,
    jobs: <JobsPage user={frame.user} prefix={frame.prefix} />,
    'my-quota': <MyQuotaPage user={frame.user} prefix={frame.prefix} />,
    quota: <QuotaPage />,
    usage: <UsagePage frame={frame} />,
    audit: <AuditPage />,
  };
  return (
    <>
      <h1>{frame.title}</h1>
      {pages[frame.page]}
    </>
  );
}

function useSaid(): [string, (message: string) => void] {
  const [said, setSaid] = useState('');
  const timer = useRef<ReturnType<typeof setTimeout>>();
  const say = useMemo(
    () => (message: string) => {
      setSaid(message);
      clearTimeout(timer.current);
      timer.current = setTimeout(() => setSaid(''), TOAST_MS);
    },
    [],
  );
  return [said, say];
}

function Colours({ children }: { children: ReactNode }): JSX.Element {
  const { projects } = useGpuState();
  const names = projects.map(project => project.name).join(' ');
  const colours = useMemo(() => coloursOf(projects), [names]);
  return <ColourProvider value={colours}>{children}</ColourProvider>;
}

function Banners(): JSX.Element {
  const { connection, message } = useGpuState();
  const ready = useReady();
  return (
    <>
      {ready && !ready.ready && (
        <p className="banner bad" id="banner-ready" role="status">
          <strong>The service is not ready.</strong> {ready.message}
        </p>
      )}
      {connection === 'unavailable' && (
        <p className="banner warn" id="banner-stream" role="status">
          {message} <button onClick={() => window.location.reload()}>Try again</button>
        </p>
      )}
    </>
  );
}

function useReady(): Ready | null {
  const { model } = usePanelContext();
  const [ready, setReady] = useState<Ready | null>(null);
  useEffect(() => {
    const read = (): void => {
      if (!document.hidden) {
        model.transport.service.ready().then(setReady, () => undefined); // The stream shows whether the service is there.
      }
    };
    read();
    const timer = setInterval(read, READY_EVERY_MS);
    return () => clearInterval(timer);
  }, [model]);
  return ready;
}

/** An error of the page itself: said so, instead of an empty page. */
class Failures extends Component<{ children: ReactNode }, { message: string }> {
  override state = { message: '' };

  static getDerivedStateFromError(error: unknown): { message: string } {
    return { message: error instanceof Error ? error.message : String(error) };
  }

  override render(): ReactNode {
    return this.state.message ? (
      <div className="banner bad" role="alert">
        <p>This page failed: {this.state.message}. Load it again; if that repeats, report the message to an admin.</p>
        <button onClick={() => window.location.reload()}>Try again</button>
      </div>
    ) : (
      this.props.children
    );
  }
}
