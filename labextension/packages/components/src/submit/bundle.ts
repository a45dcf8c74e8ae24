/** A file of the browser as the code of a job: a packed folder as it is, or a script packed alone. */

import { createTarGzip } from 'nanotar';

import { quotedName } from './draft';

const PACKED = /\.(tar\.gz|tgz)$/i;

export async function bundleOf(file: File): Promise<Uint8Array> {
  const data = new Uint8Array(await file.arrayBuffer());
  return PACKED.test(file.name) ? data : createTarGzip([{ name: file.name, data }], { attrs: { mtime: 0 } });
}

/** The command that runs a script, for a form without one; '' for other files. */
export function commandOf(file: File): string {
  const programs: Record<string, string> = { py: 'python ', sh: 'bash ', ipynb: '' };
  const program = programs[file.name.split('.').pop() ?? ''];
  return program === undefined ? '' : program + quotedName(file.name);
}
