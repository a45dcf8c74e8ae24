/** GPU hours of each hour as lines. An hour without a row has no allocation; what is unknown is null, a gap. */

import type { Usage } from '@jupyter-gpu-quota/api';
import { gpuMilliSeconds } from '@jupyter-gpu-quota/components';

const HOUR_S = 3_600;
/** Milli-GPU seconds in a GPU hour. */
const GPU_HOUR = 1_000 * HOUR_S;

export interface Hours {
  /** Seconds since 1970, ascending. */
  readonly times: readonly number[];
  readonly allocated: readonly number[];
  readonly used: readonly (number | null)[];
}

/** `rows` are usage by hour; the hours are those from the first to the last row. */
export function hoursOf(rows: readonly Usage[]): Hours {
  const known = new Map(rows.map(row => [Date.parse(row.name) / 1000, row]));
  const begun = [...known.keys()];
  const first = Math.min(...begun);
  const count = begun.length === 0 ? 0 : (Math.max(...begun) - first) / HOUR_S + 1;
  const times = Array.from({ length: count }, (_, at) => first + at * HOUR_S);
  const found = times.map(at => known.get(at));
  return {
    times,
    allocated: found.map(row => (row ? gpuMilliSeconds(row).allocated / GPU_HOUR : 0)),
    used: found.map(row => {
      const used = row ? gpuMilliSeconds(row).used : 0;
      return used === null ? null : used / GPU_HOUR;
    }),
  };
}
