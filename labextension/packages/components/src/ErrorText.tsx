/** The message of a failure, announced by screen readers. */
export function ErrorText({ error }: { error: string }): JSX.Element | null {
  return error ? (
    <p className="jgq-error" role="alert">
      {error}
    </p>
  ) : null;
}
