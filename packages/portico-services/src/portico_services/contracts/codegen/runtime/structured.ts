function structured<T>(said: unknown): T {
  return received(said).structuredContent as T;
}
