/** The files that a job left in its outputs folder. */

import type { ColumnDef } from '@tanstack/react-table';
import { useEffect, useMemo, useState } from 'react';

import type { JobDetail, Output } from '@jupyter-gpu-quota/api';
import { bytes, usePanelContext } from '@jupyter-gpu-quota/components';

import { outputAddress, outputsArchiveAddress, type Frame } from '../frame';
import { DataTable } from '../DataTable';
import { When } from '../pieces';

interface Outputs {
  readonly files: Output[];
  readonly total: number;
  readonly truncated: boolean;
}

export function OutputsSection({ job, frame }: { job: JobDetail; frame: Frame }): JSX.Element {
  const { files, total, truncated } = useOutputs(job);
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
      <h2 id="outputs-title">Outputs</h2>
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
      ) : (
        <p className="muted">
          None yet. Files that the job writes to the folder <code>$GPU_QUOTA_OUTPUT_DIR</code> are kept and listed here.
        </p>
      )}
    </section>
  );
}

function useOutputs(job: JobDetail): Outputs {
  const { model } = usePanelContext();
  const [found, setFound] = useState<Outputs>({ files: [], total: 0, truncated: false });
  useEffect(() => {
    let current = true;
    model.transport.service.outputs(job.id).then(
      answer => current && setFound(answer),
      () => undefined, // Those that were read before stay.
    );
    return () => {
      current = false;
    };
  }, [model, job.id, job.state, job.progress?.done]);
  return found;
}
