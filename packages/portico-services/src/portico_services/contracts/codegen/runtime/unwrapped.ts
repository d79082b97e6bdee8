/** Protocol versions before 2026-07-28 wrap a value that is not an object in `result`. */
function unwrapped<T>(response: unknown): T {
  const value = received(response).structuredContent;
  const isWrapped = typeof value === "object" && value !== null && Object.keys(value).join() === "result";
  return (isWrapped ? (value as { result: unknown }).result : value) as T;
}
