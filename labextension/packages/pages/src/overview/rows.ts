/** The rows of the list of devices: each pool, its nodes, and its devices that are gone. */

import type { Device, Pool } from '@jupyter-gpu-quota/api';

import { isAvailable } from '../amounts';

export interface DeviceFilter {
  readonly text: string;
  readonly pool: string;
  readonly condition: '' | 'free' | 'full' | 'unused' | 'unavailable';
}

export const ALL_DEVICES: DeviceFilter = { text: '', pool: '', condition: '' };

export type DeviceRow =
  | { readonly kind: 'pool'; readonly key: string; readonly pool: Pool }
  | { readonly kind: 'node'; readonly key: string; readonly node: string; readonly devices: readonly Device[] }
  | { readonly kind: 'none'; readonly key: string; readonly isFiltered: boolean }
  | { readonly kind: 'gone'; readonly key: string; readonly devices: readonly Device[] };

/** Use below it counts as none. */
const UNUSED_PERCENT = 5;

const CONDITIONS: Record<Exclude<DeviceFilter['condition'], ''>, (device: Device) => boolean> = {
  free: device => device.free_milli > 0 && isAvailable(device),
  full: device => device.free_milli === 0,
  unused: device => device.holders.length > 0 && device.utilisation_percent !== null && device.utilisation_percent < UNUSED_PERCENT,
  unavailable: device => !isAvailable(device),
};

function textOf(device: Device): string {
  const holders = device.holders.map(one => `${one.user ?? ''} ${one.project ?? ''} ${one.name ?? ''}`);
  return `${device.id} ${device.node} ${device.model} ${holders.join(' ')}`.toLowerCase();
}

/** The devices that a filter shows. Unknown use is not "unused". */
export function matching(devices: Iterable<Device>, filter: DeviceFilter): Device[] {
  const text = filter.text.trim().toLowerCase();
  const holds = filter.condition ? CONDITIONS[filter.condition] : () => true;
  return [...devices].filter(
    device => (!filter.pool || device.pool === filter.pool) && holds(device) && (!text || textOf(device).includes(text)),
  );
}

/** The rows of the pools in their order; devices that are gone and hold nothing are listed last. */
export function rowsOf(pools: readonly Pool[], devices: readonly Device[], filter: DeviceFilter): DeviceRow[] {
  const isFiltered = filter.text.trim() !== '' || filter.condition !== '';
  const byPool = groupedBy(devices, device => device.pool ?? '');
  return pools
    .filter(pool => !filter.pool || pool.name === filter.pool)
    .flatMap((pool): DeviceRow[] => {
      const own = byPool.get(pool.name) ?? [];
      const gone = own.filter(isGone);
      const nodes = groupedBy(own.filter(device => !isGone(device)), device => device.node);
      const rows: DeviceRow[] = [...nodes].map(([node, inside]) => ({ kind: 'node', key: `${pool.name}/${node}`, node, devices: inside }));
      if (rows.length === 0 && (isFiltered || pool.devices === 0)) {
        rows.push({ kind: 'none', key: `${pool.name}:none`, isFiltered });
      }
      if (gone.length > 0) {
        rows.push({ kind: 'gone', key: `${pool.name}:gone`, devices: gone });
      }
      return [{ kind: 'pool', key: pool.name, pool }, ...rows];
    });
}

/** No node reports it, and nothing is on it. */
export function isGone(device: Device): boolean {
  return Boolean(device.gone_at) && device.holders.length === 0;
}

function groupedBy(devices: readonly Device[], of: (device: Device) => string): Map<string, Device[]> {
  const groups = new Map<string, Device[]>();
  for (const device of devices) {
    const group = groups.get(of(device));
    group ? group.push(device) : groups.set(of(device), [device]);
  }
  return groups;
}
