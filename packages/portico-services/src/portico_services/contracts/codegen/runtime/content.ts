/** The result of a tool without an output schema. */
export interface ToolContent {
  /** All text of the result. */
  text: string;
  content: unknown[];
}

function content(response: unknown): ToolContent {
  const { text, content: blocks } = received(response);
  return { text, content: blocks ?? [] };
}
