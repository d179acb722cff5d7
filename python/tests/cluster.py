"""A Ray cluster of three nodes and an S3 server on this machine, for tests."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

KEYS = {"access_key_id": "AKIAOFTHETESTS", "secret_access_key": "a-secret-of-the-tests"}


class S3:
    """An S3 server on the loopback, with the bucket ``data``."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(300):
            try:
                urllib.request.urlopen(self.endpoint, timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        make = urllib.request.Request(f"{self.endpoint}/data", method="PUT")
        urllib.request.urlopen(make).close()

    @property
    def options(self):
        return KEYS | {"endpoint": self.endpoint, "region": "us-east-1", "client_options": {"allow_http": True}}

    def stop(self):
        self.process.kill()
        self.process.wait()


def start_cluster(nodes=3):
    """A cluster of nodes with one CPU each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    for _ in range(nodes):
        cluster.add_node(num_cpus=1, object_store_memory=80 << 20, include_dashboard=False)
    return cluster


def parents():
    """The parent and the title of each process."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
                title = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            found[int(folder.name)] = int(stat.rpartition(")")[2].split()[1]), title
    return found


def busy_workers(within=None):
    """Processes below this one that run a task, with its name."""
    every = parents()

    def is_ours(pid):
        while pid in every and pid != (within or os.getpid()):
            pid = every[pid][0]
        return pid == (within or os.getpid())

    found = {pid: title[5:].split()[0] for pid, (_, title) in every.items() if title.startswith("ray::")}
    # Others are idle, or agents of a node.
    return {pid: task for pid, task in found.items() if task[0].islower() and is_ours(pid)}


def kill(pid):
    """Kills a process, unless it has ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


class Denier:
    """A server that denies access with a code, after some requests that another one answers."""

    def __init__(self, code, after=0, server=""):
        left = [after]
        body = f"<Error><Code>{code}</Code><AWSAccessKeyId>{KEYS['access_key_id']}</AWSAccessKeyId></Error>".encode()

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def answer(self):
                left[0] -= 1
                content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if left[0] < 0:
                    self.reply(400 if code == "ExpiredToken" else 403, {}, body)
                    return
                # Host is that of this server, as it was signed.
                asked = http.client.HTTPConnection(server.removeprefix("http://"))
                asked.request(self.command, self.path, content or None, dict(self.headers.items()))
                found = asked.getresponse()
                self.reply(found.status, dict(found.headers.items()), found.read())
                asked.close()

            def reply(self, status, headers, content):
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "connection", "transfer-encoding", "server", "date"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_PUT = do_HEAD = do_DELETE = answer

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
