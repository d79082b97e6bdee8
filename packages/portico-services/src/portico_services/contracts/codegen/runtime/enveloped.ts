/** The data of a result {status, data, error, explanation}. */
function enveloped<T>(response: unknown): T | null {
  const { structuredContent, text } = received(response);
  const result = (structuredContent ?? JSON.parse(text)) as { data?: T | null };
  return result.data ?? null;
}
