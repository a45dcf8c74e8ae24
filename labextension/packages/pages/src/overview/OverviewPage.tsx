/** The overview: figures, projects, devices by pool and node, and the slices of notebooks. */

import { useMemo, useState, useSyncExternalStore } from 'react';

import type { Pool } from '@jupyter-gpu-quota/api';
import { ErrorText, gpus, useGpuState, usePanelContext } from '@jupyter-gpu-quota/components';

import { Cluster, type ClusterState } from './cluster';
import { Devices } from './Devices';
import { Notebooks } from './Notebooks';
import { ProjectsTable } from './ProjectsTable';
import { ALL_DEVICES } from './rows';

export function OverviewPage({ prefix }: { prefix: string }): JSX.Element {
  const { model } = usePanelContext();
  const { connection } = useGpuState();
  const cluster = useMemo(() => new Cluster(model), [model]);
  const state = useSyncExternalStore(cluster.subscribe, cluster.snapshot);
  const [filter, setFilter] = useState(ALL_DEVICES);
  const show = (device: string): void => {
    setFilter({ ...ALL_DEVICES, text: device });
    document.getElementById('devices')?.scrollIntoView();
  };
  return (
    <>
      <Patterns />
      <ErrorText error={connection === 'live' ? state.error : ''} />
      <Figures state={state} />
      <section aria-labelledby="projects-title">
        <h2 id="projects-title">Projects</h2>
        <ProjectsTable />
      </section>
      <section aria-labelledby="devices-title" id="devices">
        <h2 id="devices-title">GPUs</h2>
        {state.isLoaded && state.pools.length === 0 ? (
          <div className="empty" id="no-pools">
            <h3>No quota file is in force yet</h3>
            <p>
              An admin puts one in force with <code>jupyter gpu-quota quota apply FILE</code>; until then no GPU is allocated.
            </p>
          </div>
        ) : (
          <Devices state={state} filter={filter} onFilter={setFilter} prefix={prefix} />
        )}
      </section>
      <section aria-labelledby="notebooks-title">
        <h2 id="notebooks-title">Notebook slices</h2>
        <Notebooks notebooks={state.notebooks} isLoaded={state.isLoaded} onDevice={show} />
      </section>
    </>
  );
}

function sumOf(pools: readonly Pool[], of: (pool: Pool) => number | null | undefined): number {
  return pools.reduce((sum, pool) => sum + (of(pool) ?? 0), 0);
}

function Figures({ state: { pools, notebooks, isLoaded } }: { state: ClusterState }): JSX.Element {
  const capacity = sumOf(pools, pool => pool.capacity_milli);
  const allocated = sumOf(pools, pool => pool.allocated_milli);
  const held = sumOf(pools, pool => pool.held_jobs);
  const slices = notebooks.filter(one => one.state === 'booked' || one.state === 'lent').length;
  const figure = (count: number): string => (isLoaded ? count.toLocaleString('en') : '…');
  return (
    <dl className="figures" id="figures">
      <div id="figure-gpu">
        <dt>GPU allocated</dt>
        <dd>
          <b>{isLoaded ? gpus(allocated) : '…'}</b> of {isLoaded ? gpus(capacity) : '…'}
        </dd>
      </div>
      <div id="figure-running">
        <dt>Jobs on a GPU, all projects</dt>
        <dd>
          <b>{figure(sumOf(pools, pool => pool.running_jobs))}</b>
        </dd>
      </div>
      <div id="figure-waiting">
        <dt>Jobs waiting, all projects</dt>
        <dd>
          <b>{figure(sumOf(pools, pool => pool.waiting_jobs))}</b>
          {held > 0 && ` and ${held} held`}
        </dd>
      </div>
      <div id="figure-notebooks">
        <dt>Visible notebook slices</dt>
        <dd>
          <b>{figure(slices)}</b>
        </dd>
      </div>
    </dl>
  );
}

/** The patterns of foreign use and of work that is not visible. */
function Patterns(): JSX.Element {
  return (
    <svg className="patterns" aria-hidden="true" width="0" height="0">
      <defs>
        <pattern id="hatch" width="14" height="20" patternUnits="userSpaceOnUse">
          <rect className="hatch-back" width="14" height="20" />
          <path className="hatch-line" d="M0 20 14 0" />
        </pattern>
        <pattern id="dots" width="14" height="10" patternUnits="userSpaceOnUse">
          <rect className="hatch-back" width="14" height="10" />
          <circle className="hatch-dot" cx="7" cy="5" r="2.5" />
        </pattern>
      </defs>
    </svg>
  );
}
