/** The model, the translations and the actions of the front end, for all components. */

import { createContext, useCallback, useContext, useEffect, useState, useSyncExternalStore } from 'react';

import type { Job, Model, State } from '@jupyter-gpu-quota/api';

/** The part of JupyterLab's TranslationBundle that components use; `%1`, `%2` are the arguments. */
export interface Translations {
  __(message: string, ...args: unknown[]): string;
  _n(singular: string, plural: string, count: number, ...args: unknown[]): string;
}

export interface PanelContext {
  readonly model: Model;
  readonly trans: Translations;
  /** Open the view of a job. */
  openJob(id: string): void;
  /** Open the job that the form has submitted; where another one is being read, say that it was submitted. */
  onSubmitted(job: Job): void;
  /** Download one of the outputs of a job. */
  download(job: string, path: string): void;
  /** Ask before something that cannot be undone. */
  confirm(title: string, body: string, action: string): Promise<boolean>;
  /** Jobs run in a folder of the user's home, or with a file that the browser sends: a page of the hub has no folder to pack. */
  readonly inPlace?: boolean;
  /** The name of the theme in force, if it can change: a canvas is drawn with its colours. */
  readonly theme?: string;
  /** Announce the outcome of an action, if the front end has a place for it. */
  say?(message: string): void;
}

const Context = createContext<PanelContext | null>(null);
export const PanelContextProvider = Context.Provider;

export function usePanelContext(): PanelContext {
  const found = useContext(Context);
  if (found === null) {
    throw new Error('PanelContextProvider is missing');
  }
  return found;
}

export function useTrans(): Translations {
  return usePanelContext().trans;
}

export function useGpuState(): State {
  const { model } = usePanelContext();
  return useSyncExternalStore(model.subscribe, model.snapshot);
}

/** Date.now(), read again every `everyMs`, as a dependency of effects. */
export function useNow(everyMs: number): number {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}

/** The present instant for ages on the screen: they are as new as what they stand beside, and drawn again every `everyMs`. */
export function useClock(everyMs: number): number {
  useNow(everyMs);
  return Date.now();
}

/** The action of a button: whether it is running, and the message of its failure. `run` is always the same function. */
export function useAction(): { busy: boolean; error: string; run(action: () => Promise<unknown>): Promise<void> } {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState('');
  const run = useCallback(async (action: () => Promise<unknown>): Promise<void> => {
    setBusy(true);
    setError('');
    try {
      await action();
    } catch (failure) {
      setError(failure instanceof Error ? failure.message : String(failure));
    } finally {
      setBusy(false);
    }
  }, []);
  return { busy, error, run };
}
