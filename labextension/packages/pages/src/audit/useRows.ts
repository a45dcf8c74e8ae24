/** The rows of a filter: read part by part, and again at the start of the list when something changed. */

import { useCallback, useEffect, useRef, useState } from 'react';

import { whenSeen, type AuditRow } from '@jupyter-gpu-quota/api';
import { usePanelContext } from '@jupyter-gpu-quota/components';

import { addressOf, queryOf, type Filter } from './filter';

const PART = 200;
const READ_AFTER_MS = 250;
const REREAD_AFTER_MS = 1_000;

interface Found {
  readonly rows: readonly AuditRow[];
  readonly total: number;
  readonly loading: boolean;
  readonly error: string;
}

const EMPTY: Found = { rows: [], total: 0, loading: true, error: '' };

export function useRows(filter: Filter): Found & { more(): void } {
  const { model } = usePanelContext();
  const [found, setFound] = useState(EMPTY);
  const turn = useRef(0);
  const reading = useRef(false);
  const read = useCallback(
    async (offset: number, isNew: boolean): Promise<void> => {
      const mine = isNew ? ++turn.current : turn.current;
      reading.current = true;
      const page = await model.transport.service.audit(offset, PART, queryOf(filter)).catch((error: Error) => error);
      if (mine !== turn.current) {
        return; // an answer to another filter
      }
      reading.current = false;
      if (page instanceof Error) {
        setFound(before => ({ ...before, loading: false, error: page.message }));
      } else {
        setFound(before => ({ rows: merged(isNew ? [] : before.rows, page.items, offset === 0), total: page.total, loading: false, error: '' }));
      }
    },
    [model, filter],
  );
  useEffect(() => {
    const show = (): void => {
      window.history.replaceState(null, '', window.location.pathname + addressOf(filter));
      void read(0, true);
    };
    const timer = setTimeout(show, turn.current === 0 ? 0 : READ_AFTER_MS);
    return () => clearTimeout(timer);
  }, [filter, read]);
  useEffect(() => {
    let stop: (() => void) | undefined;
    const soon = (): void => {
      stop ??= whenSeen(() => {
        stop = undefined;
        if (reading.current) {
          soon(); // The rows that a reread drops would leave a gap before a later part that is being read.
        } else {
          void read(0, false);
        }
      }, REREAD_AFTER_MS);
    };
    const end = model.subscribeToChanges(soon);
    return () => {
      end();
      stop?.();
    };
  }, [model, read]);
  const shown = found.rows.length;
  // The table asks for more whenever this changes, so it changes with the rows alone: a failed read is not repeated at once.
  const more = useCallback((): void => {
    if (!reading.current) {
      void read(shown, false);
    }
  }, [read, shown]);
  return { ...found, more };
}

/**
 * Rows never change, and new ones are at the start; more than a part of them leave a gap, and then the list begins again.
 *
 * A read of the start makes the list no longer than a part, or than the reader has made it by scrolling: as many rows as are
 * new leave at the end, where they can be read again.
 */
export function merged(before: readonly AuditRow[], read: readonly AuditRow[], isStart: boolean): readonly AuditRow[] {
  const first = before[0];
  const last = read[read.length - 1];
  if (first === undefined || last === undefined) {
    return before.length > 0 ? before : read;
  }
  const isApart = last.seq > first.seq && read.length === PART && !read.some(row => row.seq === first.seq);
  if (isApart) {
    return read;
  }
  const rows = [...new Map([...before, ...read].map(row => [row.seq, row])).values()].sort((a, b) => b.seq - a.seq);
  return isStart ? rows.slice(0, Math.max(PART, before.length)) : rows;
}
