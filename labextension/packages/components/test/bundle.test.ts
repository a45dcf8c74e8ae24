import { parseTarGzip } from 'nanotar';
import { expect, test } from 'vitest';

import { bundleOf, commandOf } from '../src/submit/bundle';

test('a script is packed alone', async () => {
  const [entry, ...rest] = await parseTarGzip(await bundleOf(new File(['print(1)'], 'train.py')));
  expect([entry?.name, entry?.text, rest.length]).toEqual(['train.py', 'print(1)', 0]);
});

test('a packed folder is sent as it is', async () => {
  expect([...(await bundleOf(new File([new Uint8Array([1, 2])], 'work.tar.gz')))]).toEqual([1, 2]);
});

test('the command of a script', () => {
  const commands = ['train.py', 'run.sh', 'a.ipynb', 'a.tgz', 'a b.py', "it's#1.sh"].map(name => commandOf(new File([], name)));
  expect(commands).toEqual(['python train.py', 'bash run.sh', 'a.ipynb', '', "python 'a b.py'", "bash 'it'\\''s#1.sh'"]);
});
