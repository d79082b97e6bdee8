// What both TypeScript clients say to us. Each step is printed as one line of JSON: {"step", "value"} or {"step", "error"}.
//
// node v1.mjs REVISION EVERYTHING SMALL BOUNDED
//
// EVERYTHING, SMALL and BOUNDED are where the servers are: a URL, or the words of a command in a JSON array.

const PATIENCE = 10_000;

const print = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

async function step(name, body) {
  try {
    print({ step: name, value: (await body()) ?? null });
  } catch (error) {
    print({ step: name, error: { code: error.code ?? null, message: error.message } });
  }
}

// What the server says unasked, in order. It is waited for, because it comes on a stream of its own.
class Heard {
  notices = [];
  #waiting = [];

  add(method, params) {
    this.notices.push({ method: method.replace("notifications/", ""), params });
    for (const look of this.#waiting) look();
  }

  of(method) {
    return this.notices.filter((notice) => notice.method === method).map((notice) => notice.params);
  }

  until(method, times = 1) {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        const heard = JSON.stringify(this.notices);
        reject(new Error(`${method} was not heard ${times} times within ${PATIENCE} ms; what was: ${heard}`));
      }, PATIENCE);
      const look = () => {
        if (this.of(method).length >= times) {
          clearTimeout(timer);
          resolve();
        }
      };
      this.#waiting.push(look);
      look();
    });
  }
}

// Who sits at the client.
class Person {
  action = "accept";
  content = {};
  asked = [];

  elicit(params) {
    this.asked.push(params);
    return this.action === "accept" ? { action: "accept", content: this.content } : { action: this.action };
  }

  sample(params) {
    this.asked.push(params);
    return { role: "assistant", model: "a-model", stopReason: "endTurn", content: { type: "text", text: "Paris" } };
  }

  roots() {
    return { roots: [{ uri: "file:///project", name: "project" }] };
  }
}

const text = (result) => result.content[0].text;

// `connect(where, revision, person, heard)` gives a peer: the client, and the few verbs that the two spell differently.
export async function converse(connect) {
  const [revision, ...places] = process.argv.slice(2);
  if (places[0] === "ten") return tenAtOnce(connect, revision, new URL(places[1]));
  const [everything, small, bounded] = places.map((place) => (place.startsWith("[") ? JSON.parse(place) : new URL(place)));
  const complaints = [];
  for (const [where, about] of [
    [everything, aboutEverything],
    [small, aboutSmall],
    [bounded, aboutBounded],
  ]) {
    const person = new Person();
    const heard = new Heard();
    const peer = await connect(where, revision, person, heard);
    peer.client.onerror = (error) => complaints.push(String(error));
    await about(peer, person, heard, revision >= "2026-07-28");
    await peer.client.close();
  }
  // A client that cannot read what we send says so here, and goes on as if nothing had been sent. That its streams
  // have ended is said here too, and is no complaint.
  print({ step: "complaints", value: complaints.filter((one) => !one.includes("AbortError")) });
  // Connections that are kept alive would keep Node alive too, for seconds.
  process.stdout.write("", () => process.exit(0));
}

// Ten connections side by side, to a server of several processes: `node v1.mjs REVISION ten URL`.
async function tenAtOnce(connect, revision, where) {
  const modern = revision >= "2026-07-28";
  const numbers = [...Array(10).keys()];
  const all = await Promise.all(
    numbers.map(async (number) => {
      const person = new Person();
      const heard = new Heard();
      const peer = await connect(where, revision, person, heard);
      person.content = { username: `user ${number}`, email: "a@b.example" };
      return { peer, heard, call: async (...words) => text(await peer.call(...words)) };
    }),
  );
  const said = await Promise.all(
    all.map(async ({ peer, call }) => {
      const steps = [];
      return {
        revision: peer.revision(),
        call: await call("test_simple_text"),
        elicitation: await call("test_elicitation", { message: "Who?" }),
        sampling: await call("test_sampling", { prompt: "The capital of France?" }),
        progress: [
          await call("test_tool_with_progress", {}, { onprogress: ({ progress }) => steps.push(progress) }),
          steps,
        ],
        resumption: await call("test_reconnection"),
      };
    }),
  );
  if (!modern) {
    await all[0].call("grow");
    for (const [number, { peer, heard }] of all.entries()) {
      await heard.until("tools/list_changed");
      said[number].tools = (await peer.client.listTools()).tools.map((tool) => tool.name);
    }
    await all[0].call("shrink");
  }
  print({ step: "ten", value: said });
  process.stdout.write("", () => process.exit(0));
}

