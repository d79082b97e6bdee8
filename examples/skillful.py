"""A server that brings instructions along with its tools.

portico serve examples/skillful.py
"""

from pathlib import Path

from portico import Server, Skills

server = Server("skillful", version="1.0.0", instructions="Read skill://commit-messages/SKILL.md before you commit.")


@server.tool(run_in_thread=False)
def check_subject(line: str) -> list[str]:
    """What is wrong with the first line of a commit message; an empty list if nothing is."""
    wrong = []
    if len(line) > 72:
        wrong.append(f"{len(line)} characters, and 72 are enough")
    if ": " not in line:
        wrong.append("the part that changed is missing: write `part: what is different now`")
    if line.endswith("."):
        wrong.append("a full stop at the end")
    return wrong


server.add(Skills(Path(__file__).parent / "skills"))

if __name__ == "__main__":
    server.run()
