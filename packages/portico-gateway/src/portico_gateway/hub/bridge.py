"""`portico connect`: the process that a host starts instead of a server. It copies messages to the hub and back.

A host starts one bridge per server, so this module must start fast and stay small: it imports no other part of Portico
but `location`, and does not parse messages. The hub does that, and tells the bridge what it needs to survive the end
of the hub. Each line from the hub is

    [NUMBER][!] [MESSAGE]

where NUMBER is set when the hub is done with the host's NUMBER-th line of this connection, and `!` marks a line that
has to be sent again to another hub: it belongs to the state of the session, such as `initialize`. The line
`end NUMBER` says that the hub is about to end and has processed no later line, and `stop` that the operator stopped it.

When the hub ends, the bridge starts another one and repeats the lines that are marked. Requests without side effects
are sent again; other requests in flight are answered with an error, because they may have run.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import time

# The module `socket` would double what a bridge imports, for features that it does not need.
from _socket import SHUT_WR, socket

from portico_gateway.hub import location
from portico_gateway.hub.location import HubError

PROTOCOL = 1
# As for every other stdio server of this package.
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
# A message from the hub is written in one piece up to this size, so that the end of a hub does not leave half a line.
MAX_WHOLE_BYTES = 1024 * 1024
# The host's unanswered lines are retained up to this size; above it, only their ids.
MAX_RETAINED_BYTES = 8 * 1024 * 1024
MAX_SESSION_LINES = 512
# Reading stops while the other side has this much unread.
HIGH_WATER_BYTES = 1024 * 1024
# Below the size from which the allocator maps memory: that would cost six system calls per message.
READ_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 64 * 1024
MAX_ATTACH_ATTEMPTS, ATTACH_PAUSE_SECONDS = 10, 0.05
# A hub that ends more often is broken, and starting it again and again would hide that.
MAX_RESTARTS, RESTART_WINDOW_SECONDS = 5, 60.0

# Requests that can be sent twice: they change nothing but the state of the session.
REPEATABLE = frozenset(
    [
        "initialize",
        "ping",
        "server/discover",
        "tools/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "prompts/list",
        "prompts/get",
        "completion/complete",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "subscriptions/listen",
        "tasks/get",
        "tasks/list",
        "tasks/result",
    ]
)
_REPEATED_NOTIFICATIONS = frozenset(("notifications/initialized", "notifications/roots/list_changed"))


class Bridge:
    """Connects two descriptors of a host with the hub. `greeting` is the first line that the hub receives."""

    def __init__(self, greeting: bytes, host_in: int = 0, host_out: int = 1) -> None:
        self._greeting = greeting
        self._in, self._out = host_in, host_out
        self._hub: socket | None = None
        self._to_hub, self._to_host = bytearray(), bytearray()
        # The host's unfinished line, and whether the rest of a line above the limit is being discarded.
        self._host_line = bytearray()
        self._skipping = False
        # Lines that the hub is not done with, by number; and lines that belong to the state of the session.
        self._sent = 0
        self._pending: dict[int, bytes] = {}
        self._pending_bytes = 0
        self._session: list[bytes] = []
        # Responses to the first lines of a connection are discarded if they only repeat the session.
        self._repeated = 0
        # The last line that a hub has processed before it ended in an orderly way.
        self._processed: int | None = None
        # The beginning of a line from the hub; whether the rest of a long message is being copied.
        self._hub_line = bytearray()
        self._streaming = self._discarding = False
        self._host_ended = self._stopped = False
        self._restarts: list[float] = []

    def run(self) -> int:
        """Copy messages until the host or the hub ends. Return the exit status."""
        for fd in (self._in, self._out):
            _set_nonblocking(fd)
        self._attach()
        while True:
            if self._hub is None and not self._stopped:
                self._recover()
            if self._host_ended and not self._to_host and self._hub is None:
                return 0
            self._step()

    # Event loop

    def _step(self) -> None:
        hub = self._hub
        if hub is not None and not (self._to_hub or self._to_host or self._host_ended):
            # The usual case, in which nothing is buffered: both sides are read.
            poll = self._quiet_poll
        else:
            poll = self._register_events()
        for fd, event in poll.poll():
            if fd == self._in:
                self._read_host()
            elif fd == self._out:
                # The host no longer reads, so there is no client left.
                if event & (select.POLLERR | select.POLLNVAL):
                    raise SystemExit(0)
                self._write_host()
            elif hub is not None and hub is self._hub:
                if event & select.POLLOUT:
                    self._write_hub()
                if event & (select.POLLIN | select.POLLHUP | select.POLLERR) and hub is self._hub:
                    self._read_hub()

    def _register_events(self) -> select.poll:
        """Return a poll object for what can be read and what waits to be written."""
        poll = select.poll()
        if not self._host_ended and len(self._to_hub) < HIGH_WATER_BYTES:
            poll.register(self._in, select.POLLIN)
        if self._to_host:
            poll.register(self._out, select.POLLOUT)
        if self._hub is not None:
            events = select.POLLIN if len(self._to_host) < HIGH_WATER_BYTES else 0
            poll.register(self._hub, events | (select.POLLOUT if self._to_hub else 0))
        return poll

    # From the host

    def _read_host(self) -> None:
        try:
            data = os.read(self._in, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._host_ended = True
            # The last message may lack its newline.
            self._end_host_line()
            self._write_hub()
            return
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            if self._host_line or self._skipping:
                self._add_host_data(data[start:end])
                self._end_host_line()
            else:
                # The usual case: a line that came in one piece, and is no longer than a read.
                self._send_line(data[start:end])
            start = end + 1
        if start < len(data):
            self._add_host_data(data[start:])
        self._write_hub()

    def _add_host_data(self, data: bytes) -> None:
        if self._skipping:
            return
        self._host_line += data
        if len(self._host_line) > MAX_MESSAGE_BYTES:
            self._skipping = True
            self._host_line.clear()
            self._send_host(
                b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid request: a message must not '
                b'exceed %d bytes"}}\n' % MAX_MESSAGE_BYTES
            )

    def _end_host_line(self) -> None:
        line, self._host_line, self._skipping = bytes(self._host_line), bytearray(), False
        self._send_line(line)

    def _send_line(self, line: bytes) -> None:
        # The hub does not number blank lines either.
        if not line or line.isspace():
            return
        self._stopped = False
        self._sent += 1
        self._pending[self._sent] = line
        self._pending_bytes += len(line)
        if self._pending_bytes > MAX_RETAINED_BYTES:
            self._shrink_pending()
        self._to_hub += line
        self._to_hub += b"\n"

    def _shrink_pending(self) -> None:
        """Retain only the ids of the requests in flight, to answer them if the hub ends."""
        import json

        for number, line in self._pending.items():
            if len(line) > 1024:
                # Large requests are tool calls, which are never sent twice.
                ids = [item["id"] for item in _requests(line)]
                short = [{"id": id, "method": ""} for id in ids]
                self._pending[number] = json.dumps(short[0] if len(short) == 1 else short).encode()
        self._pending_bytes = sum(map(len, self._pending.values()))

    def _write_hub(self) -> None:
        if self._hub is None:
            return
        try:
            while self._to_hub:
                del self._to_hub[: self._hub.send(self._to_hub)]
            if self._host_ended:
                self._hub.shutdown(SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            self._lose_hub()

    # From the hub

    def _read_hub(self) -> None:
        assert self._hub is not None
        try:
            data = self._hub.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose_hub()
            return
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            if self._streaming:
                self._send_host(data[start : end + 1])
                self._streaming = False
            elif self._discarding:
                self._discarding = False
            elif self._hub_line:
                self._hub_line += data[start : end + 1]
                self._receive(bytes(self._hub_line))
                self._hub_line.clear()
            else:
                self._receive(data[start : end + 1])
            start = end + 1
        rest = data[start:]
        if self._streaming:
            self._send_host(rest)
        elif rest and not self._discarding:
            self._hub_line += rest
            if len(self._hub_line) > MAX_WHOLE_BYTES:
                # The rest of a large message is copied as it comes.
                self._streaming = self._receive(bytes(self._hub_line))
                self._discarding = not self._streaming
                self._hub_line.clear()
        self._write_host()

    def _receive(self, line: bytes) -> bool:
        """Handle a line from the hub, or the beginning of one. Return whether its message goes to the host."""
        head, space, message = line.partition(b" ")
        if not space:
            head = head.rstrip(b"\n")
        if head == b"stop":
            self._stopped = True
            return False
        if head == b"end":
            self._processed = int(message)
            return False
        number = 0
        if head:
            number = int(head.rstrip(b"!"))
            done = self._pending.pop(number, b"")
            self._pending_bytes -= len(done)
            if head.endswith(b"!") and number > self._repeated and len(self._session) < MAX_SESSION_LINES:
                self._session.append(done)
        if not space or 0 < number <= self._repeated:
            return False
        self._send_host(message)
        return True

    def _send_host(self, data: bytes) -> None:
        self._to_host += data

    def _write_host(self) -> None:
        try:
            while self._to_host:
                del self._to_host[: os.write(self._out, self._to_host)]
        except BlockingIOError:
            pass
        except OSError:
            raise SystemExit(0) from None

    # Connection to the hub

    def _attach(self) -> None:
        """Connect to the hub and introduce the host. Raises HubError."""
        for attempt in range(MAX_ATTACH_ATTEMPTS):
            # A hub that is about to end may still accept connections.
            time.sleep(attempt * ATTACH_PAUSE_SECONDS)
            directory = location.open_directory()
            try:
                hub = location.connect_or_start(directory)
            finally:
                os.close(directory)
            answer = self._exchange_greeting(hub)
            if answer == b"ok\n":
                hub.setblocking(False)
                self._hub = hub
                self._quiet_poll = select.poll()
                self._quiet_poll.register(self._in, select.POLLIN)
                self._quiet_poll.register(hub, select.POLLIN)
                return
            hub.close()
            if answer:
                raise HubError(answer.decode(errors="replace").strip())
        raise HubError("the hub closes its connections; see `portico hub logs`")

    def _exchange_greeting(self, hub: socket) -> bytes:
        """Send the greeting and return the answer, or nothing if the connection ended. Raises HubError."""
        # Bounded: a hub that does not answer hangs.
        hub.settimeout(location.START_TIMEOUT_SECONDS)
        answer = b""
        try:
            hub.sendall(self._greeting)
            # One byte at a time: the messages that follow belong to the loop.
            while not answer.endswith(b"\n") and len(answer) < MAX_ANSWER_BYTES:
                byte = hub.recv(1)
                if not byte:
                    return b""
                answer += byte
        except TimeoutError:
            raise HubError("the hub does not answer; try `portico hub restart`") from None
        except OSError:
            return b""
        return answer

    def _lose_hub(self) -> None:
        if self._hub is not None:
            self._hub.close()
        self._hub = None

    def _recover(self) -> None:
        """Attach to another hub, restore the session, and settle the requests in flight."""
        if self._streaming:
            # Half of a message is written. The host can read what follows, and the request gets an error.
            self._send_host(b"\n")
        self._streaming = self._discarding = False
        self._hub_line.clear()
        # Lines that were not sent completely cannot have been processed.
        unsent = self._to_hub.count(b"\n")
        pending = self._pending
        first_unsent = self._sent - unsent + 1
        if self._processed is not None:
            first_unsent = min(first_unsent, self._processed + 1)
        self._processed = None
        self._to_hub.clear()
        self._pending, self._pending_bytes, self._sent = {}, 0, 0
        again: list[bytes] = []
        for number, line in pending.items():
            if number >= first_unsent or _is_repeatable(line):
                again.append(line)
            else:
                self._send_host(_lost_response(line))
        if self._host_ended:
            # Only the errors are left to deliver.
            return
        now = time.monotonic()
        self._restarts = [at for at in self._restarts if now - at < RESTART_WINDOW_SECONDS] + [now]
        if len(self._restarts) > MAX_RESTARTS:
            raise HubError(f"the hub ended {MAX_RESTARTS} times within {RESTART_WINDOW_SECONDS:g} s; see its log")
        self._attach()
        self._repeated = len(self._session)
        for line in [*self._session, *again]:
            self._send_line(line)
        self._write_hub()


def _requests(line: bytes) -> list[dict[str, object]]:
    """Return the requests of a line: objects with a method and an id."""
    # Only needed when a hub has ended, or for large messages.
    import json

    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return []
    items = message if isinstance(message, list) else [message]
    return [item for item in items if isinstance(item, dict) and "method" in item and "id" in item]


def _is_repeatable(line: bytes) -> bool:
    import json

    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(message, dict) or not isinstance(message.get("method"), str):
        return False
    return message["method"] in (REPEATABLE if "id" in message else _REPEATED_NOTIFICATIONS)


def _lost_response(line: bytes) -> bytes:
    """Return the response to a request that was lost with the hub; empty for anything but a request."""
    import json

    error = {"code": -32000, "message": "the hub ended before it answered; the call may have run"}
    responses = [{"jsonrpc": "2.0", "id": item["id"], "error": error} for item in _requests(line)]
    if not responses:
        return b""
    return json.dumps(responses if line.lstrip().startswith(b"[") else responses[0]).encode() + b"\n"


def _set_nonblocking(fd: int) -> None:
    mode = os.fstat(fd).st_mode
    # Files and terminals may be shared with other processes, which do not expect it.
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        os.set_blocking(fd, False)


# Command line


class InvalidArguments(Exception):
    """The arguments of `portico connect` are invalid."""


def parse_arguments(words: list[str]) -> tuple[list[str], list[str], str | None, list[str] | None]:
    """Return the names, variables, directory and command of a command line. Raises InvalidArguments."""
    names: list[str] = []
    variables: list[str] = []
    directory: str | None = None
    rest = iter(words)
    for word in rest:
        if word == "--":
            command = list(rest)
            if len(names) != 1 or not command:
                raise InvalidArguments("expected one NAME before -- and a command after it")
            return names, variables, directory, command
        option, equals, value = word.partition("=")
        if option in ("--env", "--cwd"):
            value = value if equals else next(rest, "")
            if not value:
                raise InvalidArguments(f"{option} requires a value")
            if option == "--cwd":
                directory = value
            else:
                variables.append(value)
        elif word.startswith("-"):
            raise InvalidArguments(f"unknown option {word!r}; expected --env, --cwd or --")
        else:
            names.append(word)
    if not names:
        raise InvalidArguments("expected the NAME of a server")
    if variables or directory:
        raise InvalidArguments("--env and --cwd require a command after --")
    return names, variables, directory, None


def build_greeting(names: list[str], variables: list[str], directory: str | None, command: list[str] | None) -> bytes:
    """Return the first line for the hub: which servers to connect, and how the host would have started them."""
    try:
        working_directory = os.getcwd()
    except OSError:
        working_directory = "/"
    fields = {
        "protocol": str(PROTOCOL),
        "names": _quote_all(names),
        "variables": _quote_all(variables),
        "command": "null" if command is None else _quote_all(command),
        "cwd": _quote_json(os.path.join(working_directory, os.path.expanduser(directory or ""))),
        "environment": "{"
        + ",".join(f"{_quote_json(name)}:{_quote_json(value)}" for name, value in os.environ.items())
        + "}",
        "has_cwd": "false" if directory is None else "true",
        "pid": str(os.getpid()),
    }
    return ("{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}\n").encode()


def _quote_json(text: str) -> str:
    """Return a JSON string. The json module would double the time until the first message."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    # Bytes that are not UTF-8 are replaced: JSON cannot carry them.
    text = text.encode("utf-8", "replace").decode()
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else _escape(c) for c in text) + '"'


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else character


def _printable(text: str) -> str:
    """Escape characters that control a terminal or end a line: hosts show and log these errors."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _quote_all(texts: list[str]) -> str:
    return "[" + ",".join(map(_quote_json, texts)) + "]"


def run(words: list[str]) -> int:
    """Run `portico connect` and return the exit status."""
    try:
        return Bridge(build_greeting(*parse_arguments(words))).run()
    except InvalidArguments as mistake:
        print(f"portico: connect: {_printable(str(mistake))}. Try `portico connect --help`.", file=sys.stderr)
        return 2
    except HubError as failure:
        print(f"portico: {_printable(str(failure))}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
