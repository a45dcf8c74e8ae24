/** Small parts of all pages. */

import { createContext, useContext, type ReactNode } from 'react';

import type { Project } from '@jupyter-gpu-quota/api';
import { gpus, useClock } from '@jupyter-gpu-quota/components';

import { relativeTime } from './amounts';

/** A sign for each state, so that states differ not only by colour. */
const SIGNS: Record<string, string> = {
  queued: '○', starting: '◔', running: '●', pausing: '◑', paused: '❙❙', held: '■',
  succeeded: '✓', failed: '✕', cancelled: '–', requested: '○', booked: '●', offered: '◔', lent: '◐',
  refused: '✕', returned: '–', stopped: '■',
};

export function StateTag({ state }: { state: string }): JSX.Element {
  return (
    <span className={`state s-${state}`}>
      <span aria-hidden="true">{SIGNS[state] ?? ''}</span> {state}
    </span>
  );
}

export const Quiet = ({ children }: { children: ReactNode }): JSX.Element => <span className="muted">{children}</span>;

export const Under = ({ children }: { children: ReactNode }): JSX.Element => <div className="under">{children}</div>;

interface ExplainedProps {
  why: string | null | undefined;
  children: ReactNode;
}

/** Words whose explanation unfolds below them: only a mouse would find a tooltip. */
export const Explained = ({ why, children }: ExplainedProps): JSX.Element =>
  why ? (
    <details className="explained">
      <summary>{children}</summary>
      {why}
    </details>
  ) : (
    <Quiet>{children}</Quiet>
  );

export const Simulated = (): JSX.Element => <span className="tag">simulated</span>;

/** An instant as a relative time, with the local time as its title. */
export function When({ at }: { at: string | null | undefined }): JSX.Element {
  const now = useClock(15_000);
  if (!at) {
    return <Quiet>–</Quiet>;
  }
  const then = new Date(at);
  return (
    <time dateTime={at} title={then.toLocaleString()}>
      {relativeTime(then, new Date(now))}
    </time>
  );
}

interface Used {
  readonly utilised_milli?: number | null;
  readonly utilised_unknown?: string | null;
}

/** The use by the newest readings; unknown is not 0. */
export function Utilised({ of }: { of: Used }): JSX.Element {
  if (of.utilised_milli != null) {
    return <>{gpus(of.utilised_milli)}</>;
  }
  return of.utilised_unknown ? <Explained why={of.utilised_unknown}>unknown</Explained> : <Quiet>–</Quiet>;
}

interface Enforced {
  readonly enforcement?: { memory: string; compute: string; why?: string | null } | null;
}

export function Enforcement({ of }: { of: Enforced }): JSX.Element | null {
  const found = of.enforcement;
  if (!found) {
    return null;
  }
  const text = `memory ${found.memory}, compute ${found.compute}`;
  return found.why ? <Explained why={found.why}>{text}</Explained> : <>{text}</>;
}

const COLOURS = 8;
const ColourContext = createContext<ReadonlyMap<string, string>>(new Map());
export const ColourProvider = ColourContext.Provider;

/** A colour for each project by its position in the quota file, for every reader the same: the first eight all differ. */
export function coloursOf(projects: readonly Project[]): Map<string, string> {
  return new Map(projects.map((project, at) => [project.name, `c${(project.position ?? at) % COLOURS}`]));
}

/** The class of a project's colour; work that is not visible, and removed projects, have the class `other`. */
export function useColours(): (project: string | null | undefined) => string {
  const colours = useContext(ColourContext);
  return project => colours.get(project ?? '') ?? 'other';
}

export function Swatch({ project }: { project: string | null | undefined }): JSX.Element {
  return (
    <svg className="swatch" viewBox="0 0 10 10" aria-hidden="true">
      <rect className={`fill ${useColours()(project)}`} width="10" height="10" rx="2" />
    </svg>
  );
}

export function Meter({ used, of }: { used: number; of: number }): JSX.Element {
  return (
    <svg className="meter" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">
      <rect className="track" width="1000" height="10" />
      <rect className="level" width={of ? Math.min(1000, Math.floor((1000 * used) / of)) : 0} height="10" />
    </svg>
  );
}

export function plural(count: number, one: string, many: string): string {
  return `${count.toLocaleString('en')} ${count === 1 ? one : many}`;
}
