/** Amounts and times, written the same way everywhere. */

const HOUR_S = 3_600;

/** Milli-GPU as GPUs, exactly: 250 is "0.25". */
export function gpus(milli: number): string {
  return String(milli / 1000);
}

/** Milli-GPU times seconds; an older service has only hours. Used is null where it is unknown. */
export function gpuMilliSeconds(row: { allocated_milli_h: number; allocated_milli_s?: number | null; used_milli_h: number | null; used_milli_s?: number | null }): {
  allocated: number;
  used: number | null;
} {
  const used = row.used_milli_h === null ? null : (row.used_milli_s ?? row.used_milli_h * HOUR_S);
  return { allocated: row.allocated_milli_s ?? row.allocated_milli_h * HOUR_S, used };
}

/** Milli-GPU times seconds as GPU hours: "1.5", "0.007", "<0.001"; only nothing is "0". */
export function gpuHours(milliSeconds: number): string {
  return milliSeconds > 0 && milliSeconds < HOUR_S ? '<0.001' : gpus(Math.floor(milliSeconds / HOUR_S));
}

/** A percentage that was rounded down; `something`: it is not really 0. */
export function percentage(percent: number, something: boolean): string {
  return something && percent === 0 ? '<1 %' : `${percent} %`;
}

export function mebibytes(mib: number): string {
  return mib >= 1024 ? `${Math.round((mib / 1024) * 10) / 10} GiB` : `${mib} MiB`;
}

export function bytes(count: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const power = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(1, count)) / 10));
  return `${Math.round((count / 2 ** (10 * power)) * 10) / 10} ${units[power]}`;
}

const UNITS: readonly (readonly [number, string])[] = [
  [86_400, 'd'],
  [3_600, 'h'],
  [60, 'min'],
  [1, 's'],
];

/** A duration in its two greatest units: "1 h 5 min". */
export function duration(ms: number): string {
  let rest = Math.max(0, Math.round(ms / 1000));
  const parts: string[] = [];
  for (const [seconds, unit] of UNITS) {
    const count = Math.floor(rest / seconds);
    rest -= count * seconds;
    if (count > 0 || (unit === 's' && parts.length === 0)) {
      parts.push(`${count} ${unit}`);
    }
  }
  return parts.slice(0, 2).join(' ');
}

/** How long ago an instant was. */
export function age(instant: string, now: number): string {
  return duration(now - Date.parse(instant));
}

/** An instant as local time: the time of day, with the date unless it is today. */
export function localTime(instant: string, now: number): string {
  const then = new Date(instant);
  const today = then.toDateString() === new Date(now).toDateString();
  const time: Intl.DateTimeFormatOptions = { hour: '2-digit', minute: '2-digit' };
  return then.toLocaleString(undefined, today ? time : { ...time, month: 'short', day: 'numeric' });
}
