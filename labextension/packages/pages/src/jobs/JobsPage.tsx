/** The list of jobs, and the form that submits one. */

import type { SortingState, Updater } from '@tanstack/react-table';
import { useCallback, useEffect, useMemo, useRef, useState, useSyncExternalStore } from 'react';

import type { Job } from '@jupyter-gpu-quota/api';
import { BulkActions, DataTable, DraftStore, ErrorText, SubmitForm, useGpuState, usePanelContext } from '@jupyter-gpu-quota/components';

import { plural } from '../pieces';
import { jobColumns } from './columns';
import { addressOf, filterOf, NO_FILTER, PERIODS, queryOf, STATES, type Filter } from './filter';
import { JobListing } from './listing';

const SEARCH_AFTER_MS = 250;

export function JobsPage({ user, prefix }: { user: string; prefix: string }): JSX.Element {
  const { model } = usePanelContext();
  const { connection } = useGpuState();
  const [filter, setFilter] = useState<Filter>(() => filterOf(window.location.search, user));
  const listing = useMemo(() => new JobListing(model), [model]);
  const { jobs, total, loading, error } = useSyncExternalStore(listing.subscribe, listing.snapshot);
  const [selected, setSelected] = useState<Record<string, boolean>>({});
  useFilter(listing, filter);
  const columns = useMemo(() => jobColumns(prefix), [prefix]);
  const sorting = useMemo(() => [{ id: filter.sort.replace('-', ''), desc: filter.sort.startsWith('-') }], [filter.sort]);
  const sort = useCallback(
    (next: Updater<SortingState>) =>
      setFilter(before => {
        const [by] = typeof next === 'function' ? next([{ id: before.sort.replace('-', ''), desc: before.sort.startsWith('-') }]) : next;
        return { ...before, sort: by ? `${by.desc ? '-' : ''}${by.id}` : NO_FILTER.sort };
      }),
    [],
  );
  const chosen = jobs.filter(job => selected[job.id]);
  return (
    <>
      <Submit user={user} />
      <FilterBar filter={filter} onChange={setFilter} user={user} jobs={jobs} />
      <ErrorText error={connection === 'live' ? error : ''} />
      <p className="muted" role="status" id="jobs-count">
        {loading ? 'Loading…' : plural(total, 'job', 'jobs')}
      </p>
      {chosen.length > 0 && <BulkActions chosen={chosen} onDone={() => setSelected({})} after={() => document.getElementById('jobs-scroll')} />}
      {jobs.length > 0 ? (
        <DataTable
          id="jobs"
          className="jobs"
          caption={filter.sort === NO_FILTER.sort ? 'Visible jobs, newest first' : 'Visible jobs'}
          items={jobs}
          columns={columns}
          keyOf={job => job.id}
          rowIdOf={job => `job-${job.id}`}
          total={total}
          onEnd={listing.more}
          sorting={sorting}
          onSorting={sort}
          selection={selected}
          onSelection={next => setSelected(before => (typeof next === 'function' ? next(before) : next))}
        />
      ) : (
        !loading && <NoJobs isFiltered={addressOf(filter) !== ''} onClear={() => setFilter(NO_FILTER)} />
      )}
    </>
  );
}

/** Show a filter, and write it into the address; a text that is being typed a little later. */
function useFilter(listing: JobListing, filter: Filter): void {
  const before = useRef<Filter | null>(null);
  useEffect(() => {
    const typed = before.current !== null && (before.current.search !== filter.search || before.current.user !== filter.user);
    before.current = filter;
    const show = (): void => {
      window.history.replaceState(null, '', window.location.pathname + addressOf(filter));
      listing.show(() => queryOf(filter, Date.now()));
    };
    const timer = setTimeout(show, typed ? SEARCH_AFTER_MS : 0);
    return () => clearTimeout(timer);
  }, [listing, filter]);
}

function NoJobs({ isFiltered, onClear }: { isFiltered: boolean; onClear(): void }): JSX.Element {
  return isFiltered ? (
    <p className="empty">
      No job matches. <button onClick={onClear}>Show all</button>
    </p>
  ) : (
    <p className="empty">
      No jobs here. Submit one above, or from a notebook: <code>jupyter gpu-quota submit --gpu 1 -- python train.py</code>
    </p>
  );
}

function Submit({ user }: { user: string }): JSX.Element | null {
  const { projects, me } = useGpuState();
  const drafts = useMemo(() => new DraftStore(`jupyter-gpu-quota:page-draft:${user}`), [user]);
  if (me === null) {
    return null;
  }
  if (!projects.some(project => project.submit && project.submit.pools.length > 0)) {
    return <p className="muted">Your projects have no quota for jobs; an admin can add some in the quota file.</p>;
  }
  return (
    <details className="submit" id="submit" open={window.location.hash === '#submit'}>
      <summary>Submit a job</summary>
      <p className="muted">
        Send a script or an archive, or name a folder of your home in which the job runs, or give a command that needs no files.
        JupyterLab and <code>jupyter gpu-quota submit</code> pack a folder.
      </p>
      <SubmitForm drafts={drafts} />
    </details>
  );
}

interface FilterBarProps {
  filter: Filter;
  onChange(filter: Filter): void;
  user: string;
  jobs: readonly Job[];
}

function FilterBar({ filter, onChange, user, jobs }: FilterBarProps): JSX.Element {
  const { projects } = useGpuState();
  const users = useMemo(() => [...new Set([user, ...jobs.map(job => job.user)])].sort(), [user, jobs]);
  const names = [...new Set([...projects.map(project => project.name), ...(filter.project ? [filter.project] : [])])];
  const text = (name: 'search' | 'user', label: string, list?: string): JSX.Element => (
    <label>
      {label}
      <input id={`filter-${name}`} type="search" list={list} value={filter[name]} onChange={event => onChange({ ...filter, [name]: event.target.value })} />
    </label>
  );
  const choice = (name: 'project' | 'state' | 'since', label: string, options: Record<string, string>): JSX.Element => (
    <label>
      {label}
      <select id={`filter-${name}`} value={filter[name]} onChange={event => onChange({ ...filter, [name]: event.target.value })}>
        {Object.entries(options).map(([value, shown]) => (
          <option key={value} value={value}>
            {shown}
          </option>
        ))}
      </select>
    </label>
  );
  return (
    <div className="filters" role="search" aria-label="Jobs">
      {text('search', 'Name, command or id')}
      {text('user', 'User', 'users')}
      <datalist id="users">
        {users.map(name => (
          <option key={name} value={name} />
        ))}
      </datalist>
      {choice('project', 'Project', { '': 'all', ...Object.fromEntries(names.map(name => [name, name])) })}
      {choice('state', 'State', { '': 'any', ...STATES })}
      {choice('since', 'Submitted in', { '': 'any time', ...PERIODS })}
      <button id="mine" type="button" aria-pressed={filter.user === user} onClick={() => onChange({ ...filter, user: filter.user === user ? '' : user })}>
        Mine
      </button>
    </div>
  );
}