async function aboutEverything(peer, person, heard, modern) {
  const { client, call } = peer;

  await step("opening", () => ({
    revision: peer.revision(),
    server: client.getServerVersion().name,
    instructions: client.getInstructions(),
    capabilities: Object.keys(client.getServerCapabilities()).sort(),
  }));
  if (!modern) await step("ping", () => client.ping());
  await step("tools", async () => (await client.listTools()).tools.map((tool) => tool.name));
  await step("text", async () => text(await call("test_simple_text")));
  await step("contents", async () =>
    (await call("test_multiple_content_types")).content.map((content) => content.type),
  );
  await step("tool says no", () => call("test_error_handling"));
  await step("unknown tool", () => call("test_simple_tex"));
  await step("header", async () => text(await call("test_x_mcp_header", { region: "Zürich, west" })));

  const steps = [];
  const onprogress = ({ progress, total, message }) => steps.push([progress, total, message]);
  await step("progress", async () => [text(await call("test_tool_with_progress", {}, { onprogress })), steps]);
  await step("logs", async () => {
    if (!modern) await client.setLoggingLevel("info");
    const _meta = modern ? { "io.modelcontextprotocol/logLevel": "info" } : undefined;
    await call("test_logging_tool", {}, {}, _meta);
    await heard.until("message", 3);
    return heard.of("message").map(({ level }) => level);
  });
  await step("reconnection", async () => text(await call("test_reconnection")));

  await step("resources", async () => (await client.listResources()).resources.map(({ uri }) => uri));
  await step("templates", async () =>
    (await client.listResourceTemplates()).resourceTemplates.map(({ uriTemplate }) => uriTemplate),
  );
  await step("read", async () => (await client.readResource({ uri: "test://template/123/data" })).contents);
  await step("read nothing", () => client.readResource({ uri: "test://nothing" }));
  await step("prompts", async () => (await client.listPrompts()).prompts.map(({ name }) => name));
  const named = { name: "test_prompt_with_arguments", arguments: { arg1: "hello", arg2: "world" } };
  await step("prompt", async () => (await client.getPrompt(named)).messages);
  const argument = { ref: { type: "ref/prompt", name: named.name }, argument: { name: "arg1", value: "par" } };
  await step("complete", async () => (await client.complete(argument)).completion.values);

  await step("sampling", async () => [
    text(await call("test_sampling", { prompt: "What is the capital of France?" })),
    person.asked.at(-1)?.messages?.[0].content.text,
  ]);
  person.content = { username: "alice", email: "alice@example.com" };
  await step("elicitation", async () => [
    text(await call("test_elicitation", { message: "Who are you?" })),
    person.asked.at(-1)?.message,
  ]);
  person.action = "decline";
  await step("refusal", async () => text(await call("test_elicitation", { message: "Who are you?" })));
  person.action = "accept";
  await step("roots", async () => text(await call("test_input_required_result_list_roots")));
  person.content = { name: "Alice", color: "blue" };
  await step("three questions", async () => text(await call("test_input_required_result_multiple_inputs")));
  await step("two rounds", async () => text(await call("test_input_required_result_multi_round")));
}

// A server with a budget for results: what arrives of long ones, and whether the rest can be read.
async function aboutBounded(peer) {
  const { client, call } = peer;
  await client.listTools();
  for (const size of [1_000, 100_000, 3_000_000]) {
    await step(`text of ${size}`, async () => {
      const { content } = await call("long_text", { size });
      const texts = content.filter((block) => block.type === "text").map((block) => block.text);
      const links = content.filter((block) => block.type === "resource_link").map((block) => block.uri);
      const id = /result:\/\/([\w-]{32})/.exec(texts.join(" "))?.[1];
      if (!id) return { shown: texts.join("").length, links };
      const [read] = (await call("read_result", { id, offset: size - 20 })).content;
      const [whole] = (await client.readResource({ uri: `result://${id}` })).contents;
      return { shown: texts.join("").length, links, id, end: read.text, whole: whole.text.length };
    });
  }
  await step("list of 5000", async () => {
    const result = await call("long_list", { count: 5_000 });
    return { isError: result.isError ?? false, structured: result.structuredContent?.result?.length ?? null };
  });
}

async function aboutSmall(peer, person, heard, modern) {
  const { client, call } = peer;

  // The clients check a result against the schema in the list, if they have seen it.
  const before = (await client.listTools()).tools.length;
  await step("structured", async () => (await call("weather", { city: "Paris" })).structuredContent ?? null);
  await step("kinds of results", async () => {
    const kinds = {};
    for (const kind of ["text", "number", "list", "nothing", "object", "either", "maybe"]) {
      const result = await call(`give_${kind}`);
      kinds[kind] = result.isError ? "failed" : (result.structuredContent ?? "none");
    }
    return kinds;
  });
  await step("text of a value", async () => JSON.parse(text(await call("weather", { city: "Paris" }))));
  await step("fifty calls", async () => {
    const calls = Array.from({ length: 50 }, (_, at) => call(at % 2 ? "add" : "multiply", { a: at, b: 2 }));
    return (await Promise.all(calls)).map((result) => Number(text(result)));
  });

  for (const body of ["wait_forever", "block"]) {
    await step(`cancel ${body}`, async () => {
      const giving = new AbortController();
      const options = { signal: giving.signal, onprogress: () => giving.abort("Never mind.") };
      const ended = await call(body, {}, options).then(
        () => "answered",
        () => "given up",
      );
      return [ended, text(await call("was_stopped"))];
    });
  }

  const uri = "notes://today";
  const changed = ["tools", "prompts", "resources"].map((kind) => `${kind}/list_changed`);
  await step("changes", async () => {
    const wanted = { toolsListChanged: true, promptsListChanged: true, resourcesListChanged: true };
    const listening = modern ? await client.listen({ ...wanted, resourceSubscriptions: [uri] }) : null;
    if (!modern) await client.subscribeResource({ uri });
    await call("touch", { uri: "notes://other" });
    await call("touch", { uri });
    await heard.until("resources/updated");
    if (!modern) await client.unsubscribeResource({ uri });
    await call("grow");
    for (const method of changed) await heard.until(method);
    await listening?.close();
    await call("touch", { uri });
    // What was not to be heard would have been heard before this.
    const later = modern ? await client.listen(wanted) : null;
    await call("grow");
    for (const method of changed) await heard.until(method, 2);
    await later?.close();
    const updated = heard.of("resources/updated").map((params) => params.uri);
    return { updated, more: (await client.listTools()).tools.length - before };
  });
  if (peer.end) await step("end of session", () => peer.end());
}
