"""A server with tools and agent skills.

portico serve examples/skills_server.py
"""

from pathlib import Path

from portico import Server, Skills

server = Server(
    "commit-tools", version="1.0.0", instructions="Read skill://commit-messages/SKILL.md before you commit."
)


@server.tool(run_in_thread=False)
def check_subject(line: str) -> list[str]:
    """Check the first line of a commit message and return its problems."""
    problems = []
    if len(line) > 72:
        problems.append(f"expected at most 72 characters, got {len(line)}")
    if ": " not in line:
        problems.append("the area is missing: write `area: change in the imperative`")
    if line.endswith("."):
        problems.append("remove the full stop at the end")
    return problems


server.add(Skills(Path(__file__).parent / "skills"))

if __name__ == "__main__":
    server.run()
