import { expect, test } from 'vitest';

import { KernelMemory } from '../src/kernel-memory';

function storage(): Storage {
  const kept = new Map<string, string>();
  return {
    getItem: (key: string) => kept.get(key) ?? null,
    setItem: (key: string, text: string) => kept.set(key, text),
    removeItem: (key: string) => kept.delete(key),
  } as unknown as Storage;
}

test('two users of one browser have a memory each for notebooks of the same name', () => {
  const browser = storage();
  new KernelMemory('http://hub/user/bob/', browser).remember('Untitled.ipynb', 'k1');
  const patty = new KernelMemory('http://hub/user/patty/', browser);
  expect(patty.kernelOf('Untitled.ipynb')).toBeNull();
  patty.remember('Untitled.ipynb', 'k2');
  patty.remember('Untitled.ipynb', undefined);
  expect(new KernelMemory('http://hub/user/bob/', browser).kernelOf('Untitled.ipynb')).toBe('k1');
});

test('a blocked storage does no harm', () => {
  const refuse = (): never => {
    throw new Error('blocked');
  };
  const memory = new KernelMemory('http://hub/', { getItem: refuse, setItem: refuse, removeItem: refuse } as unknown as Storage);
  memory.remember('a.ipynb', 'k1');
  memory.remember('a.ipynb', undefined);
  expect(memory.kernelOf('a.ipynb')).toBeNull();
});
