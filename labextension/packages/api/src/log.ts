/** A rank's log as it is written, bounded, so that a log of any length needs the same memory. */

import { follow, StreamOver, type StreamEvent } from './events';
import type { Transport } from './model';
import { ENDED } from './state';

/** Characters of a log that are kept; what is older is found with the command line. */
export const MOST_CHARACTERS = 400_000;
/** Bytes of an earlier log that are read first, from its end. */
const FIRST_BYTES = 262_144;

export interface LogState {
  readonly text: string;
  /** Whether the beginning is not shown. */
  readonly cut: boolean;
  readonly attempt: number;
  /** "connecting", "live", "lost", or how the job ended. */
  readonly status: string;
}

export const NO_LOG: LogState = { text: '', cut: false, attempt: 0, status: 'connecting' };

interface LogPart {
  text: string;
  attempt: number;
  begins: number;
  offset: number;
}

/** The log after a part of it: the newest characters, whole lines where there are any. */
export function withPart(log: LogState, part: LogPart): LogState {
  const between = log.attempt > 0 && part.attempt !== log.attempt ? `\n── attempt ${part.attempt} ──\n` : '';
  const whole = log.text + between + part.text;
  const cut = log.cut || (log.text === '' && part.begins > 0) || whole.length > MOST_CHARACTERS;
  return { text: newest(whole), cut, attempt: part.attempt, status: 'live' };
}

function newest(text: string): string {
  if (text.length <= MOST_CHARACTERS) {
    return text;
  }
  const kept = text.slice(-MOST_CHARACTERS);
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
  let log = NO_LOG;
  let offset = -FIRST_BYTES;
  let reading = attempt;
  const show = (next: LogState): void => onLog((log = next));
  const take = (event: StreamEvent): void => {
    if (event.name === 'log') {
      const part = JSON.parse(event.data) as LogPart;
      [offset, reading] = [part.offset, part.attempt];
      show(withPart(log, part));
    } else if (event.name === 'end') {
      const { state } = JSON.parse(event.data) as { state: string };
      show({ ...log, status: state });
      if (attempt > 0 || ENDED.has(state)) {
        throw new StreamOver();
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
  return follow(open, { onEvent: take, onAlive }, signal);
}
