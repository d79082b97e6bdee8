"""A worker: claims and completes tasks until none is left. Any number of workers can share a store.

python examples/tasks_worker.py "portico serve examples/tasks_planner.py" ann
"""

import asyncio
import sys

from portico import Client


async def work(target, name):
    """Complete all available tasks and return their ids."""
    completed = []
    async with Client(target) as client:
        while True:
            answer = (await client.call_tool("next_task", {"worker": name, "lease": 600})).structured
            if not answer["found"]:
                return completed
            task = answer["task"]
            result = f"{name} has done: {task['description']}"
            await client.call_tool("complete_task", {"id": task["id"], "result": result, "worker": name})
            completed.append(task["id"])


if __name__ == "__main__":
    print(*asyncio.run(work(*sys.argv[1:3])), sep="\n")
