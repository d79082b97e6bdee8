/** Before 2025-06-18, the text of a result is its JSON. */
function structured<T>(response: unknown): T {
  const { structuredContent, text } = received(response);
  return (structuredContent ?? JSON.parse(text)) as T;
}
