/** Whatever calls tools. The official clients do, and so does any object with this one method. */
export interface Caller {
  callTool(params: { name: string; arguments?: Record<string, unknown> }): Promise<unknown>;
}

/** A tool that said no. */
export class ToolFailure extends Error {}

interface Said {
  content?: Array<{ type?: string; text?: string }>;
  structuredContent?: unknown;
  isError?: boolean;
}

function received(said: unknown): Said & { text: string } {
  const result = (said ?? {}) as Said;
  const blocks = Array.isArray(result.content) ? result.content : [];
  const text = blocks.map((block) => (block.type === "text" ? (block.text ?? "") : "")).join("");
  if (result.isError) {
    throw new ToolFailure(text);
  }
  return { ...result, text };
}
