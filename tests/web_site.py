"""A web server on this machine that misbehaves as asked: the faults that downloads must survive."""

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Behaviour = Callable[["Handler", bytes], None]


@dataclass
class Site:
    """A web server on this machine: its files, how it treats each request, and the requests it saw."""

    files: dict[str, bytes]
    behaviour: Behaviour | None = None
    seen: list[tuple[str, str | None]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port}/{name}"


class Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        self.site.seen.append((name, self.headers.get("Range")))
        behave = (self.site.behaviour or serve) if name in self.site.files else answers(404)
        behave(self, self.site.files.get(name, b""))

    def start(self, status: int = 200, **headers: object) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def running(made: Site) -> Iterator[Site]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"site": made}))
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    made.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


def serve(handler: Handler, content: bytes, pieces: int = 1) -> None:
    """The honest server, which resumes; slow where it sends more than one piece."""
    wanted = handler.headers.get("Range")
    begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
    if wanted is None:
        handler.start(Content_Length=len(content))
    elif begin >= len(content):
        handler.start(416, Content_Range=f"bytes */{len(content)}")
    else:
        span = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        handler.start(206, Content_Length=len(content) - begin, Content_Range=span)
    step = max(1, len(content) // pieces)
    for place in range(begin, len(content), step):
        handler.wfile.write(content[place : place + step])
        handler.wfile.flush()
        time.sleep(0.02 * (pieces > 1))


def sends(body: Callable[[bytes], bytes], length: Callable[[int], int] = lambda n: n, **headers: str) -> Behaviour:
    """This instead of the file, announced with this length, which may be a lie."""

    def behave(handler: Handler, content: bytes) -> None:
        sent = body(content)
        handler.start(Content_Length=length(len(sent)), **headers)
        handler.wfile.write(sent)

    return behave


def stalls(handler: Handler, content: bytes) -> None:
    handler.start(Content_Length=len(content))
    handler.wfile.write(content[: len(content) // 2])
    handler.wfile.flush()
    handler.site.released.wait(20)


ignores_range = sends(lambda content: content)
promises_more = sends(lambda content: content, lambda length: length + 1000)
promises_less = sends(lambda content: content, lambda length: length // 2)
promises_too_much = sends(lambda content: content, lambda _: 1 << 40)
corrupts = sends(lambda content: gzip.compress(gzip.decompress(content)[:-1] + b"?"))
sends_page = sends(lambda _: b"<!DOCTYPE html><p>please log in", Content_Type="text/html")


def never_answers(handler: Handler, _content: bytes) -> None:
    handler.site.released.wait(20)


def never_ends(handler: Handler, _content: bytes) -> None:
    handler.start()
    for _ in range(100):
        handler.wfile.write(bytes(1 << 16))


def answers(status: int) -> Behaviour:
    return lambda handler, _content: handler.start(status, Content_Length=0)


def swaps(one: str, other: str) -> Behaviour:
    there = {one: other, other: one}

    def behave(handler: Handler, content: bytes) -> None:
        name = handler.path.rpartition("/")[2]
        serve(handler, handler.site.files[there[name]] if name in there else content)

    return behave


def redirects_to(address: str) -> Behaviour:
    return lambda handler, _content: handler.start(302, Location=address, Content_Length=0)


def cuts_first(limit: int) -> Behaviour:
    """Breaks the first request off after `limit` bytes, then serves."""

    def behave(handler: Handler, content: bytes) -> None:
        if len(handler.site.seen) > 1:
            serve(handler, content)
        else:
            handler.start(Content_Length=len(content))
            handler.wfile.write(content[:limit])

    return behave


def resumes_elsewhere(handler: Handler, content: bytes) -> None:
    if handler.headers.get("Range") is None:
        serve(handler, content)
    else:
        handler.start(206, Content_Length=5, Content_Range=f"bytes 0-4/{len(content)}")
        handler.wfile.write(content[:5])
