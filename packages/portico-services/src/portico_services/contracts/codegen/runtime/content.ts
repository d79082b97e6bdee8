/** What a tool gives that promises nothing about it. */
export interface ToolContent {
  /** All text of the result. */
  text: string;
  content: unknown[];
}

function content(said: unknown): ToolContent {
  const { text, content: blocks } = received(said);
  return { text, content: blocks ?? [] };
}
