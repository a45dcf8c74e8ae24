/** The readings of a device as lines. What is unknown is null, so that the line has a gap there. */

import type { Sample } from '@jupyter-gpu-quota/api';

/** Readings that are so many usual intervals apart have none between them. */
const APART = 3;

export interface History {
  /** Seconds since 1970, ascending. */
  readonly times: readonly number[];
  /** GPUs, from 0 to 1. */
  readonly used: readonly (number | null)[];
  readonly allocated: readonly (number | null)[];
}

/** `samples` are newest first, as the service lists them. */
export function historyOf(samples: readonly Sample[]): History {
  const rows = [...samples].reverse();
  const instants = rows.map(row => Date.parse(row.at) / 1000);
  const steps = instants.slice(1).map((at, index) => at - instants[index]!);
  const usual = [...steps].sort((a, b) => a - b)[Math.floor(steps.length / 2)] ?? 0;
  const times: number[] = [];
  const used: (number | null)[] = [];
  const allocated: (number | null)[] = [];
  rows.forEach((row, index) => {
    const at = instants[index]!;
    const step = index > 0 ? steps[index - 1]! : 0;
    if (step > APART * usual) {
      times.push(at - step / 2);
      used.push(null);
      allocated.push(null);
    }
    times.push(at);
    used.push(row.utilisation_percent === null ? null : row.utilisation_percent / 100);
    allocated.push(row.allocated_milli == null ? null : row.allocated_milli / 1000);
  });
  return { times, used, allocated };
}
