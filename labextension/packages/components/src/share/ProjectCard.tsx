/** One's projects: the quota of each pool, what is in use, and who holds the GPUs. */

import { RUNNING, type Job, type Project, type ProjectPool } from '@jupyter-gpu-quota/api';

import { duration, gpus, mebibytes } from '../amounts';
import { useGpuState, useTrans, type Translations } from '../context';
import { QuotaBar } from './QuotaBar';

export function ProjectCards(): JSX.Element {
  const { projects, me, jobs } = useGpuState();
  const trans = useTrans();
  const mine = projects.filter(project => project.role !== null);
  if (me !== null && mine.length === 0) {
    return <p className="jgq-quiet">{trans.__('You are in no project with GPUs. A hub admin adds members in the quota file.')}</p>;
  }
  return (
    <>
      {mine.map(project => (
        <ProjectCard key={project.name} project={project} running={running(jobs.values(), project.name)} />
      ))}
    </>
  );
}

function running(jobs: Iterable<Job>, project: string): Job[] {
  return [...jobs].filter(job => job.project === project && RUNNING.has(job.state));
}

function ProjectCard({ project, running }: { project: Project; running: Job[] }): JSX.Element {
  const trans = useTrans();
  return (
    <section className="jgq-project">
      <h4>
        {project.name}
        {project.role === 'lead' && <span className="jgq-tag">{trans.__('lead')}</span>}
        {project.department && <span className="jgq-quiet"> · {project.department.name}</span>}
      </h4>
      {project.pools.map(pool => (
        <PoolRow key={pool.pool} pool={pool} usageByUser={usageByUser(running.filter(job => job.pool === pool.pool))} />
      ))}
      {project.storage && <StorageRow storage={project.storage} />}
    </section>
  );
}

/** The space of the outputs of ended jobs, and how long they are kept; unknown space is not 0. */
function StorageRow({ storage }: { storage: NonNullable<Project['storage']> }): JSX.Element {
  const trans = useTrans();
  const { limit_mib: limit, used_mib: used, keep_s: keep } = storage;
  const isFull = limit != null && used != null && used >= limit;
  const facts = [
    limit != null && trans.__('outputs %1 of %2', used == null ? trans.__('unknown') : mebibytes(used), mebibytes(limit)),
    isFull && trans.__('full: no job can be submitted before outputs of ended jobs are removed'),
    keep != null && trans.__('outputs are kept for %1', duration(keep * 1000)),
  ];
  return <p className={isFull ? 'jgq-over' : 'jgq-quiet'}>{facts.filter(fact => fact !== false).join(' · ')}</p>;
}

/** Who holds how much in these jobs, the most first. */
function usageByUser(jobs: readonly Job[]): [string, number][] {
  const milli = new Map<string, number>();
  for (const job of jobs) {
    const held = job.gpu_milli * (job.held_ranks ?? job.ranks);
    milli.set(job.user, (milli.get(job.user) ?? 0) + held);
  }
  return [...milli].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
}

function PoolRow({ pool, usageByUser }: { pool: ProjectPool; usageByUser: [string, number][] }): JSX.Element {
  const trans = useTrans();
  const within = Math.min(pool.training_used_milli, pool.training_milli);
  const over = pool.training_used_milli - within;
  const notebooks = notebookFacts(pool, trans);
  const isUsed = pool.training_milli + pool.training_used_milli + pool.fair_share_milli > 0 || notebooks.length === 0;
  const facts = [...(isUsed ? trainingFacts(pool, trans) : []), ...notebooks].join(' · ');
  return (
    <div className="jgq-pool">
      <p>
        <b>{pool.pool}</b> {!isUsed && <span className="jgq-quiet">{facts}</span>}
        {isUsed && trans.__('%1 GPU in use, quota %2', gpus(pool.training_used_milli), gpus(pool.training_milli))}
        {over > 0 && <span className="jgq-over"> {trans.__('(%1 over quota)', gpus(over))}</span>}
      </p>
      {isUsed && (
        <QuotaBar
          parts={[
            { milli: within, kind: 'used' },
            { milli: over, kind: 'over' },
          ]}
          quotaMilli={pool.training_milli}
          label={trans.__('%1: %2 GPU within the quota of %3, %4 over it', pool.pool, gpus(within), gpus(pool.training_milli), gpus(over))}
        />
      )}
      {isUsed && <p className="jgq-quiet">{facts}</p>}
      {usageByUser.length > 0 && (
        <p className="jgq-quiet">
          {trans.__('In use by')} {usageByUser.map(([user, milli]) => `${user} ${gpus(milli)}`).join(' · ')}
        </p>
      )}
    </div>
  );
}

function trainingFacts(pool: ProjectPool, trans: Translations): string[] {
  const own = pool.user_jobs_milli;
  const facts = [
    pool.in_force_training_milli !== pool.training_milli &&
      trans.__('%1 of the quota in force, because the pool has too few GPUs', gpus(pool.in_force_training_milli)),
    trans.__('fair share %1', gpus(pool.fair_share_milli)),
    pool.limit_milli != null && trans.__('limit %1', gpus(pool.limit_milli)),
    pool.borrowed_milli > 0 && trans.__('%1 borrowed from notebooks or from a reservation', gpus(pool.borrowed_milli)),
    trans._n('%1 job waits', '%1 jobs wait', pool.queued_jobs),
    pool.utilised_milli != null && trans.__('measured use %1', gpus(pool.utilised_milli)),
    own != null && trans.__('your jobs %1 of at most %2', gpus(pool.own_jobs_milli), gpus(own)),
  ];
  return facts.filter((fact): fact is string => fact !== false);
}

function notebookFacts(pool: ProjectPool, trans: Translations): string[] {
  if (pool.notebook_milli === 0 && pool.notebook_used_milli === 0) {
    return [];
  }
  const own = pool.user_notebook_milli;
  const all = trans.__('notebooks %1 of %2', gpus(pool.notebook_used_milli), gpus(pool.notebook_milli));
  return own == null ? [all] : [all, trans.__('yours %1 of at most %2', gpus(pool.own_notebook_milli), gpus(own))];
}
