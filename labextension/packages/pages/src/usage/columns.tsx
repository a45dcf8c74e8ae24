/** The columns of GPU hours, for the usage page and for one's own quota. */

import type { ColumnDef } from '@tanstack/react-table';

import type { Usage } from '@jupyter-gpu-quota/api';
import { duration, gpuHours, gpuMilliSeconds, percentage } from '@jupyter-gpu-quota/components';

import { Explained, Quiet, Simulated } from '../pieces';

function figure(id: string, header: string, of: (row: Usage) => number | null | undefined, cell: (row: Usage) => JSX.Element | string): ColumnDef<Usage> {
  return {
    id,
    header,
    accessorFn: row => of(row) ?? -1,
    sortDescFirst: true,
    meta: { label: header, className: 'num' },
    cell: ({ row }) => cell(row.original),
  };
}

const unknown = (row: Usage): JSX.Element => <Explained why={row.used_unknown}>unknown</Explained>;

function waited(seconds: number | null | undefined): JSX.Element | string {
  return seconds == null ? <Quiet>–</Quiet> : duration(seconds * 1000);
}

export const HOURS: readonly ColumnDef<Usage>[] = [
  figure('allocated', 'Allocated GPU hours', row => gpuMilliSeconds(row).allocated, row => (
    <>
      {gpuHours(gpuMilliSeconds(row).allocated)} {row.simulated && <Simulated />}
    </>
  )),
  figure('used', 'Used GPU hours', row => gpuMilliSeconds(row).used, row => {
    const { used } = gpuMilliSeconds(row);
    return used === null ? unknown(row) : gpuHours(used);
  }),
  figure('percent', 'Use', row => row.utilisation_percent, row =>
    row.utilisation_percent === null ? unknown(row) : percentage(row.utilisation_percent, (gpuMilliSeconds(row).used ?? 0) > 0),
  ),
  figure('coverage', 'Time with readings', row => row.coverage_percent, row => percentage(row.coverage_percent, row.used_milli_h !== null)),
];

export const WAITS: readonly ColumnDef<Usage>[] = [
  figure('started', 'Started jobs', row => row.started_jobs, row => String(row.started_jobs ?? '')),
  figure('mean', 'Mean wait', row => row.wait_mean_s, row => waited(row.wait_mean_s)),
  figure('longest', 'Longest wait', row => row.wait_max_s, row => waited(row.wait_max_s)),
];

export const COST = figure('cost', 'Cost', row => row.costs?.[0]?.amount_milli, row =>
  (row.costs ?? []).map(cost => `${(cost.amount_milli / 1000).toFixed(2)} ${cost.currency}`).join(', '),
);
