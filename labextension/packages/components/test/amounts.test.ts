import { expect, test } from 'vitest';

import { bytes, duration, gpuHours, gpus, mebibytes, percentage } from '../src/amounts';

test.each([
  [250, '0.25'],
  [1000, '1'],
  [333, '0.333'],
])('%i milli-GPU', (milli, text) => expect(gpus(milli)).toBe(text));

test.each([
  [0, '0 s'],
  [61_000, '1 min 1 s'],
  [3_600_000, '1 h'],
  [90_061_000, '1 d 1 h'],
  [-5, '0 s'],
])('%i ms', (ms, text) => expect(duration(ms)).toBe(text));

// The command line prints the same: tests/core/test_amounts.py has these rows and those of durations.
test.each([
  [0, '0'],
  [1, '<0.001'],
  [3_599, '<0.001'],
  [25_000, '0.006'],
  [36_000, '0.01'],
  [5_400_000, '1.5'],
])('%i milli-GPU seconds', (amount, text) => expect(gpuHours(amount)).toBe(text));

test('a percentage that was rounded down to 0', () => {
  expect([percentage(0, true), percentage(0, false), percentage(7, true)]).toEqual(['<1 %', '0 %', '7 %']);
});

test('sizes', () => {
  expect([mebibytes(512), mebibytes(10_137), bytes(0), bytes(1536)]).toEqual(['512 MiB', '9.9 GiB', '0 B', '1.5 KiB']);
});
