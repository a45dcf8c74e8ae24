/** What a job reported over time, and the use of its GPUs: one small chart each, with its newest value in words. */

import { useEffect, useMemo, useState } from 'react';

import { RUNNING, type Job, type Metrics, type Point } from '@jupyter-gpu-quota/api';

import { useNow, usePanelContext, useTrans } from '../context';
import { LineChart, number } from '../LineChart';

const EVERY_MS = 5_000;

interface Series {
  readonly name: string;
  /** The newest value; the last point may be a mean of several. */
  readonly newest: number | undefined;
  readonly points: readonly Point[];
}

export interface MetricChartsProps {
  job: Job;
  /** Large charts with names at their axes. */
  large?: boolean;
}

export function MetricCharts({ job, large = false }: MetricChartsProps): JSX.Element | null {
  const { model } = usePanelContext();
  const trans = useTrans();
  const [found, setFound] = useState<Metrics | null>(null);
  const now = useNow(EVERY_MS);
  const tick = RUNNING.has(job.state) && !document.hidden ? now : 0;
  useEffect(() => {
    let current = true;
    model.transport.service.metrics(job.id).then(
      answer => current && setFound(answer),
      () => undefined, // The newest values are shown with the job.
    );
    return () => {
      current = false;
    };
  }, [model, job.id, job.state, tick]);
  const names = [...new Set([...Object.keys(job.metrics), ...Object.keys(found?.metrics ?? {})])].sort();
  const series: Series[] = [
    ...names.map(name => ({ name, newest: job.metrics[name], points: found?.metrics[name] ?? [] })),
    ...(found?.devices ?? []).map(one => ({
      newest: undefined,
      name: trans.__('GPU utilization of %1 (%)', one.device),
      points: one.utilised_milli.map(point => ({ ...point, mean: point.mean / 10 })),
    })),
  ];
  return (
    <>
      {series
        .filter(one => one.points.length > 0 || one.newest !== undefined)
        .map(one => (
          <Chart key={one.name} series={one} large={large} />
        ))}
    </>
  );
}

function Chart({ series, large }: { series: Series; large: boolean }): JSX.Element {
  const { name, newest, points } = series;
  const times = useMemo(() => points.map(one => Date.parse(one.at) / 1000), [points]);
  const lines = useMemo(() => [{ name, values: points.map(one => one.mean) }], [name, points]);
  const value = newest ?? points[points.length - 1]?.mean;
  const label = value === undefined ? name : `${name}: ${number(value)}`;
  return (
    <figure className="jgq-chart">
      <figcaption>{label}</figcaption>
      {points.length > 1 && <LineChart label={label} times={times} lines={lines} name={name} large={large} />}
    </figure>
  );
}
