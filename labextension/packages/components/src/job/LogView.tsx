/** A job's log as it is written. Terminal colours are shown, everything else is plain text. */

import { memo, useEffect, useLayoutEffect, useMemo, useRef, useState } from 'react';

import { EMPTY_LOG, followLog, RUNNING, type LogState } from '@jupyter-gpu-quota/api';

import { usePanelContext, useTrans } from '../context';
import { logText, stateText } from './states';
import { TerminalBlocks } from './terminal';

const NEAR_END_PX = 40;
const DRAW_EVERY_MS = 200;

export interface LogViewProps {
  id: string;
  /** The state of the job, which is shown when the job is not running. */
  state: string;
  rank?: number;
  /** 0: the newest one, and those that follow. */
  attempt?: number;
  /** Where the beginning is found that is not shown. */
  whereCut?: string;
}

export function LogView({ id, state, rank = 0, attempt = 0, whereCut }: LogViewProps): JSX.Element {
  const { model } = usePanelContext();
  const trans = useTrans();
  const [log, setLog] = useState<LogState>(EMPTY_LOG);
  useEffect(() => {
    const stop = new AbortController();
    setLog(EMPTY_LOG);
    let due: ReturnType<typeof setTimeout> | undefined;
    let newest: LogState = EMPTY_LOG;
    const show = (next: LogState): void => {
      newest = next;
      due ??= setTimeout(() => {
        due = undefined;
        setLog(newest);
      }, DRAW_EVERY_MS);
    };
    void followLog(model.transport, id, rank, attempt, show, stop.signal);
    return () => {
      stop.abort();
      clearTimeout(due);
    };
  }, [model, id, rank, attempt]);
  const shown = RUNNING.has(state) || log.status !== 'live' ? log.status : state;
  const reading = logText(shown, trans);
  return (
    <>
      <p className="jgq-quiet" role="status">
        {reading ?? trans.__('Log (job %1)', stateText(shown, trans))}
        {log.blocks.length === 0 && reading === null && ` · ${trans.__('empty')}`}
        {log.cut && ` · ${trans.__('the beginning is not shown')}`}
        {log.cut && whereCut && `; ${whereCut}`}
      </p>
      <LogText log={log} label={trans.__('Log')} />
    </>
  );
}

function LogText({ log, label }: { log: LogState; label: string }): JSX.Element {
  const box = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  const [terminal] = useState(() => new TerminalBlocks());
  const html = useMemo(() => terminal.render(log.blocks, log.dropped), [terminal, log.blocks, log.dropped]);
  useLayoutEffect(() => {
    if (box.current && atEnd.current) {
      box.current.scrollTop = box.current.scrollHeight;
    }
  }, [log]);
  const look = (): void => {
    const { scrollHeight, scrollTop, clientHeight } = box.current!;
    atEnd.current = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
  };
  return (
    <pre className="jgq-log" ref={box} tabIndex={0} role="log" aria-live="off" aria-label={label} onScroll={look}>
      {html.map((text, at) => (
        <LogBlock key={log.dropped + at} html={text} />
      ))}
    </pre>
  );
}

/** A part of a log, which is drawn again only when it changes. Its HTML is from TerminalBlocks, which escapes the text. */
const LogBlock = memo(function LogBlock({ html }: { html: string }): JSX.Element {
  return <div className="jgq-log-block" dangerouslySetInnerHTML={{ __html: html }} />;
});
