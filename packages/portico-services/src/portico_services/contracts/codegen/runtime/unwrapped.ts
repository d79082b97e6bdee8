/** Not an object: revisions before 2026-07-28 put one around it. */
function unwrapped<T>(said: unknown): T {
  const value = received(said).structuredContent;
  const isWrapped = typeof value === "object" && value !== null && Object.keys(value).join() === "result";
  return (isWrapped ? (value as { result: unknown }).result : value) as T;
}
