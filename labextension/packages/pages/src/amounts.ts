/** Jobs and devices in words. */

import type { Device, Job } from '@jupyter-gpu-quota/api';
import { gpus } from '@jupyter-gpu-quota/components';

/** The GPU of its present ranks, or of all ranks while it does not run. */
export function wholeMilli(job: Job): number {
  return job.gpu_milli * (job.held_ranks || job.ranks);
}

/** "4 of 2-4 ranks" for an elastic job that runs, "3 ranks", and nothing for a job of one. */
export function ranksText(job: Job): string {
  if (job.min_ranks == null) {
    return job.ranks > 1 ? `${job.ranks} ranks` : '';
  }
  const range = `${job.min_ranks}-${job.ranks} ranks`;
  return job.held_ranks ? `${job.held_ranks} of ${range}` : range;
}

/** CPU and memory of each rank; nothing for a job with the GPU's part of its node. */
export function hostText(job: Job): string {
  const parts = [job.cpu_milli ? `${gpus(job.cpu_milli)} CPU` : '', job.memory_mib ? `${job.memory_mib} MiB` : ''];
  const text = parts.filter(Boolean).join(' and ');
  return text && job.ranks > 1 ? `${text} for each rank` : text;
}

/** A time limit as it was typed: 5400 is "90m", 86400 "24h". */
export function limitText(seconds: number): string {
  for (const [size, unit] of [[seconds > 86_400 ? 86_400 : 3600, seconds > 86_400 ? 'd' : 'h'], [3600, 'h'], [60, 'm']] as const) {
    if (seconds && seconds % size === 0) {
      return `${seconds / size}${unit}`;
    }
  }
  return `${seconds}s`;
}

const EXPLAINED: ReadonlySet<string> = new Set(['queued', 'paused', 'held', 'pausing', 'failed', 'cancelled']);
const EXPLAINED_CODES: ReadonlySet<string> = new Set(['project_gone', 'pool_gone']);

/** The reason for a job's state, where the state needs one. */
export function reasonText(job: Job): string {
  if (job.reason && (EXPLAINED.has(job.state) || EXPLAINED_CODES.has(job.reason.code))) {
    return job.reason.message;
  }
  if (!job.borrower) {
    return '';
  }
  const isReserved = job.reason?.code === 'borrows_reserved_devices';
  return isReserved ? 'Runs on devices that are reserved for another job.' : 'Runs on notebook quota that no notebook uses now.';
}

/** How long it ran, from the first start to the end or `now`; null for a job that never started. */
export function ranMs(job: Job, now: number): number | null {
  const start = job.first_started_at ?? job.started_at;
  return start === null ? null : (job.ended_at ? Date.parse(job.ended_at) : now) - Date.parse(start);
}

/** Whether work may start on a device now. */
export function isAvailable(device: Device): boolean {
  return device.health === 'healthy' && device.upkeep === 'none' && !device.gone_at;
}

const STEPS: readonly (readonly [number, Intl.RelativeTimeFormatUnit, number])[] = [
  [60, 'second', 1],
  [3600, 'minute', 60],
  [86_400, 'hour', 3600],
];
const RELATIVE = new Intl.RelativeTimeFormat('en', { numeric: 'auto' });

/** An instant as seen from another one: "5 minutes ago". From a day on it counts the dates, so that "yesterday" is yesterday. */
export function relativeTime(then: Date, now: Date): string {
  const seconds = (then.getTime() - now.getTime()) / 1000;
  const step = STEPS.find(([below]) => Math.abs(seconds) < below);
  return step ? RELATIVE.format(Math.round(seconds / step[2]), step[1]) : RELATIVE.format(dateOf(then) - dateOf(now), 'day');
}

/** The local date as a number of days. */
function dateOf(instant: Date): number {
  return Date.UTC(instant.getFullYear(), instant.getMonth(), instant.getDate()) / 86_400_000;
}
