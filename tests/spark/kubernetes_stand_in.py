"""A stand-in for Kubernetes: an API server that knows what Spark's driver requests, and runs executors as processes of this machine."""

from __future__ import annotations

import json
import signal
import subprocess
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyspark

from tests.spark.killable_job import signal_all

HOST = "127.0.0.1"
NAMESPACE = "orders"
DRIVER_POD = "driver"
_SPARK = Path(pyspark.__file__).parent
_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTION = "SPARK_JAVA_OPT_"
# Of the executor's image, which this machine does not have.
_OF_THE_IMAGE = ("SPARK_CONF_DIR", "SPARK_LOCAL_DIRS")

Pod = dict[str, Any]


class Kubernetes:
    """The namespace `NAMESPACE` with the driver's pod, as a Role lets Spark see it.

    Args:
        rights: Verbs and resources that the Role allows. Other requests are rejected, and are in ``forbidden``.
        lost: Executors that end at once, as on a node that is gone: the first ones.
    """

    def __init__(
        self, rights: Collection[tuple[str, str]], environment: Mapping[str, str], folder: Path, lost: int
    ) -> None:
        self._rights, self._environment, self._folder, self._lost = rights, environment, folder, lost
        self._lock, self._stopping = Lock(), Event()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.executors: dict[str, Pod] = {}
        """Every executor's pod by name, deleted ones too."""
        self._deleted: set[str] = set()
        self.used: set[tuple[str, str]] = set()
        """Verbs and resources of all requests."""
        self.forbidden: set[tuple[str, str]] = set()
        self._server = ThreadingHTTPServer((HOST, 0), _handler(self))
        self.url = f"http://{HOST}:{self._server.server_port}"

    @staticmethod
    @contextmanager
    def started(
        rights: Collection[tuple[str, str]], environment: Mapping[str, str], folder: Path, *, lost: int = 0
    ) -> Iterator[Kubernetes]:
        kubernetes = Kubernetes(rights, environment, folder, lost)
        serving = Thread(target=kubernetes._server.serve_forever, daemon=True)
        serving.start()
        try:
            yield kubernetes
        finally:
            kubernetes._stopping.set()
            kubernetes._server.shutdown()
            kubernetes._server.server_close()
            for process in kubernetes._processes:
                signal_all(process.pid, signal.SIGKILL)
                process.wait()

    def handle(self, method: str, path: str, body: bytes) -> tuple[int, Any] | None:
        """Status and object of the response; None for a watch, which never has an event: Spark also lists its pods."""
        url = urlsplit(path)
        _, _, _, namespace, resource, *name = url.path.strip("/").split("/")
        watch = "watch" in parse_qs(url.query)
        verbs = {"GET": "watch" if watch else "get" if name else "list", "POST": "create"}
        verbs["DELETE"] = "delete" if name else "deletecollection"
        with self._lock:
            used = verbs.get(method, method.lower()), resource
            self.used.add(used)
            if namespace != NAMESPACE or used not in self._rights:
                self.forbidden.add(used)
                return 403, _status(403)
            if used == ("create", "pods"):
                return 201, self._start(json.loads(body))
            if method == "POST":
                return 201, _named(json.loads(body))
            if method == "DELETE":
                self._delete(*name)
                return 200, _status(200)
            if watch:
                return None
            if name == [DRIVER_POD]:
                return 200, _pod(DRIVER_POD)
            pods = [
                self._seen(each) for each in self.executors.values() if each["metadata"]["name"] not in self._deleted
            ]
            return 200, {
                "apiVersion": "v1",
                "kind": "List",
                "metadata": {"resourceVersion": "1"},
                "items": pods if resource == "pods" else [],
            }

    def wait_for_the_end(self) -> None:
        self._stopping.wait()

    def _start(self, pod: Pod) -> Pod:
        pod = _named(pod)
        name = pod["metadata"]["name"]
        self.executors[name] = pod
        container = pod["spec"]["containers"][0]
        fields = {"status.podIP": HOST, "metadata.name": name}
        given = {
            each["name"]: each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in container["env"]
            if each["name"] not in _OF_THE_IMAGE
        }
        assert container["args"] == ["executor"]
        command = ["false"] if len(self.executors) <= self._lost else _executor(given)
        folder = self._folder / name
        folder.mkdir()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env={**self._environment, **given},
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        pod["process"] = process
        return _without_process(pod)

    def _seen(self, pod: Pod) -> Pod:
        """The pod with its status."""
        code = pod["process"].poll()
        state: dict[str, Any] = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
        container = {"name": pod["spec"]["containers"][0]["name"], "state": state}
        phase = "Running" if code is None else "Failed" if code else "Succeeded"
        return _without_process(pod) | {"status": {"phase": phase, "containerStatuses": [container]}}

    def _delete(self, *name: str) -> None:
        for each in name or self.executors:
            self._deleted.add(each)
            signal_all(self.executors[each]["process"].pid, signal.SIGTERM)


def _executor(given: Mapping[str, str]) -> list[str]:
    """What the entrypoint of Spark's image runs for the argument ``executor``."""
    options = [value for name, value in given.items() if name.startswith(_OPTION)]
    arguments = {
        "--driver-url": "SPARK_DRIVER_URL",
        "--executor-id": "SPARK_EXECUTOR_ID",
        "--cores": "SPARK_EXECUTOR_CORES",
        "--app-id": "SPARK_APPLICATION_ID",
        "--hostname": "SPARK_EXECUTOR_POD_IP",
        "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
        "--podName": "SPARK_EXECUTOR_POD_NAME",
    }
    words = [word for name, variable in arguments.items() for word in (name, given[variable])]
    return ["java", *options, f"-Xmx{given['SPARK_EXECUTOR_MEMORY']}", "-cp", f"{_SPARK}/jars/*", _BACKEND, *words]


def _named(made: dict[str, Any]) -> dict[str, Any]:
    made["metadata"] |= {"uid": str(uuid.uuid4()), "resourceVersion": "1", "namespace": NAMESPACE}
    return made


def _pod(name: str) -> Pod:
    return _named({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "status": {"phase": "Running"}})


def _without_process(pod: Pod) -> Pod:
    return {name: value for name, value in pod.items() if name != "process"}


def _status(code: int) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Status", "code": code, "status": "Success" if code == 200 else "Failure"}


def _handler(kubernetes: Kubernetes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            # Fabric8 asks for a websocket first, and takes 200 for a server without them.
            found = (200, {}) if self.headers.get("Upgrade") else kubernetes.handle(self.command, self.path, body)
            self.send_response(200 if found is None else found[0])
            self.send_header("Content-Type", "application/json")
            if found is None:
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.flush()
                kubernetes.wait_for_the_end()
                self.close_connection = True
                return
            text = json.dumps(found[1]).encode()
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = do_PATCH = do_PUT = respond  # noqa: N815

    return Handler
