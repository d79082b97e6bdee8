"""Work that takes longer than a call: a task, which survives the end of its process.

portico serve examples/reports.py --transport http --store reports.db
portico worker examples/reports.py --store reports.db                    workers alone, in as many processes as you like
"""

import asyncio

from portico import Client, Context, Server, TaskConfig, ToolError

server = Server("reports", version="1.0.0")

SENT: list[str] = []


@server.tool(task="optional")
async def make_report(ctx: Context, topic: str, chapters: int = 3) -> str:
    """Write a report, chapter by chapter.

    Args:
        topic: What it is about.
        chapters: How many there are.
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
    """Send a report to everybody, after somebody has said yes."""
    sure = await ctx.elicit(f"Send the report about {topic} to everybody?", bool)
    if not sure.data:
        raise ToolError("Nobody wanted it sent.")
    await ctx.step("send", lambda: SENT.append(topic))
    return "sent"


@server.tool(task=TaskConfig(detachable=True))
async def order_report(ctx: Context) -> str:
    """Ask what is wanted while somebody is there, and write it when they have gone."""
    topic = await ctx.elicit("What should it be about?", str)
    await ctx.continue_as_task()
    return await ctx.step("write", lambda: write(topic.data, 1))


async def come_back_later(target: object) -> str:
    async with Client(target) as client:
        task = await client.start_task("make_report", {"topic": "bees", "chapters": 2})
        number = task.id
    async with Client(target) as client:
        task = client.task(number, "make_report")
        while await task.refresh() == "working":
            print(task.message)
            await asyncio.sleep(0.1)
        return (await task.result()).text


if __name__ == "__main__":
    server.run()
