/** The devices by pool and node, of which only the visible rows are drawn. */

import { useVirtualizer } from '@tanstack/react-virtual';
import { useDeferredValue, useEffect, useMemo, useRef, useState } from 'react';

import type { Device, Pool } from '@jupyter-gpu-quota/api';
import { gpus } from '@jupyter-gpu-quota/components';

import { isAvailable } from '../amounts';
import { plural, Simulated, Utilised, When } from '../pieces';
import type { ClusterState } from './cluster';
import { DeviceBar, DeviceTile } from './DeviceTile';
import { isGone, matching, rowsOf, type DeviceFilter, type DeviceRow } from './rows';

/** With so many devices all nodes are open at first. */
const OPEN_UP_TO = 24;
const ROW_PX = 56;

interface DevicesProps {
  state: ClusterState;
  filter: DeviceFilter;
  onFilter(filter: DeviceFilter): void;
  prefix: string;
}

export function Devices({ state, filter, onFilter, prefix }: DevicesProps): JSX.Element {
  const asked = useDeferredValue(filter);
  const shown = useMemo(() => matching(state.devices.values(), asked), [state.devices, asked]);
  const rows = useMemo(() => rowsOf(state.pools, shown, asked), [state.pools, shown, asked]);
  const [toggled, setToggled] = useState<ReadonlySet<string>>(new Set());
  useEffect(() => setToggled(new Set()), [asked]);
  const present = useMemo(() => shown.filter(device => !isGone(device)).length, [shown]);
  const openFirst = present <= OPEN_UP_TO;
  const toggle = (key: string): void => {
    const next = new Set(toggled);
    next.delete(key) || next.add(key);
    setToggled(next);
  };
  return (
    <>
      <DeviceFilters filter={filter} onFilter={onFilter} pools={state.pools} />
      <p className="muted" role="status" id="devices-count">
        {readingOf(state) || plural(present, 'device', 'devices')}
      </p>
      <DeviceList rows={rows} isOpen={key => toggled.has(key) !== openFirst} onToggle={toggle} prefix={prefix} />
    </>
  );
}

/** What is said while devices are being read; empty when all are read. */
function readingOf({ devices, devicesTotal }: ClusterState): string {
  if (devicesTotal === null) {
    return 'Reading the devices…';
  }
  return devices.size < devicesTotal ? `Reading the devices: ${devices.size} of ${devicesTotal}…` : '';
}

interface DeviceFiltersProps {
  filter: DeviceFilter;
  onFilter(filter: DeviceFilter): void;
  pools: readonly Pool[];
}

function DeviceFilters({ filter, onFilter, pools }: DeviceFiltersProps): JSX.Element {
  return (
    <div className="filters" role="search" aria-label="GPUs">
      <label>
        Node, device, model, user, project or job
        <input id="devices-text" type="search" value={filter.text} onChange={event => onFilter({ ...filter, text: event.target.value })} />
      </label>
      <label>
        Pool
        <select id="devices-pool" value={filter.pool} onChange={event => onFilter({ ...filter, pool: event.target.value })}>
          <option value="">all</option>
          {pools.map(pool => (
            <option key={pool.name}>{pool.name}</option>
          ))}
        </select>
      </label>
      <label>
        Devices
        <select
          id="devices-condition"
          value={filter.condition}
          onChange={event => onFilter({ ...filter, condition: event.target.value as DeviceFilter['condition'] })}
        >
          <option value="">all</option>
          <option value="free">with free GPU</option>
          <option value="full">without free GPU</option>
          <option value="unused">allocated, but not in use</option>
          <option value="unavailable">unhealthy, closed or gone</option>
        </select>
      </label>
    </div>
  );
}

interface DeviceListProps {
  rows: readonly DeviceRow[];
  isOpen(key: string): boolean;
  onToggle(key: string): void;
  prefix: string;
}

