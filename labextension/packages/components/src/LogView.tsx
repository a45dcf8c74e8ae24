/** A job's log as it is written; colours of the terminal are shown, everything else of it is text. */

import { AnsiUp } from 'ansi_up';
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'react';

import { followLog, NO_LOG, type LogState } from '@jupyter-gpu-quota/api';

import { useSurroundings, useText } from './context';

const NEAR_END_PX = 40;

export function LogView({ id, rank = 0, attempt = 0 }: { id: string; rank?: number; attempt?: number }): JSX.Element {
  const { model } = useSurroundings();
  const text = useText();
  const [log, setLog] = useState<LogState>(NO_LOG);
  useEffect(() => {
    const stop = new AbortController();
    setLog(NO_LOG);
    void followLog(model.transport, id, rank, attempt, setLog, stop.signal);
    return () => stop.abort();
  }, [model, id, rank, attempt]);
  return (
    <>
      <p className="jgq-quiet" role="status">
        {text('Log')}: {text(log.status)}
        {log.cut && ` · ${text('the beginning is not shown')}`}
      </p>
      <LogText text={log.text} />
    </>
  );
}

function LogText({ text }: { text: string }): JSX.Element {
  const box = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  const html = useMemo(() => {
    const colours = new AnsiUp();
    colours.use_classes = true;
    colours.url_allowlist = {};
    return colours.ansi_to_html(text);
  }, [text]);
  useLayoutEffect(() => {
    if (box.current && atEnd.current) {
      box.current.scrollTop = box.current.scrollHeight;
    }
  }, [html]);
  const look = (): void => {
    const { scrollHeight, scrollTop, clientHeight } = box.current!;
    atEnd.current = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
  };
  // ansi_up escapes the text; what it adds are spans with class names.
  return <pre className="jgq-log" ref={box} tabIndex={0} onScroll={look} dangerouslySetInnerHTML={{ __html: html }} />;
}
