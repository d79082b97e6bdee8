/** Whatever calls tools. The official clients do, and so does any object with `callTool`. */
export interface Caller {
  callTool(params: { name: string; arguments?: Record<string, unknown> }): Promise<unknown>;
  /** With this one, the versions of the tools are checked before the first call. */
  listTools?(params?: { cursor?: string }): Promise<unknown>;
}

/** An error that a tool reports. */
export class ToolFailure extends Error {
  /** One of the error types that tools share, such as ValidationError; empty where the server does not report it. */
  readonly kind: string;
  readonly details: Record<string, unknown>;
  /** Whether the same call may succeed later. */
  readonly retryable: boolean;

  constructor(message: string, about: Record<string, unknown> = {}) {
    super(message);
    this.name = "ToolFailure";
    const { error_type, error_message: _, error_details, retryable, ...rest } = about;
    this.kind = typeof error_type === "string" ? error_type : "";
    this.retryable = retryable === true;
    const inner = typeof error_details === "object" && error_details !== null ? error_details : {};
    this.details = typeof error_details === "string" ? { ...rest, text: error_details } : { ...rest, ...inner };
  }
}

/** The server has another major version of a tool than this client was generated for. Nothing was called. */
export class IncompatibleVersion extends Error {
  readonly tool: string;
  readonly expected: string;
  readonly found: string;

  constructor(tool: string, expected: string, found: string) {
    super(
      `${tool}: this client was generated for version ${expected}, and the server has version ${found}, which is not ` +
        "compatible. Generate the client again: portico contracts codegen",
    );
    this.name = "IncompatibleVersion";
    this.tool = tool;
    this.expected = expected;
    this.found = found;
  }
}

interface Said {
  content?: Array<{ type?: string; text?: string }>;
  structuredContent?: unknown;
  isError?: boolean;
  _meta?: Record<string, unknown>;
}

function received(said: unknown): Said & { text: string } {
  const result = (said ?? {}) as Said;
  const blocks = Array.isArray(result.content) ? result.content : [];
  const text = blocks.map((block) => (block.type === "text" ? (block.text ?? "") : "")).join("");
  if (result.isError) {
    const about = result._meta?.["portico/error"];
    throw new ToolFailure(text, typeof about === "object" && about !== null ? (about as Record<string, unknown>) : {});
  }
  return { ...result, text };
}

/** The versions that the server lists, by the names of its tools. */
async function listedVersions(caller: Caller): Promise<Record<string, string>> {
  const found: Record<string, string> = {};
  let cursor: string | undefined;
  do {
    const page = (await caller.listTools?.(cursor === undefined ? {} : { cursor })) as
      | { tools?: Array<{ name: string; _meta?: Record<string, unknown> }>; nextCursor?: string }
      | undefined;
    for (const tool of page?.tools ?? []) {
      const version = tool._meta?.["portico/version"];
      if (typeof version === "string") {
        found[tool.name] = version;
      }
    }
    cursor = page?.nextCursor;
  } while (cursor !== undefined);
  return found;
}

/** Refuses a tool whose major version is another one; a different minor or patch version is compatible. */
function requireVersion(tool: string, expected: string, found: string | undefined): void {
  if (found !== undefined && parseInt(found, 10) !== parseInt(expected, 10)) {
    throw new IncompatibleVersion(tool, expected, found);
  }
}
