"""Object storage for tests: moto, over HTTP, with one request at a time.

moto checks the condition of a PUT and then puts. One request at a time makes both one step, as in S3. It checks no signatures.

.setup/s3/bin/python tests/s3/server.py prints its address, and ends with its standard input.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterable
from typing import Any

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

#: The bucket that is there from the begin.
BUCKET = "states"


class OneAtATime:
    """Reads each request as a whole, since its client may be paused, and then lets it through alone."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._alone = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        with self._alone:
            return [b"".join(self._application(environ, start_response))]


def main() -> None:
    application = OneAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True)  # type: ignore[arg-type]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    client = boto3.client(
        "s3",
        endpoint_url=address,
        region_name="us-east-1",
        aws_access_key_id="a-test",
        aws_secret_access_key="a-secret-of-tests",
    )
    client.create_bucket(Bucket=BUCKET)
    print(address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
