import { expect, test, vi } from 'vitest';

import { statusItem } from '../src/status';

vi.mock('@jupyterlab/apputils', () => ({ ReactWidget: class {} }));

/** A status bar as JupyterLab's: it shows and hides the item itself, at each change of the layout. */
function shownIn(setting: { on: boolean } | null): { shown(): boolean; change(on: boolean): void; layout(): void } {
  const item = { isHidden: false };
  const slots: (() => void)[] = [];
  const found = setting && { get: () => ({ composite: setting.on }), changed: { connect: (slot: () => void) => slots.push(slot) } };
  const registered = statusItem(item as never, found as never);
  const layout = (): void => void (item.isHidden = !(registered.isActive ?? (() => true))());
  registered.activeStateChanged?.connect(layout);
  layout();
  const change = (on: boolean): void => {
    setting!.on = on;
    slots.forEach(slot => slot());
  };
  return { shown: () => !item.isHidden, change, layout };
}

test('the item stays hidden while its setting is off, and the setting is applied at once', () => {
  const bar = shownIn({ on: false });
  bar.layout();
  expect(bar.shown()).toBe(false);
  bar.change(true);
  expect(bar.shown()).toBe(true);
  bar.change(false);
  bar.layout();
  expect(bar.shown()).toBe(false);
});

test('without settings the item is shown', () => {
  expect(shownIn(null).shown()).toBe(true);
});
