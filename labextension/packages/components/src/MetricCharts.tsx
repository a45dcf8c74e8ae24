/** What a job reported over time, and the use of its GPUs: one small chart each, with its newest value in words. */

import { useEffect, useRef, useState } from 'react';
import uPlot from 'uplot';

import { RUNNING, type Job, type Metrics, type Point } from '@jupyter-gpu-quota/api';

import { useNow, usePanelContext, useTrans } from './context';

const HEIGHT_PX = 110;
const LARGE_PX = 190;
const FIGURE_PX = 7;
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

function number(value: number): string {
  return String(Number(value.toPrecision(5)));
}

/** Instants in seconds: times of day, or dates where they are days apart. */
function timesOf(instants: readonly number[]): string[] {
  const days = ((instants[instants.length - 1] ?? 0) - (instants[0] ?? 0)) / 86_400;
  const style: Intl.DateTimeFormatOptions = days > 2 ? { month: 'short', day: 'numeric' } : { timeStyle: days > 0.05 ? 'short' : 'medium' };
  return instants.map(at => new Date(at * 1000).toLocaleString(undefined, style));
}

/** The width of the figures at an axis. */
function widthOf(texts: readonly string[] | null): number {
  return 16 + FIGURE_PX * Math.max(3, ...(texts ?? []).map(text => text?.length ?? 0));
}

function Chart({ series, large }: { series: Series; large: boolean }): JSX.Element {
  const trans = useTrans();
  const box = useRef<HTMLDivElement>(null);
  const { name, newest, points } = series;
  const last = points[points.length - 1];
  useEffect(() => {
    const node = box.current;
    if (node === null || points.length < 2) {
      return;
    }
    const colour = (variable: string): string => getComputedStyle(node).getPropertyValue(variable).trim();
    const height = large ? LARGE_PX : HEIGHT_PX;
    const axis = { stroke: colour('--jp-ui-font-color2'), grid: { stroke: colour('--jp-border-color3'), width: 0.5 } };
    const values: uPlot.Axis = { values: (_, splits) => splits.map(number), size: (_, texts) => widthOf(texts) };
    const named = (label: string): uPlot.Axis => (large ? { ...axis, label, labelSize: 18 } : axis);
    const data: uPlot.AlignedData = [points.map(one => Date.parse(one.at) / 1000), points.map(one => one.mean)];
    const plot = new uPlot(
      {
        width: node.clientWidth,
        height,
        legend: { show: false },
        cursor: { show: false },
        axes: [{ ...named(trans.__('Time')), size: 28, values: (_, splits) => timesOf(splits) }, { ...named(name), ...values }],
        series: [{}, { stroke: colour('--jp-brand-color1'), width: 1.5, points: { show: points.length < 20 } }],
      },
      data,
      node,
    );
    const resized = new ResizeObserver(() => plot.setSize({ width: node.clientWidth, height }));
    resized.observe(node);
    return () => {
      resized.disconnect();
      plot.destroy();
    };
  }, [points, name, large, trans]);
  const value = newest ?? last?.mean;
  const label = value === undefined ? name : `${name}: ${number(value)}`;
  return (
    <figure className="jgq-chart">
      <figcaption>{label}</figcaption>
      {points.length > 1 && <div ref={box} role="img" aria-label={label} />}
    </figure>
  );
}
