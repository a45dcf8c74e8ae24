/** The use and the allocations of one device over time, read when it is opened. */

import { useEffect, useMemo, useState } from 'react';

import type { Device, Sample } from '@jupyter-gpu-quota/api';
import { ErrorText, LineChart, useNow, usePanelContext } from '@jupyter-gpu-quota/components';

import { historyOf } from './history';

const EVERY_MS = 10_000;
const WHOLE = [0, 1] as const;

export function DeviceHistory({ device }: { device: Device }): JSX.Element {
  const [open, setOpen] = useState(false);
  return (
    <details className="history" onToggle={event => setOpen(event.currentTarget.open)}>
      <summary>Use over time</summary>
      {open && <Chart device={device} />}
    </details>
  );
}

function Chart({ device }: { device: Device }): JSX.Element {
  const { model } = usePanelContext();
  const [samples, setSamples] = useState<readonly Sample[] | null>(null);
  const [error, setError] = useState('');
  const now = useNow(EVERY_MS);
  const tick = document.hidden ? 0 : now;
  useEffect(() => {
    let current = true;
    model.transport.service.deviceHistory(device.id).then(
      found => current && (setSamples(found), setError('')),
      (failure: Error) => current && setError(failure.message),
    );
    return () => {
      current = false;
    };
  }, [model, device.id, tick]);
  const { times, used, allocated } = useMemo(() => historyOf(samples ?? []), [samples]);
  const lines = useMemo(
    () => [
      { name: 'allocated', values: allocated, colour: '--jp-warn-color1', stepped: true },
      { name: 'used', values: used },
    ],
    [used, allocated],
  );
  const known = used.filter((value): value is number => value !== null);
  const mean = known.length === 0 ? 'unknown' : `${Math.round((100 * known.reduce((sum, value) => sum + value, 0)) / known.length)} %`;
  const label = `Use of ${device.id} over time: ${mean} on average of ${known.length} readings, ${used.length - known.length} unknown`;
  return (
    <>
      <ErrorText error={error} />
      {samples !== null && times.length < 2 && <p className="muted">There are no readings yet.</p>}
      {times.length > 1 && (
        <figure className="jgq-chart">
          <figcaption>
            <span className="line-used">used</span> (mean {mean}) and <span className="line-allocated">allocated</span> part of the GPU; a gap is unknown
          </figcaption>
          <LineChart label={label} times={times} lines={lines} name="GPU" range={WHOLE} />
        </figure>
      )}
    </>
  );
}
