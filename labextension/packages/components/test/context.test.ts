import { createElement, useState } from 'react';
import { renderToStaticMarkup } from 'react-dom/server';
import { expect, test } from 'vitest';

import { useAction } from '../src/context';

test('the function that runs an action stays the same when its component is drawn again', () => {
  const runs: unknown[] = [];
  function Twice(): null {
    const [isAgain, setAgain] = useState(false);
    runs.push(useAction().run);
    isAgain || setAgain(true);
    return null;
  }
  renderToStaticMarkup(createElement(Twice));
  expect([runs.length, new Set(runs).size]).toEqual([2, 1]);
});
