/** The files that a job left in its outputs folder. */

import type { ColumnDef } from '@tanstack/react-table';
import { useMemo } from 'react';

import { ENDED, type JobDetail, type Output } from '@jupyter-gpu-quota/api';
import { bytes, DataTable, OutputsError, RemoveOutputs, useOutputs } from '@jupyter-gpu-quota/components';

import { outputAddress, outputsArchiveAddress, type Frame } from '../frame';
import { When } from '../pieces';

const NOT_READ = { files: [], total: 0, truncated: false };

export function OutputsSection({ job, frame }: { job: JobDetail; frame: Frame }): JSX.Element {
  const { found, error, again } = useOutputs(job);
  const { files, total, truncated } = found ?? NOT_READ;
  const columns = useMemo((): ColumnDef<Output>[] => {
    return [
      {
        id: 'path',
        accessorKey: 'path',
        header: 'File',
        meta: { rowHeader: true },
        cell: ({ row: { original: file } }) => (
          <a href={outputAddress(frame, job.id, file.path)} download>
            {file.path}
          </a>
        ),
      },
      { id: 'size', accessorKey: 'size_bytes', header: 'Size', meta: { label: 'Size', className: 'num' }, cell: ({ row }) => bytes(row.original.size_bytes) },
      { id: 'changed', accessorKey: 'modified_at', header: 'Changed', meta: { label: 'Changed' }, cell: ({ row }) => <When at={row.original.modified_at} /> },
    ];
  }, [frame, job.id]);
  const more = truncated ? 'more than ' : '';
  const cut = truncated || files.length < total ? `: the first ${files.length} of ${more}${total.toLocaleString('en')}` : '';
  return (
    <section aria-labelledby="outputs-title" id="outputs-section">
      <h2 id="outputs-title" tabIndex={-1}>Outputs</h2>
      <OutputsError error={error} again={again} />
      {files.length > 0 ? (
        <>
          <DataTable id="outputs" className="named" caption={`Files in its outputs folder${cut}`} items={files} columns={columns} keyOf={file => file.path} />
          <p className="muted" id="outputs-cut">
            <a href={outputsArchiveAddress(frame, job.id)} download>
              Download as one archive
            </a>
            {cut && (
              <>
                , or <code>jupyter gpu-quota outputs --download FOLDER {job.id}</code> copies{' '}
                {truncated ? `${total} of them, the largest number that is listed; pack many small files into archives` : 'all of them'}
              </>
            )}
            .
          </p>
        </>
      ) : found === null ? (
        error === '' && <p className="muted">Loading…</p>
      ) : ENDED.has(job.state) ? (
        <p className="muted">None: the job left no files, or they were removed.</p>
      ) : (
        <p className="muted">
          None yet. Files that the job writes to the folder <code>$GPU_QUOTA_OUTPUT_DIR</code> are kept and listed here.
        </p>
      )}
      <RemoveOutputs job={job} left={files.length} again={again} after={() => document.getElementById('outputs-title')} />
    </section>
  );
}
