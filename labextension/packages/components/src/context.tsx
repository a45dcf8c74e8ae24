/** What every component needs: the model, and the translation of its texts. */

import { createContext, useContext, useEffect, useState, useSyncExternalStore } from 'react';

import type { Model, State } from '@jupyter-gpu-quota/api';

/** Translates a text; `%1`, `%2` are the arguments. */
export type Text = (message: string, ...given: unknown[]) => string;

export interface Surroundings {
  readonly model: Model;
  readonly text: Text;
  /** Open a job's own view, and a file among its outputs. */
  openJob(id: string): void;
  download(job: string, path: string): void;
  /** Ask before something that cannot be undone. */
  confirm(title: string, body: string, action: string): Promise<boolean>;
}

const Context = createContext<Surroundings | null>(null);
export const SurroundingsProvider = Context.Provider;

export function useSurroundings(): Surroundings {
  const found = useContext(Context);
  if (found === null) {
    throw new Error('SurroundingsProvider is missing');
  }
  return found;
}

export function useText(): Text {
  return useSurroundings().text;
}

export function useGpuState(): State {
  const { model } = useSurroundings();
  return useSyncExternalStore(model.subscribe, model.snapshot);
}

/** Date.now(), read again every `everyMs`. */
export function useNow(everyMs: number): number {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}

/** An action of a button: whether it is under way, and the reason of its failure. */
export function useAction(): { busy: boolean; error: string; run(action: () => Promise<unknown>): Promise<void> } {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState('');
  const run = async (action: () => Promise<unknown>): Promise<void> => {
    setBusy(true);
    setError('');
    try {
      await action();
    } catch (failure) {
      setError(failure instanceof Error ? failure.message : String(failure));
    } finally {
      setBusy(false);
    }
  };
  return { busy, error, run };
}
