/** The job that a person is about to submit. It is kept in the browser, so that nothing typed is lost. */

import { parse } from 'shell-quote';

import type { JobRequest } from '@jupyter-gpu-quota/api';

export interface Draft {
  readonly command: string;
  /** The folder that is packed and sent, as a path of the file browser. */
  readonly folder: string;
  readonly project: string;
  readonly gpu: string;
  readonly pool: string;
  readonly environment: string;
  readonly name: string;
  readonly timeLimit: string;
  readonly priority: string;
  readonly nodes: string;
  readonly minNodes: string;
  readonly processes: string;
  readonly gpuModel: string;
  readonly retries: string;
  readonly preemptible: boolean;
  readonly isPrivate: boolean;
  readonly live: boolean;
  /** The same until the job is queued, so that a repeated submission queues no second job. */
  readonly key: string;
}

export const EMPTY_DRAFT: Draft = {
  command: '',
  folder: '',
  project: '',
  gpu: '1',
  pool: '',
  environment: '',
  name: '',
  timeLimit: '',
  priority: '',
  nodes: '',
  minNodes: '',
  processes: '',
  gpuModel: '',
  retries: '',
  preemptible: true,
  isPrivate: false,
  live: false,
  key: '',
};

/** What only a shell can run: variables, pipes, patterns, assignments, its own commands. */
const NEEDS_SHELL = /[`$~*?[\]{}|&;<>()\n\\]|^\s*(\w+=|(cd|export|source|\.)\s)/;

/** A command line as words; one that needs a shell is run by `sh -c`. */
export function words(command: string): string[] {
  if (NEEDS_SHELL.test(command)) {
    return ['sh', '-c', command];
  }
  return parse(command).filter((word): word is string => typeof word === 'string');
}

function count(text: string): number | undefined {
  const value = text.trim();
  return value === '' ? undefined : Number(value);
}

/** The request of a draft; null without a command. What is empty has the service's default. */
export function requestOf(draft: Draft): JobRequest | null {
  const command = words(draft.command.trim());
  if (command.length === 0) {
    return null;
  }
  const all = {
    command,
    gpu: draft.gpu.trim() || '1',
    project: draft.project || undefined,
    pool: draft.pool || undefined,
    environment: draft.environment || undefined,
    name: draft.name.trim() || undefined,
    time_limit: draft.timeLimit.trim() || undefined,
    priority: count(draft.priority),
    nodes: count(draft.nodes),
    min_nodes: count(draft.minNodes),
    processes: count(draft.processes),
    gpu_model: draft.gpuModel.trim() || undefined,
    retries: count(draft.retries),
    preemptible: draft.preemptible ? undefined : false,
    private: draft.isPrivate || undefined,
    live: draft.live || undefined,
    idempotency_key: draft.key || undefined,
  };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined)) as unknown as JobRequest;
}

/** The request of a job that runs in a folder of one's home, or without files where the draft names none. */
export function inPlaceRequestOf(draft: Draft): JobRequest | null {
  const folder = draft.folder.trim();
  const request = requestOf({ ...draft, live: folder !== '' });
  return request && folder !== '' ? { ...request, directory: folder } : request;
}

function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), byte => byte.toString(16).padStart(2, '0')).join('');
}

/** The draft of this browser, and its listeners. */
export class DraftStore {
  private readonly listeners = new Set<() => void>();
  private draft: Draft;

  constructor(
    private readonly key: string,
    private readonly storage: Storage = window.localStorage,
  ) {
    this.draft = { ...EMPTY_DRAFT, ...this.stored() };
  }

  readonly snapshot = (): Draft => this.draft;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  change(changes: Partial<Draft>): void {
    this.draft = { ...this.draft, key: newKey(), ...changes };
    try {
      this.storage.setItem(this.key, JSON.stringify(this.draft));
    } catch {
      // The storage is full or blocked: the draft lasts until the page is closed.
    }
    this.listeners.forEach(listener => listener());
  }

  private stored(): Partial<Draft> {
    try {
      const found = JSON.parse(this.storage.getItem(this.key) ?? '{}') as Record<string, unknown>;
      const known = Object.entries(EMPTY_DRAFT).filter(([name, empty]) => typeof found[name] === typeof empty);
      return Object.fromEntries(known.map(([name]) => [name, found[name]]));
    } catch {
      return {}; // Another program wrote it.
    }
  }
}
