/** A rank's log as it is written, bounded, so that a log of any length needs the same memory. */

import { follow, EndOfStream, type StreamEvent } from './events';
import type { Transport } from './transport';
import { ENDED } from './state';

/** Characters of a log that are kept; what is older is found with the command line. */
export const MAX_CHARACTERS = 400_000;
/** Bytes of an earlier log that are read first, from its end. */
const FIRST_BYTES = 262_144;

export interface LogState {
  readonly text: string;
  /** Whether the beginning is not shown. */
  readonly cut: boolean;
  readonly attempt: number;
  /** `connecting`, `live`, `lost`, `refused`, or the job's state after the end. */
  readonly status: string;
}

export const EMPTY_LOG: LogState = { text: '', cut: false, attempt: 0, status: 'connecting' };

interface LogPart {
  text: string;
  attempt: number;
  begins: number;
  offset: number;
}

/** The log after a part of it: the newest characters, whole lines where there are any. */
export function appendPart(log: LogState, part: LogPart): LogState {
  const between = log.attempt > 0 && part.attempt !== log.attempt ? `\n── attempt ${part.attempt} ──\n` : '';
  const whole = overwritten(log.text + between + part.text, log.text.lastIndexOf('\n') + 1);
  const cut = log.cut || (log.text === '' && part.begins > 0) || whole.length > MAX_CHARACTERS;
  return { text: newest(whole), cut, attempt: part.attempt, status: 'live' };
}

/** Carriage returns of progress bars: of each line, from `start` on, what follows the last one. */
function overwritten(text: string, start: number): string {
  const lines = text.slice(start).split('\n').map(line => {
    const end = line.endsWith('\r') ? line.length - 1 : line.length;
    return line.slice(line.lastIndexOf('\r', end - 1) + 1);
  });
  return text.slice(0, start) + lines.join('\n');
}

function newest(text: string): string {
  if (text.length <= MAX_CHARACTERS) {
    return text;
  }
  const kept = text.slice(-MAX_CHARACTERS);
  const line = kept.indexOf('\n');
  return line < 0 ? kept : kept.slice(line + 1);
}

/** Follow the log of a job until `signal` aborts or the job ends. `rank` of the newest attempt, or of `attempt`. */
export function followLog(
  transport: Transport,
  id: string,
  rank: number,
  attempt: number,
  onLog: (log: LogState) => void,
  signal: AbortSignal,
): Promise<void> {
  let log = EMPTY_LOG;
  let offset = -FIRST_BYTES;
  let reading = attempt;
  const show = (next: LogState): void => onLog((log = next));
  const take = (event: StreamEvent): void => {
    if (event.name === 'log') {
      const part = JSON.parse(event.data) as LogPart;
      [offset, reading] = [part.offset, part.attempt];
      show(appendPart(log, part));
    } else if (event.name === 'end') {
      const { state } = JSON.parse(event.data) as { state: string };
      show({ ...log, status: state });
      if (attempt > 0 || ENDED.has(state)) {
        throw new EndOfStream();
      }
      [offset, reading] = [0, reading + 1]; // The service answers when the next attempt has begun.
    }
  };
  const open = (_: string | undefined, turn: AbortSignal): Promise<Response> => {
    const query = { follow: '1', rank: String(rank), offset: String(offset) };
    return transport.openLog(id, reading > 0 ? { ...query, attempt: String(reading) } : query, turn);
  };
  const onAlive = (alive: boolean): void => {
    if (!alive && log.status === 'live') {
      show({ ...log, status: 'lost' });
    }
  };
  return follow(open, { onEvent: take, onAlive }, signal).catch(error => {
    show({ ...log, status: 'refused', text: `${log.text}${error instanceof Error ? error.message : String(error)}\n` });
  });
}
