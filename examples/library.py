"""Resources, templates, prompts, completion, and telling of changes.

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
    """When the library is open."""
    return "Monday to Friday, 9 to 17."


@server.resource("library://books/{number}")
def book(number: int) -> Book | None:
    """One book."""
    return BOOKS.get(number)


@server.resource("library://books/latest")
def latest() -> Book:
    """The book that came last."""
    return BOOKS[max(BOOKS)]


@server.resource("library://books{?author,limit}")
def by_author(author: str = "", limit: int = 10) -> list[Book]:
    """The books of an author, or all."""
    return [book for book in BOOKS.values() if author in ("", book.author)][:limit]


@server.resource("library://files/{+path}", mime_type="text/plain")
def file(path: str) -> bytes:
    """A file that lies beside this one, or deeper."""
    found = (FOLDER / path).resolve()
    if not found.is_relative_to(FOLDER):
        raise FileNotFoundError(path)
    return found.read_bytes()


@server.tool
def give_back(number: int) -> str:
    """Give a book back. Whoever has subscribed to it hears of that."""
    BOOKS[number].lent = False
    server.notify_resource_updated(f"library://books/{number}")
    return f"Thank you for {BOOKS[number].title}."


@server.prompt
def recommend(author: str, count: int = 3, tone: Literal["plain", "warm"] = "plain") -> str:
    """Ask for books like those of an author.

    Args:
        author: Somebody you like to read.
        count: How many books.
    """
    return f"Recommend {count} books to somebody who likes {author}. Be {tone}."


@server.prompt(title="Talk about a book")
def discuss(number: int) -> list[dict[str, Any]]:
    """A conversation that has already begun."""
    return [
        {"role": "user", "content": f"I have read {BOOKS[number].title}."},
        {"role": "assistant", "content": "What did you think of the end?"},
    ]


@server.completion("recommend", "author")
def authors(typed: str) -> list[str]:
    names = sorted({book.author for book in BOOKS.values()})
    return [name for name in names if name.lower().startswith(typed.lower())]


@server.completion("library://books{?author,limit}", "limit")
def limits(typed: str, given: dict[str, str]) -> list[int]:
    return [len([book for book in BOOKS.values() if book.author == given.get("author", book.author)])]


if __name__ == "__main__":
    server.run()
