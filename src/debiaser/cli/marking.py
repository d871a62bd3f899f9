"""mark: the page of an audit, served to this machine alone; every mark is written to a file as one goes."""

import csv
import hmac
import io
import json
import secrets
import shlex
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

import typer

from debiaser.cli import app as options
from debiaser.cli.app import app
from debiaser.errors import Problem, printable
from debiaser.io import locked, private, write_text

MOST = 1 << 20  # bytes of marks
COLUMNS = ("id", "mark", "label", "content")
NOTHING_ELSE = "default-src 'none';"  # how the page's own policy begins
MARKER = "const bySample"  # in the script of pages that send only what changed
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@app.command()
def mark(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of an audit, with its report.html.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; by default a free one.")] = 0,
    browse: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    debug: options.Debug = False,
) -> None:
    """Mark samples on the page of an audit; marks are written to DIR/marks.csv as you go."""
    page, marks = folder / "report.html", folder / "marks.csv"
    if not page.is_file():
        raise Problem(f"no report.html in {folder}: run `debiaser audit SOURCE --out {folder}` first")
    if MARKER not in page.read_text(encoding="utf-8"):
        raise Problem(f"{page} is of an older version of debiaser: run the audit again")
    read_marks(marks)
    with Server(page, marks, next_command(folder, marks), port) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}/?token={server.token}"
        typer.echo(f"Mark the samples here (only this machine can open it): {address}")
        typer.echo(printable(f"Every mark is written to {marks}. Ctrl-C ends."))
        if browse:
            import webbrowser

            webbrowser.open(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            count = len(read_marks(marks))
            typer.echo(printable(f"{count:,} marks are in {marks}.{f' Next: {server.command}' if count else ''}"))


def next_command(folder: Path, marks: Path) -> str:
    """The line that takes these marks back."""
    try:
        line = str(json.loads((folder / "audit.json").read_text(encoding="utf-8"))["next"]["marks"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        line = "debiaser debias SOURCE --marks marks.csv"
    head, _, tail = line.rpartition("marks.csv")
    return head + shlex.quote(str(marks)) + tail


def read_marks(path: Path) -> list[dict[str, str]]:
    """The lines of the marks file; none where there is no file."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            lines = csv.DictReader(stream, restval="")
            if path.stat().st_size and not {"mark"} < set(lines.fieldnames or ()):
                raise Problem(f"{path} is there and has no columns id and mark: move it away, then try again")
            return [{name: line.get(name, "") for name in COLUMNS} for line in lines]
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Problem(f"cannot read {path}: {error}; move it away, then try again") from error


class Server(ThreadingHTTPServer):
    """Gives this page on 127.0.0.1 and takes its marks; `command` is what comes next."""

    daemon_threads = True

    def __init__(self, page: Path, marks: Path, command: str, port: int = 0) -> None:
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except OSError as error:
            raise Problem(f"cannot listen on port {port}: {error.strerror}; choose another --port") from error
        self.page, self.marks, self.command = page, marks, command
        self.token = secrets.token_urlsafe(24)


class Handler(BaseHTTPRequestHandler):
    """Gives the page, takes the marks; refuses everything else."""

    server: Server
    timeout = 30

    def log_message(self, *_: object) -> None:
        """Nothing is told of requests."""

    def do_GET(self) -> None:
        """The page, with the token and what is marked so far."""
        if self.allowed("/"):
            self.answer(HTTPStatus.OK, served_page(self.server), "text/html; charset=utf-8")

    def do_POST(self) -> None:
        """The marks that changed, as lines of the file."""
        if not self.allowed("/marks"):
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self.answer(HTTPStatus.LENGTH_REQUIRED)
        elif int(length) > MOST:
            self.answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            self.take(self.rfile.read(int(length)))

    def take(self, content: bytes) -> None:
        """Change these marks in the file, which is for its owner only; an empty mark removes one.

        All others stay: another page may write to the same file.
        """
        try:
            head, *changes = csv.reader(io.StringIO(content.decode(), newline=""))
        except (csv.Error, ValueError):
            head, changes = [], []
        if tuple(head) != COLUMNS or any(len(line) != len(COLUMNS) for line in changes):
            self.answer(HTTPStatus.BAD_REQUEST)
            return
        try:
            with locked(self.server.marks.with_name(".marks.lock")), private():
                lines, text = [*(line.values() for line in read_marks(self.server.marks)), *changes], io.StringIO()
                latest = {(name, label, digest): mark for name, mark, label, digest in lines}
                kept = ((name, mark, *others) for (name, *others), mark in latest.items() if mark)
                csv.writer(text, lineterminator="\n").writerows([head, *kept])
                write_text(self.server.marks, text.getvalue())
        except Problem as problem:
            self.answer(HTTPStatus.INSUFFICIENT_STORAGE, str(problem).encode())
            return
        self.answer(HTTPStatus.NO_CONTENT)

    def allowed(self, path: str) -> bool:
        """Whether the request is for this host and path and has the token; if not, it is refused."""
        asked, port = urlsplit(self.path), self.server.server_address[1]
        token = parse_qs(asked.query).get("token", [""])[0]
        if self.headers.get("Host") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            self.answer(HTTPStatus.MISDIRECTED_REQUEST)
        elif not hmac.compare_digest(token.encode(errors="replace"), self.server.token.encode()):
            self.answer(HTTPStatus.FORBIDDEN)
        elif asked.path != path:
            self.answer(HTTPStatus.NOT_FOUND)
        else:
            return True
        return False

    def answer(self, status: HTTPStatus, content: bytes = b"", kind: str = "text/plain; charset=utf-8") -> None:
        """Answer and end the connection: what was not read of a request is not taken for another."""
        self.send_response(status)
        about = {"Content-Type": kind, "Content-Length": str(len(content)), "Connection": "close"}
        for name, value in {**HEADERS, **about}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def served_page(server: Server) -> bytes:
    """The page as it is, but that it may send marks to where it comes from."""
    text = server.page.read_text(encoding="utf-8")
    marks = read_marks(server.marks) if server.marks.exists() else None
    served = {"token": server.token, "file": str(server.marks), "command": server.command, "marks": marks}
    data = json.dumps(served).replace("<", "\\u003c")  # nothing in it can end the element
    text = text.replace(NOTHING_ELSE, f"{NOTHING_ELSE} connect-src 'self';", 1)
    text = text.replace("</head>", f'<script type="application/json" id="served">{data}</script>\n</head>', 1)
    return text.encode()
