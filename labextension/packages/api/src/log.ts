/** The newest part of a rank's log as it is written. Its size is bounded, so the memory is, too. */

import { follow, EndOfStream, type StreamEvent } from './events';
import { whileSeen } from './seen';
import type { Transport } from './transport';
import { ENDED } from './state';

/** Characters of a log that are kept; the command line prints older ones. */
export const MAX_CHARACTERS = 400_000;
/** Bytes that are read at first, from the end of the log. */
const FIRST_BYTES = 262_144;

/** Characters from which the newest block is closed at the end of its line, and where it ends without one. */
const BLOCK = 8_192;
const LONGEST_BLOCK = 65_536;

export interface LogState {
  /** The text in parts, of which only the last one changes. */
  readonly blocks: readonly string[];
  /** How many blocks before these were dropped. */
  readonly dropped: number;
  /** Whether the beginning is not shown. */
  readonly cut: boolean;
  readonly attempt: number;
  /** `connecting`, `live`, `lost`, `refused`, or the job's state after the end. */
  readonly status: string;
}

export const EMPTY_LOG: LogState = { blocks: [], dropped: 0, cut: false, attempt: 0, status: 'connecting' };

interface LogPart {
  text: string;
  attempt: number;
  begins: number;
  offset: number;
}

/** The log after a part of it: the newest characters, whole lines where there are any. */
export function appendPart(log: LogState, part: LogPart): LogState {
  const between = log.attempt > 0 && part.attempt !== log.attempt ? `\n── attempt ${part.attempt} ──\n` : '';
  const text = withText(log, between + part.text);
  return { ...text, cut: text.cut || (log.blocks.length === 0 && part.begins > 0), attempt: part.attempt, status: 'live' };
}

/** The log with more text at its end, and without the oldest blocks. */
function withText(log: LogState, added: string): LogState {
  const before = log.blocks[log.blocks.length - 1] ?? '';
  const newest = overwritten(before + added, before.lastIndexOf('\n') + 1);
  const blocks = [...log.blocks.slice(0, -1), ...divided(newest)];
  let most = MAX_CHARACTERS;
  const kept = blocks.reduceRight((count, block) => ((most -= block.length) >= 0 ? count + 1 : count), 0);
  const dropped = blocks.length - Math.max(kept, 1);
  return { ...log, blocks: blocks.slice(dropped), dropped: log.dropped + dropped, cut: log.cut || dropped > 0 };
}

function divided(text: string): string[] {
  const blocks: string[] = [];
  let start = 0;
  while (text.length - start > BLOCK) {
    const line = text.indexOf('\n', start + BLOCK - 1) + 1;
    const end = line === 0 || line - start > LONGEST_BLOCK ? start + LONGEST_BLOCK : line;
    if (end > text.length) {
      break;
    }
    blocks.push(text.slice(start, end));
    start = end;
  }
  return [...blocks, text.slice(start)];
}

/** Apply the carriage returns of progress bars: from `start` on, each line keeps the text after its last one. */
function overwritten(text: string, start: number): string {
  const lines = text.slice(start).split('\n').map(line => {
    const end = line.endsWith('\r') ? line.length - 1 : line.length;
    return line.slice(line.lastIndexOf('\r', end - 1) + 1);
  });
  return text.slice(0, start) + lines.join('\n');
}

/**
 * Follow the log of one rank until `signal` aborts or the job ends. `attempt` 0 is the newest attempt. A page that is not seen
 * reads on later, because browsers allow six connections to a host.
 */
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
    if (alive && log.status !== 'live') {
      show({ ...log, status: 'live' }); // A heartbeat is enough: a log may have no text for long.
    } else if (!alive && log.status === 'live') {
      show({ ...log, status: 'lost' });
    }
  };
  return whileSeen(turn => follow(open, { onEvent: take, onAlive }, turn), signal).catch(error => {
    show({ ...withText(log, `${error instanceof Error ? error.message : String(error)}\n`), status: 'refused' });
  });
}
