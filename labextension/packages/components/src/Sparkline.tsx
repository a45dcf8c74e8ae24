/** The newest values of one metric as a line without axes. */

import { useEffect, useRef, useState } from 'react';
import uPlot from 'uplot';

import type { Job } from '@jupyter-gpu-quota/api';

import { usePanelContext } from './context';

const WIDTH_PX = 48;
const HEIGHT_PX = 16;
const MOST = 120;

type Values = readonly (readonly [at: number, value: number])[];

/** The metric of a job that its row shows: the loss if there is one, else the first by name. */
export function shownMetric(job: Job): string | null {
  const names = Object.keys(job.metrics).sort();
  return names.find(name => name.toLowerCase().includes('loss')) ?? names[0] ?? null;
}

/** The history is read once; later values come with the changes of the job. */
function useValues(job: Job, name: string): Values {
  const { model } = usePanelContext();
  const [values, setValues] = useState<Values>([]);
  useEffect(() => {
    let current = true;
    model.transport.service.metrics(job.id).then(
      found => current && setValues((found.metrics[name] ?? []).slice(-MOST).map(point => [Date.parse(point.at), point.mean])),
      () => undefined, // The row shows the newest value.
    );
    return () => {
      current = false;
    };
  }, [model, job.id, name]);
  const newest = job.metrics[name];
  useEffect(() => {
    if (newest !== undefined) {
      setValues(known => [...known.slice(1 - MOST), [Date.now(), newest]]);
    }
  }, [newest]);
  return values;
}

export function Sparkline({ job, name }: { job: Job; name: string }): JSX.Element {
  const { trans, theme } = usePanelContext();
  const box = useRef<HTMLSpanElement>(null);
  const plot = useRef<uPlot | null>(null);
  const values = useValues(job, name);
  useEffect(() => {
    const colour = getComputedStyle(box.current!).getPropertyValue('--jp-brand-color1').trim();
    const options: uPlot.Options = {
      width: WIDTH_PX,
      height: HEIGHT_PX,
      legend: { show: false },
      cursor: { show: false },
      padding: [2, 1, 2, 1],
      axes: [{ show: false }, { show: false }],
      scales: { x: { time: false } },
      series: [{}, { stroke: colour, width: 1, points: { show: false } }],
    };
    plot.current = new uPlot(options, [[], []], box.current!);
    return () => plot.current?.destroy();
  }, [theme]);
  useEffect(() => plot.current?.setData([values.map(one => one[0]), values.map(one => one[1])]), [values, theme]);
  const label = trans.__('%1: %2', name, String(Number(job.metrics[name]?.toPrecision(4))));
  return <span className="jgq-sparkline" ref={box} role="img" aria-label={label} title={label} />;
}
