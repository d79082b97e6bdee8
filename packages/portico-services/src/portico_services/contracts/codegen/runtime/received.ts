/** A client that calls tools: an official client, or any object with `callTool`. */
export interface Caller {
  callTool(params: { name: string; arguments?: Record<string, unknown> }): Promise<unknown>;
  /** If present, the versions of the tools are checked before the first call. */
  listTools?(params?: { cursor?: string }): Promise<unknown>;
}

/** An error that a tool reports. */
export class ToolFailure extends Error {
  /** One of the error types that tools share, such as ValidationError; ToolExecutionError if the server states none. */
  readonly errorType: string;
  readonly details: Record<string, unknown>;
  /** Whether the same call may succeed later. */
  readonly retryable: boolean;

  constructor(message: string, error: Record<string, unknown> = {}) {
    super(message);
    this.name = "ToolFailure";
    const { error_type, error_message: _, error_details, retryable, ...rest } = error;
    this.errorType = typeof error_type === "string" ? error_type : "ToolExecutionError";
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

interface ToolResponse {
  content?: Array<{ type?: string; text?: string }>;
  structuredContent?: unknown;
  isError?: boolean;
  _meta?: Record<string, unknown>;
}

function received(response: unknown): ToolResponse & { text: string } {
  const result = (response ?? {}) as ToolResponse;
  const blocks = Array.isArray(result.content) ? result.content : [];
  const text = blocks.map((block) => (block.type === "text" ? (block.text ?? "") : "")).join("");
  if (result.isError) {
    const error = result._meta?.["portico/error"];
    throw new ToolFailure(text, typeof error === "object" && error !== null ? (error as Record<string, unknown>) : {});
  }
  return { ...result, text };
}

/** Returns the versions of the listed tools by name. */
async function listedVersions(caller: Caller): Promise<Record<string, string>> {
  const versions: Record<string, string> = {};
  let cursor: string | undefined;
  do {
    const page = (await caller.listTools?.(cursor === undefined ? {} : { cursor })) as
      | { tools?: Array<{ name: string; _meta?: Record<string, unknown> }>; nextCursor?: string }
      | undefined;
    for (const tool of page?.tools ?? []) {
      const version = tool._meta?.["portico/version"];
      if (typeof version === "string") {
        versions[tool.name] = version;
      }
    }
    cursor = page?.nextCursor;
  } while (cursor !== undefined);
  return versions;
}

/** Throws if the major version of a tool differs; other minor and patch versions are compatible. */
function requireVersion(tool: string, expected: string, found: string | undefined): void {
  if (found !== undefined && parseInt(found, 10) !== parseInt(expected, 10)) {
    throw new IncompatibleVersion(tool, expected, found);
  }
}
