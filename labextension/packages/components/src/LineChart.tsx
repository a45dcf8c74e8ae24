/** Lines over time, drawn small. A value of null is a gap. */

import { useEffect, useRef } from 'react';
import uPlot from 'uplot';

import { usePanelContext } from './context';

const HEIGHT_PX = 110;
const LARGE_PX = 190;
const FIGURE_PX = 7;
const TIME_PX = 80;

export interface Line {
  readonly name: string;
  readonly values: readonly (number | null)[];
  /** A variable of the theme with its colour. */
  readonly colour?: string;
  /** Each value holds until the next one. */
  readonly stepped?: boolean;
}

export interface LineChartProps {
  /** What a screen reader says instead of the picture. */
  label: string;
  /** Seconds since 1970, ascending. */
  times: readonly number[];
  lines: readonly Line[];
  /** The name of the values' axis. */
  name: string;
  /** A large chart with names at its axes. */
  large?: boolean;
  /** The least and greatest value of the axis; without it, those of the values. */
  range?: readonly [number, number];
}

/** A number as an axis and a caption show it. */
export function number(value: number): string {
  return String(Number(value.toPrecision(5)));
}

/** Instants in seconds: times of day, or dates where they are days apart. */
function timesOf(instants: readonly number[]): string[] {
  const days = ((instants[instants.length - 1] ?? 0) - (instants[0] ?? 0)) / 86_400;
  const style: Intl.DateTimeFormatOptions = days > 2 ? { month: 'short', day: 'numeric' } : { timeStyle: days > 0.007 ? 'short' : 'medium' };
  return instants.map(at => new Date(at * 1000).toLocaleString(undefined, style));
}

/** The width of the figures at an axis. */
function widthOf(texts: readonly string[] | null): number {
  return 16 + FIGURE_PX * Math.max(3, ...(texts ?? []).map(text => text?.length ?? 0));
}

export function LineChart({ label, times, lines, name, large = false, range }: LineChartProps): JSX.Element {
  const { trans, theme } = usePanelContext();
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const node = box.current;
    if (node === null) {
      return;
    }
    const colour = (variable: string): string => getComputedStyle(node).getPropertyValue(variable).trim();
    const height = large ? LARGE_PX : HEIGHT_PX;
    const axis = { stroke: colour('--jp-ui-font-color2'), grid: { stroke: colour('--jp-border-color3'), width: 0.5 } };
    const values: uPlot.Axis = { values: (_, splits) => splits.map(number), size: (_, texts) => widthOf(texts) };
    const named = (label: string): uPlot.Axis => (large ? { ...axis, label, labelSize: 18 } : axis);
    const plot = new uPlot(
      {
        width: node.clientWidth,
        height,
        legend: { show: false },
        cursor: { show: false },
        scales: range ? { y: { range: [...range] } } : {},
        axes: [{ ...named(trans.__('Time')), size: 28, space: TIME_PX, values: (_, splits) => timesOf(splits) }, { ...named(name), ...values }],
        series: [
          {},
          ...lines.map(line => ({
            stroke: colour(line.colour ?? '--jp-brand-color1'),
            width: 1.5,
            points: { show: times.length < 20 },
            ...(line.stepped ? { paths: uPlot.paths.stepped!({ align: 1 }) } : {}),
          })),
        ],
      },
      [[...times], ...lines.map(line => [...line.values])],
      node,
    );
    const resized = new ResizeObserver(() => plot.setSize({ width: node.clientWidth, height }));
    resized.observe(node);
    return () => {
      resized.disconnect();
      plot.destroy();
    };
  }, [times, lines, name, large, range, trans, theme]);
  return <div ref={box} role="img" aria-label={label} />;
}
