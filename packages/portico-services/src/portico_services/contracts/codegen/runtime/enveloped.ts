/** The data of a result {status, data, error, explanation}. */
function enveloped<T>(said: unknown): T | null {
  const { structuredContent, text } = received(said);
  const result = (structuredContent ?? JSON.parse(text)) as { data?: T | null };
  return result.data ?? null;
}
