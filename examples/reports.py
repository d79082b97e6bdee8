"""Tasks: work that takes longer than a call and survives a restart of the server.

portico serve examples/reports.py --transport http --store reports.db
portico worker examples/reports.py --store reports.db                    workers in separate processes
"""

import asyncio

from portico import Client, Context, Server, TaskConfig, ToolError

server = Server("reports", version="1.0.0")

SENT: list[str] = []


@server.tool(task="optional")
async def make_report(ctx: Context, topic: str, chapters: int = 3) -> str:
    """Write a report, chapter by chapter.

    Args:
        topic: Subject of the report.
        chapters: Number of chapters.
    """
    written = []
    for number in range(1, chapters + 1):
        text = await ctx.step(f"chapter {number}", lambda number=number: write(topic, number))
        written.append(text)
        ctx.report_progress(number, chapters, text)
    return "\n".join(written)


async def write(topic: str, number: int) -> str:
    await asyncio.sleep(0.1)
    return f"{number}. More about {topic}"


@server.tool(task=TaskConfig(mode="required", max_retries=3, retry_delay=1.0, max_concurrency=2, priority=5, ttl=3600))
async def send_report(topic: str, ctx: Context) -> str:
    """Send a report to all subscribers after the user confirmed it."""
    confirmation = await ctx.elicit(f"Send the report about {topic} to all subscribers?", bool)
    if not confirmation.data:
        raise ToolError("The user did not confirm the report.")
    await ctx.step("send", lambda: SENT.append(topic))
    return "sent"


@server.tool(task=TaskConfig(detachable=True))
async def order_report(ctx: Context) -> str:
    """Ask for the topic during the call, then write the report as a task."""
    topic = await ctx.elicit("What should it be about?", str)
    await ctx.continue_as_task()
    return await ctx.step("write", lambda: write(topic.data, 1))


async def reconnect_to_task(target: object) -> str:
    async with Client(target) as client:
        task = await client.start_task("make_report", {"topic": "bees", "chapters": 2})
        task_id = task.id
    async with Client(target) as client:
        task = client.task(task_id, "make_report")
        while await task.refresh() == "working":
            print(task.message)
            await asyncio.sleep(0.1)
        return (await task.result()).text


if __name__ == "__main__":
    server.run()
