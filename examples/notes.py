"""A service: a class whose methods are tools, resources and prompts.

portico serve examples/notes.py
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from portico import Server, Service, ToolError, completion, prompt, resource, tool


@dataclass
class Note:
    """A note."""

    title: str
    text: str
    mood: Literal["good", "bad"] = "good"
    tags: list[str] = field(default_factory=list)


class Notes(Service):
    name = "notes"

    def __init__(self) -> None:
        super().__init__()
        self.notes: dict[str, Note] = {}

    @tool(annotations={"idempotentHint": True})
    def write_note(self, note: Note) -> str:
        """Keep a note. A note with the same title is replaced.

        Args:
            note: What to keep.
        """
        self.notes[note.title] = note
        return f"Kept {note.title!r}."

    @tool(annotations={"readOnlyHint": True})
    def find_notes(self, word: Annotated[str, "A word of the title or the text"]) -> list[Note]:
        """Find notes by a word."""
        matches = [note for note in self.notes.values() if word in note.title or word in note.text]
        if not matches:
            raise ToolError(f"No note contains {word!r}; {len(self.notes)} notes were searched.")
        return matches

    @resource("notes://{title}", mime_type="text/markdown")
    def note(self, title: str) -> str | None:
        """Read a note as Markdown."""
        note = self.notes.get(title)
        return None if note is None else f"# {note.title}\n\n{note.text}\n"

    @prompt
    def review(self, title: str, tone: Literal["kind", "strict"] = "kind") -> str:
        """Review a note."""
        return f"Review my note {title!r}, and be {tone}."

    @completion("review", "title")
    def titles(self, typed: str) -> list[str]:
        return [title for title in self.notes if title.startswith(typed)]


server = Server("notes", version="1.0.0", instructions="Write notes first, then find them.")
server.add(Notes())

if __name__ == "__main__":
    server.run()
