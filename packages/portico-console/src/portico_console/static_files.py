"""The files of the page, as they are in the package: read once, and served with a tag of their contents."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from portico.transports.http_server.messages import TEXT, Answer, Pairs, Request
from portico_console.session_auth import SAFE

PAGE = Path(__file__).with_name("static")
INDEX = "index.html"

TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".mjs": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".png": b"image/png",
    ".ico": b"image/x-icon",
    ".woff2": b"font/woff2",
    ".json": b"application/json",
    ".webmanifest": b"application/manifest+json",
}


class PageFiles:
    """What lies in a folder, by the paths that it is asked for. Nothing else can be: a path is only looked up."""

    def __init__(self, folder: Path = PAGE) -> None:
        self._folder = folder
        self._known: dict[str, Answer] = {}
        self._tags: dict[str, bytes] = {}

    def _read(self) -> None:
        for path in sorted(self._folder.rglob("*")):
            kind = TYPES.get(path.suffix)
            if kind is None or not path.is_file():
                continue
            body = path.read_bytes()
            tag = b'"%b"' % sha256(body).hexdigest()[:20].encode()
            # Asked about each time: a newer Portico has newer files under the same names.
            headers: Pairs = ((b"content-type", kind), (b"etag", tag), (b"cache-control", b"no-cache"), *SAFE)
            name = path.relative_to(self._folder).as_posix()
            self._known[name], self._tags[name] = Answer(200, headers, body), tag

    async def index(self, request: Request) -> Answer:
        return self._answer(INDEX, request)

    async def file(self, request: Request) -> Answer:
        return self._answer(request.path.removeprefix("/console/") or INDEX, request)

    def _answer(self, name: str, request: Request) -> Answer:
        if not self._known:
            self._read()
        found = self._known.get(name)
        if found is None:
            return Answer(404, (*TEXT, *SAFE), b"Not found\n")
        if self._tags[name] in request.headers.get(b"if-none-match", b""):
            return Answer(304, found.headers)
        return found