function DeviceList({ rows, isOpen, onToggle, prefix }: DeviceListProps): JSX.Element {
  const scroller = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_PX,
    getItemKey: index => rows[index]?.key ?? index,
    overscan: 6,
  });
  return (
    <div className="device-list" id="devices-scroll" ref={scroller} tabIndex={0} role="region" aria-label="Devices by pool and node">
      <ul style={{ height: virtual.getTotalSize() }}>
        {virtual.getVirtualItems().map(item => {
          const row = rows[item.index];
          return (
            row && (
              <li key={item.key} ref={virtual.measureElement} data-index={item.index} style={{ transform: `translateY(${item.start}px)` }}>
                <Row row={row} isOpen={isOpen(row.key)} onToggle={() => onToggle(row.key)} prefix={prefix} />
              </li>
            )
          );
        })}
      </ul>
    </div>
  );
}

function Row({ row, isOpen, onToggle, prefix }: { row: DeviceRow; isOpen: boolean; onToggle(): void; prefix: string }): JSX.Element {
  switch (row.kind) {
    case 'pool':
      return <PoolHead pool={row.pool} />;
    case 'node':
      return <NodeRow node={row.node} devices={row.devices} isOpen={isOpen} onToggle={onToggle} prefix={prefix} />;
    case 'none':
      return <p className="muted">{row.isFiltered ? 'No device of this pool matches.' : 'No node reports a device of this pool.'}</p>;
    case 'gone':
      return <Gone devices={row.devices} />;
  }
}

function PoolHead({ pool }: { pool: Pool }): JSX.Element {
  return (
    <div className="pool-head" id={`pool-${pool.name}`}>
      <h3>{pool.name}</h3> {pool.simulated && <Simulated />}
      <div>
        {plural(pool.devices, 'device', 'devices')} · <b>{gpus(pool.free_milli)}</b> of {gpus(pool.capacity_milli)} GPU free ·{' '}
        {pool.utilised_milli == null ? (
          <>
            use <Utilised of={pool} />
          </>
        ) : (
          <>{gpus(pool.utilised_milli)} GPU in use when last read</>
        )}
        {pool.waiting_jobs ? ` · ${plural(pool.waiting_jobs, 'job waits', 'jobs wait')}` : ''}
      </div>
    </div>
  );
}

interface NodeRowProps {
  node: string;
  devices: readonly Device[];
  isOpen: boolean;
  onToggle(): void;
  prefix: string;
}

function NodeRow({ node, devices, isOpen, onToggle, prefix }: NodeRowProps): JSX.Element {
  const free = devices.reduce((sum, device) => sum + (isAvailable(device) ? device.free_milli : 0), 0);
  const upkeep = devices.find(device => device.upkeep !== 'none')?.upkeep;
  const sick = devices.filter(device => device.health !== 'healthy').length;
  const models = [...new Set(devices.map(device => device.model))].join(', ');
  return (
    <div className="node">
      <button className="node-head" aria-expanded={isOpen} onClick={onToggle}>
        <span className="node-name">
          <span aria-hidden="true">{isOpen ? '▾' : '▸'}</span> {node} <span className="muted">{models}</span>
          {upkeep && <span className="tag s-held">{upkeep}</span>}
          {sick > 0 && <span className="tag s-failed">{sick} not healthy</span>}
        </span>
        <span className="node-bars">
          {devices.map(device => (
            <DeviceBar key={device.id} device={device} />
          ))}
        </span>
        <span className="node-free">
          <b>{gpus(free)}</b> of {devices.length} free
        </span>
      </button>
      {isOpen && (
        <div className="tiles">
          {devices.map(device => (
            <DeviceTile key={device.id} device={device} prefix={prefix} />
          ))}
        </div>
      )}
    </div>
  );
}

function Gone({ devices }: { devices: readonly Device[] }): JSX.Element {
  return (
    <details className="gone">
      <summary>{devices.length === 1 ? '1 device is gone' : `${devices.length} devices are gone`}</summary>
      <ul>
        {devices.map(device => (
          <li key={device.id}>
            <code>{device.id}</code> {device.model} on {device.node}, gone since <When at={device.gone_at} />
          </li>
        ))}
      </ul>
    </details>
  );
}
