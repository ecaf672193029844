# SPDX-License-Identifier: Apache-2.0
"""A service that really listens, in a thread."""

from __future__ import annotations

import contextlib
import threading
import time

import uvicorn
from nni_latency_service import make_app


@contextlib.contextmanager
def listening(service, keys=None):
    """Run a service in a thread; yield its URL."""
    config = uvicorn.Config(make_app(service, keys), port=0, log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
