import { describe, expect, it } from 'vitest';

import type { Sample } from '@jupyter-gpu-quota/api';

import { historyOf } from '../src/overview/history';

function sample(second: number, percent: number | null, allocated: number | null = 500): Sample {
  return { at: new Date(second * 1000).toISOString(), utilisation_percent: percent, allocated_milli: allocated } as Sample;
}

describe('the history of a device', () => {
  it('is in order of time, in parts of the GPU', () => {
    const found = historyOf([sample(20, 50), sample(10, 0, 1000)]);
    expect(found).toEqual({ times: [10, 20], used: [0, 0.5], allocated: [1, 0.5] });
  });

  it('has a gap, not 0, where the use is unknown', () => {
    expect(historyOf([sample(20, null, null), sample(10, 7)]).used).toEqual([0.07, null]);
  });

  it('has a gap where readings are missing', () => {
    const found = historyOf([sample(100, 9), sample(30, 3), sample(20, 2), sample(10, 1)]);
    expect(found.times).toEqual([10, 20, 30, 65, 100]);
    expect(found.used).toEqual([0.01, 0.02, 0.03, null, 0.09]);
    expect(found.allocated[3]).toBeNull();
  });

  it('is empty without readings', () => {
    expect(historyOf([])).toEqual({ times: [], used: [], allocated: [] });
  });
});
