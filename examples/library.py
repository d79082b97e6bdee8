"""Resources, templates, prompts, completion and change notifications.

portico serve examples/library.py
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from portico import Server

server = Server("library", version="1.0.0")


@dataclass
class Book:
    title: str
    author: str
    lent: bool = False


BOOKS = {
    1: Book("Hunger", "Hamsun"),
    2: Book("Pan", "Hamsun"),
    3: Book("Brand", "Ibsen", lent=True),
}
FOLDER = Path(__file__).resolve().parent


@server.resource("library://hours", mime_type="text/plain", title="Opening hours")
def hours() -> str:
    """Opening hours of the library."""
    return "Monday to Friday, 9 to 17."


@server.resource("library://books/{number}")
def book(number: int) -> Book | None:
    """Read one book."""
    return BOOKS.get(number)


@server.resource("library://books/latest")
def latest() -> Book:
    """Read the newest book."""
    return BOOKS[max(BOOKS)]


@server.resource("library://books{?author,limit}")
def by_author(author: str = "", limit: int = 10) -> list[Book]:
    """List the books of an author, or all books."""
    return [book for book in BOOKS.values() if author in ("", book.author)][:limit]


@server.resource("library://files/{+path}", mime_type="text/plain")
def file(path: str) -> bytes:
    """Read a file of this directory or its subdirectories."""
    file = (FOLDER / path).resolve()
    if not file.is_relative_to(FOLDER):
        raise FileNotFoundError(path)
    return file.read_bytes()


@server.tool
def give_back(number: int) -> str:
    """Return a book, and notify the clients that subscribed to it."""
    BOOKS[number].lent = False
    server.notify_resource_updated(f"library://books/{number}")
    return f"Thank you for {BOOKS[number].title}."


@server.prompt
def recommend(author: str, count: int = 3, tone: Literal["plain", "warm"] = "plain") -> str:
    """Recommend books similar to those of an author.

    Args:
        author: An author you like.
        count: Number of books.
    """
    return f"Recommend {count} books to a reader who likes {author}. Be {tone}."


@server.prompt(title="Talk about a book")
def discuss(number: int) -> list[dict[str, Any]]:
    """Start a conversation about a book."""
    return [
        {"role": "user", "content": f"I have read {BOOKS[number].title}."},
        {"role": "assistant", "content": "What did you think of the end?"},
    ]


@server.completion("recommend", "author")
def authors(typed: str) -> list[str]:
    names = sorted({book.author for book in BOOKS.values()})
    return [name for name in names if name.lower().startswith(typed.lower())]


@server.completion("library://books{?author,limit}", "limit")
def limits(typed: str, arguments: dict[str, str]) -> list[int]:
    return [len([book for book in BOOKS.values() if book.author == arguments.get("author", book.author)])]


if __name__ == "__main__":
    server.run()
