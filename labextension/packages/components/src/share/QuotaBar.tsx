import { gpus } from '../amounts';

export interface Part {
  readonly milli: number;
  readonly kind: 'used' | 'over' | 'notebook' | 'borrowed';
}

/** Parts of a whole as a bar, with a mark at the quota; `label` says the same in words. */
export function QuotaBar(props: { parts: readonly Part[]; quotaMilli: number; label: string }): JSX.Element {
  const used = props.parts.reduce((sum, part) => sum + part.milli, 0);
  const whole = Math.max(used, props.quotaMilli, 1);
  return (
    <div className="jgq-bar" role="img" aria-label={props.label} title={props.label}>
      {props.parts.map(part => (
        <span key={part.kind} className={`jgq-bar-${part.kind}`} style={{ width: `${(100 * part.milli) / whole}%` }} />
      ))}
      {props.quotaMilli > 0 && props.quotaMilli < whole && (
        <i style={{ left: `${(100 * props.quotaMilli) / whole}%` }} title={`${gpus(props.quotaMilli)} GPU`} />
      )}
    </div>
  );
}
