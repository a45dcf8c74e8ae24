/** The draft of a job in the form. The browser stores it, so that no input is lost. */

import { parse } from 'shell-quote';

import { newKey, type JobRequest } from '@jupyter-gpu-quota/api';

/** A parameter of a notebook with its value in the file; an empty `value` leaves that. */
export interface Parameter {
  readonly name: string;
  readonly preset: string;
  readonly value: string;
}

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
  readonly cpus: string;
  readonly memoryGib: string;
  /** One NAME=value in each line. */
  readonly variables: string;
  /** Names of data of the quota file, one in each line; empty: all that the user may use; NO_DATA: none. */
  readonly data: string;
  /** When the owner gets a message: a name of MESSAGES, or empty for the settings of the site. */
  readonly notify: string;
  /** Of the notebook that the command runs. */
  readonly parameters: readonly Parameter[];
  readonly preemptible: boolean;
  readonly isPrivate: boolean;
  readonly live: boolean;
  /** The idempotency key. It changes with the draft, so that a repeated submission queues no second job. */
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
  cpus: '',
  memoryGib: '',
  variables: '',
  data: '',
  notify: '',
  parameters: [],
  preemptible: true,
  isPrivate: false,
  live: false,
  key: '',
};

/** No name of data, because names begin with a letter or digit. */
export const NO_DATA = '-';

export function chosenData(data: string, possible: readonly string[]): readonly string[] {
  return data === '' ? possible : data.split('\n').filter(name => possible.includes(name));
}

/** The choice as a draft has it. All data is no choice, so that data which is added later is included. */
export function dataChoice(chosen: readonly string[], possible: readonly string[]): string {
  return chosen.length === possible.length ? '' : chosen.join('\n') || NO_DATA;
}

export const MESSAGES: Readonly<Record<string, NonNullable<JobRequest['notify']>>> = {
  never: [],
  failed: ['failed'],
  ended: ['ended', 'failed'],
  all: ['ended', 'failed', 'paused'],
};

/** Text that a shell leaves as it is. */
const QUOTED = /'[^']*'|"[^"$`\\]*"|\\'/g;
/** Syntax that only a shell can run: variables, pipes, patterns, comments, open quotes, assignments, built-in commands. */
const NEEDS_SHELL = /[`$~*?[\]{}|&;<>()\n\\#'"]|^\s*(\w+=|(cd|export|source|\.)\s)/;

/** A command line as words; one that needs a shell is run by `sh -c`. */
export function words(command: string): string[] {
  if (NEEDS_SHELL.test(command.replace(QUOTED, 'quoted'))) {
    return ['sh', '-c', command];
  }
  return parse(command).filter((word): word is string => typeof word === 'string');
}

/** Quoted text, escaped characters and the comment of a command line for a shell. */
const CLOSED = /\\[^]|'[^']*'|"(?:\\[^]|[^"\\])*"|(?:^|\s)#.*/g;

/** Whether a quote of the command line is not closed, so that no shell can run it. */
export function hasOpenQuote(command: string): boolean {
  return /['"]/.test(command.replace(CLOSED, ''));
}

/** The name of a file as one word of a command line. */
export function quotedName(name: string): string {
  return /^[\w.][\w.-]*$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`;
}

/** Variables from lines NAME=value; a line without "=" is a name with an empty value, which the service refuses or takes. */
function variablesOf(text: string): Record<string, string> | undefined {
  const lines = text.split('\n').filter(line => line.trim() !== '');
  const pairs = lines.map(line => {
    const at = line.indexOf('=');
    return at < 0 ? [line.trim(), ''] : [line.slice(0, at).trim(), line.slice(at + 1)];
  });
  return pairs.length === 0 ? undefined : (Object.fromEntries(pairs) as Record<string, string>);
}

/** The words that give a notebook its changed parameters. */
function parameterWords(parameters: readonly Parameter[]): string[] {
  return parameters.filter(one => one.value.trim() !== '').flatMap(one => ['-p', one.name, one.value.trim()]);
}

const ASSIGNMENT = /^([A-Za-z_]\w*)\s*(?::[^=]+)?=\s*([^=\s].*?)\s*(?:#.*)?$/;

/** The assignments of a cell tagged `parameters`. */
export function parametersOf(source: string): Parameter[] {
  return source.split('\n').flatMap(line => {
    const found = ASSIGNMENT.exec(line);
    return found ? [{ name: found[1]!, preset: found[2]!, value: '' }] : [];
  });
}

function isParameter(value: unknown): value is Parameter {
  const one = value as Parameter | null;
  return typeof one?.name === 'string' && typeof one.preset === 'string' && typeof one.value === 'string';
}

function scaled(text: string, by: number): number | undefined {
  const value = count(text);
  return value === undefined ? undefined : Math.round(value * by);
}

function count(text: string): number | undefined {
  const value = text.trim();
  return value === '' ? undefined : Number(value);
}

/** The request of a draft; null without a command. Empty fields have the service's default. */
export function requestOf(draft: Draft): JobRequest | null {
  const command = words(draft.command.trim());
  if (command.length === 0) {
    return null;
  }
  command.push(...(isNotebook(command) ? parameterWords(draft.parameters) : []));
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
    cpu_milli: scaled(draft.cpus, 1000),
    memory_mib: scaled(draft.memoryGib, 1024),
    variables: variablesOf(draft.variables),
    data: draft.data === '' ? undefined : draft.data.split('\n').filter(name => name !== NO_DATA),
    notify: MESSAGES[draft.notify],
    preemptible: draft.preemptible ? undefined : false,
    private: draft.isPrivate || undefined,
    live: draft.live || undefined,
    idempotency_key: draft.key || undefined,
  };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined)) as unknown as JobRequest;
}

/** The request of a job that runs in a folder of the user's home, or without files if the draft names no folder. */
export function inPlaceRequestOf(draft: Draft): JobRequest | null {
  const folder = draft.folder.trim();
  const request = requestOf({ ...draft, live: folder !== '' });
  return request && folder !== '' ? { ...request, directory: folder } : request;
}

export function isNotebook(command: readonly string[]): boolean {
  return command[0]?.endsWith('.ipynb') === true;
}

/** The draft of this browser, and its listeners. */
export class DraftStore {
  private readonly listeners = new Set<() => void>();
  private draft: Draft;

  constructor(
    private readonly key: string,
    private readonly storage: Storage = window.localStorage,
  ) {
    this.draft = { ...EMPTY_DRAFT, ...draftOf(() => this.storage.getItem(this.key)) };
    globalThis.addEventListener?.('storage', event => event.key === this.key && this.replaceKey(draftOf(() => event.oldValue).key));
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

  /** Another tab has replaced this idempotency key, perhaps because it has submitted a job with it. */
  private replaceKey(key: string | undefined): void {
    if (key === this.draft.key) {
      this.draft = { ...this.draft, key: newKey() };
      this.listeners.forEach(listener => listener());
    }
  }
}

/** What is known of a stored draft. */
function draftOf(stored: () => string | null): Partial<Draft> {
  try {
    const found = JSON.parse(stored() ?? '{}') as Record<string, unknown>;
    const known = Object.entries(EMPTY_DRAFT).filter(([name, empty]) =>
      Array.isArray(empty) ? [found[name]].flat().every(isParameter) : typeof found[name] === typeof empty,
    );
    return Object.fromEntries(known.map(([name]) => [name, found[name]]));
  } catch {
    return {}; // Another program wrote it.
  }
}
