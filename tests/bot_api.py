"""A fake Bot API server on a real socket, after the public description of the API (core.telegram.org/bots/api).

``python -m tests.bot_api`` runs it at the terminal: what you write comes to the bot from user 42.
"""

import json
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "4711:made-up-token-of-a-bot"  # made up
WAIT = 20  # seconds after which a test that hangs fails instead


def until(condition, *, within=WAIT):
    pause = threading.Event()
    for _ in range(within * 50):
        if found := condition():
            return found
        pause.wait(0.02)
    raise AssertionError("it did not come to that")


@dataclass
class BotApi:
    """Answers as the Bot API describes itself. ``tricks`` say how the next sendMessage calls go wrong."""

    server: ThreadingHTTPServer
    updates: list = field(default_factory=list)
    sent: list = field(default_factory=list)  # what sendMessage stored, in order
    actions: list = field(default_factory=list)
    offsets: list = field(default_factory=list)
    files: dict = field(default_factory=dict)
    tricks: list = field(default_factory=list)
    paths: set = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    @property
    def texts(self):
        return [message["text"] for message in self.sent]

    def says(self, text="", *, sender=42, chat=None, name="Alice", is_bot=False, **more):
        """Somebody writes to the bot."""
        with self.changed:
            number = 1000 + len(self.updates)
            message = {
                "message_id": number, "date": int(time.time()), "text": text,
                "from": {"id": sender, "is_bot": is_bot, "first_name": name},
                "chat": {"id": chat or sender, "type": "private" if chat is None else "group"},
                **more,
            }  # fmt: skip
            self.updates.append({"update_id": number, "message": message})
            self.changed.notify_all()
            return number

    def answer(self, method, arguments):
        return getattr(self, f"on_{method}")(**arguments)

    def on_getUpdates(self, offset=0, timeout=0, limit=100, **ignored):
        self.offsets.append(offset)
        with self.changed:
            self.changed.wait_for(lambda: self.over.is_set() or self._from(offset), timeout=timeout)
            return self._from(offset)[:limit]

    def _from(self, offset):
        return [update for update in self.updates if update["update_id"] >= offset]

    def on_sendMessage(self, chat_id, text, message_thread_id=None):
        if not text.strip() or len(text.encode("utf-16-le")) // 2 > 4096:
            return ApiError(400, "Bad Request: message text is empty or too long")
        trick = self.tricks.pop(0) if self.tricks else "take"
        if isinstance(trick, ApiError):
            return trick
        self.sent.append({"chat_id": chat_id, "text": text, "message_thread_id": message_thread_id})
        if trick == "take and hang up":
            raise ConnectionAbortedError
        if trick == "take and say 500":
            return ApiError(500, "Internal Server Error")
        if trick == "take and be silent":
            self.over.wait(WAIT)
        return {"message_id": len(self.sent)}

    def on_sendChatAction(self, chat_id, action, message_thread_id=None):
        self.actions.append((chat_id, action))
        return True

    def on_getFile(self, file_id):
        return {"file_id": file_id, "file_path": f"documents/{file_id}"} if file_id in self.files else ApiError(400, "no such file")


@dataclass(frozen=True)
class ApiError:
    code: int
    description: str
    retry_after: int | None = None

    def as_json(self):
        more = {} if self.retry_after is None else {"parameters": {"retry_after": self.retry_after}}
        return {"ok": False, "error_code": self.code, "description": self.description, **more}


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        _, bot, method = self.path.split("/")
        arguments = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            result = ApiError(401, "Unauthorized") if bot != f"bot{TOKEN}" else self.server.api.answer(method, arguments)
        except ConnectionAbortedError:
            self.close_connection = True
            return
        if isinstance(result, ApiError):
            self._say(result.code, json.dumps(result.as_json()).encode())
        else:
            self._say(200, json.dumps({"ok": True, "result": result}).encode())

    def do_GET(self):
        content = self.server.api.files.get(self.path.rpartition("/")[2])
        self._say(404 if content is None or not self.path.startswith(f"/file/bot{TOKEN}/") else 200, content or b"")

    def _say(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        """Quiet."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A caller that went away is what some tests want."""


@contextmanager
def bot_api(port=0):
    server = _Server(("127.0.0.1", port), _Handler)
    server.api = BotApi(server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.api
    finally:
        server.api.over.set()
        with server.api.changed:
            server.api.changed.notify_all()
        server.shutdown()
        thread.join()
        server.server_close()


def chat(port):
    """Each line of standard input comes to the bot; what it answers is printed."""
    with bot_api(port=port) as api:
        print(f"A Bot API at {api.url} for the token {TOKEN}; you are user 42.", flush=True)  # noqa: T201
        for line in filter(str.strip, sys.stdin):
            shown = len(api.sent)
            api.says(line.rstrip("\n"))
            until(lambda count=shown: len(api.sent) > count, within=60)
            print("bot:", *api.texts[shown:], flush=True)  # noqa: T201


if __name__ == "__main__":
    chat(8081)
