"""A worker: takes one task after the other until there is nothing to do. Start as many as you like on one store.

python examples/tasks_worker.py "portico serve examples/tasks_planner.py" ann
"""

import asyncio
import sys

from portico import Client


async def work(target, name):
    """Do what there is to do; the ids of what was done."""
    done = []
    async with Client(target) as client:
        while True:
            answer = (await client.call_tool("next_task", {"worker": name, "lease": 600})).structured
            if not answer["found"]:
                return done
            task = answer["task"]
            result = f"{name} has looked after: {task['description']}"
            await client.call_tool("complete_task", {"id": task["id"], "result": result, "worker": name})
            done.append(task["id"])


if __name__ == "__main__":
    print(*asyncio.run(work(*sys.argv[1:3])), sep="\n")
