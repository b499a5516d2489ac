"""A stand-in for the Hugging Face hub on the loopback interface, for one repository."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer:
    """Serves ``folder`` as repository ``name``: its listing and its files, as huggingface_hub asks for them."""

    def __init__(self, name: str, folder: Path) -> None:
        files = {p.name: p for p in folder.iterdir()}

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self._answer(body=False)

            def do_GET(self) -> None:
                self._answer(body=True)

            def _answer(self, body: bool) -> None:
                path = self.path.partition("?")[0]
                if path.startswith(f"/api/models/{name}/tree/"):
                    tree = [{"type": "file", "path": f, "size": p.stat().st_size, "oid": "0" * 40} for f, p in files.items()]
                    return self._send(200, json.dumps(tree).encode(), {"Content-Type": "application/json"}, body)
                if path.startswith(f"/api/models/{name}"):
                    listing = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": f} for f in files]}
                    return self._send(200, json.dumps(listing).encode(), {"Content-Type": "application/json"}, body)
                file = files.get(path.rpartition("/")[2])
                if not path.startswith(f"/{name}/resolve/") or file is None:
                    return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)
                data = file.read_bytes()
                etag = hashlib.sha256(data).hexdigest()
                return self._send(200, data, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, body)

            def _send(self, status: int, data: bytes, headers: dict[str, str], body: bool) -> None:
                self.send_response(status)
                for key, value in (headers | {"Content-Length": str(len(data))}).items():
                    self.send_header(key, value)
                self.end_headers()
                if body:
                    self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
