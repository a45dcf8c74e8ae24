import { readFileSync } from 'node:fs';

import { expect, test } from 'vitest';

const CSS = readFileSync(new URL('../style/base.css', import.meta.url), 'utf8');
const AA = 4.5;

/** JupyterLab's themes: the channel and the opacity of --jp-ui-font-color1, the grey of a field and of --jp-layout-color2. */
const THEMES = [
  { name: 'light', font: 0, opacity: 0.87, grounds: [0xf5, 0xee] },
  { name: 'dark', font: 255, opacity: 0.87, grounds: [0x42, 0x42] },
];
const OF_FONT_COLOR2 = 0.54 / 0.87;

function luminance(channel: number): number {
  const part = channel / 255;
  return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
}

/** The contrast of a grey font of some opacity with the grey below it. */
function contrast(font: number, opacity: number, ground: number): number {
  const [dark, light] = [luminance(font * opacity + ground * (1 - opacity)), luminance(ground)].sort((a, b) => a - b);
  return (light! + 0.05) / (dark! + 0.05);
}

/** The smallest contrast with the grounds of any theme. `part`: of the opacity of --jp-ui-font-color1. */
function least(part: number): number {
  return Math.min(...THEMES.flatMap(({ font, opacity, grounds }) => grounds.map(ground => contrast(font, part * opacity, ground))));
}

test.each(['.jgq-input::placeholder', '.jgq-job[data-selected] .jgq-quiet', '.jgq-outcome[aria-busy="true"]'])(
  '%s has enough contrast in both themes, which --jp-ui-font-color2 lacks there',
  selector => {
    const rules = CSS.split('\n').filter(line => line.split('{')[0]!.split(',').some(one => one.trim() === selector));
    const [mixed] = rules.flatMap(rule => /color: color-mix\(in srgb, var\(--jp-ui-font-color1\) (\d+)%, transparent\)/.exec(rule) ?? []).slice(1);
    expect(least(Number(mixed) / 100)).toBeGreaterThanOrEqual(AA);
    expect(rules.join()).not.toContain('font-color2');
    expect(least(OF_FONT_COLOR2)).toBeLessThan(AA);
  },
);
