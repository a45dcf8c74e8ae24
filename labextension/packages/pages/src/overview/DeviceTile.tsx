/** One device: its bar, its use, and the work on it. */

import { memo } from 'react';

import type { Device, Holder } from '@jupyter-gpu-quota/api';
import { gpus } from '@jupyter-gpu-quota/components';

import { DeviceHistory } from './DeviceHistory';
import { Enforcement, Explained, Meter, Quiet, Swatch, Under, useColours, Utilised } from '../pieces';

const BAR = 1000;
const GAP = 6;

/** The allocations of a device side by side, then foreign use, in thousandths of its width. */
export const DeviceBar = memo(function DeviceBar({ device }: { device: Device }): JSX.Element {
  const colour = useColours();
  const parts = device.holders.map(holder => ({ width: holder.gpu_milli, colour: colour(holder.project) }));
  parts.push({ width: device.foreign_milli, colour: 'foreign' });
  let start = 0;
  const placed = parts.filter(part => part.width > 0).map(part => ({ ...part, start: (start += part.width) - part.width }));
  return (
    <svg className={`bar${device.health === 'healthy' ? '' : ' unhealthy'}`} viewBox={`0 0 ${BAR} 20`} preserveAspectRatio="none" aria-hidden="true">
      <rect className="track" width={BAR} height="20" />
      {placed.map(part => (
        <rect key={part.start} className={`fill ${part.colour}`} x={part.start} width={part.width} height="20" />
      ))}
      {placed
        .filter(part => part.start + part.width < BAR)
        .map(part => (
          <rect key={part.start} className="gap" x={part.start + part.width - GAP / 2} width={GAP} height="20" />
        ))}
    </svg>
  );
});

export const DeviceTile = memo(function DeviceTile({ device, prefix }: { device: Device; prefix: string }): JSX.Element {
  return (
    <article
      className={`tile${device.health === 'healthy' ? '' : ' unhealthy'}`}
      id={`device-${device.id}`}
      aria-labelledby={`device-${device.id}-name`}
    >
      <h4 id={`device-${device.id}-name`}>
        {device.model} <Quiet>no. {device.index}</Quiet>
      </h4>
      <p className="tile-facts">
        <code>{device.id}</code> on {device.node}
      </p>
      <Facts device={device} />
      <DeviceBar device={device} />
      {device.utilisation_percent !== null && <Meter used={device.utilisation_percent} of={100} />}
      <DeviceHistory device={device} />
      <ul className="holders">
        {device.holders.map((holder, at) => (
          <HolderItem key={holder.workload ?? at} holder={holder} device={device} prefix={prefix} />
        ))}
        {device.holders.length === 0 && <li className="muted">unused</li>}
        {device.foreign_milli > 0 && (
          <li>
            <Swatch project={null} />
            <div className="muted">
              foreign process
              {device.foreign_why && <Under>{device.foreign_why}</Under>}
            </div>
            <b>{gpus(device.foreign_milli)}</b>
          </li>
        )}
      </ul>
    </article>
  );
});

function Facts({ device }: { device: Device }): JSX.Element {
  return (
    <div className="tile-facts">
      {device.health !== 'healthy' && (
        <>
          <span className="state s-failed">{device.health}</span> {device.trouble} ·{' '}
        </>
      )}
      <b>{gpus(device.free_milli)}</b> free
      {device.upkeep !== 'none' && <span className="s-held">, node {device.upkeep}: no work starts here</span>}
      {device.gone_at && <span className="s-failed">, gone</span>} ·{' '}
      {device.utilisation_percent === null ? (
        <Explained why={device.utilisation_unknown}>use unknown</Explained>
      ) : (
        `${device.utilisation_percent} % in use when last read`
      )}
    </div>
  );
}

function HolderItem({ holder, device, prefix }: { holder: Holder; device: Device; prefix: string }): JSX.Element {
  if (holder.kind === 'hidden') {
    return (
      <li>
        <Swatch project={null} />
        <div>
          <Explained why="Work of a project that you are not a member of is not named.">another project</Explained>
        </div>
        <b>{gpus(holder.gpu_milli)}</b>
      </li>
    );
  }
  return (
    <li>
      <Swatch project={holder.project} />
      <div>
        {holder.kind === 'job' ? <a href={`${prefix}jobs/${holder.workload}`}>{holder.name ?? holder.workload}</a> : 'notebook'} of {holder.user} ·{' '}
        {holder.project}
        {holder.kind === 'job' && holder.state !== 'running' && ` · ${holder.state}`}
        <Under>
          uses <Utilised of={holder} />
          {!device.simulated && (
            <>
              {' '}
              · <Enforcement of={holder} />
            </>
          )}
        </Under>
      </div>
      <b>{gpus(holder.gpu_milli)}</b>
    </li>
  );
}
