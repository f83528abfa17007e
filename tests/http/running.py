# SPDX-License-Identifier: Apache-2.0
"""Servers that tests start: which are alive, for the report of a test that fails, and that each ends
clean (harness.Server.stop). For the conftest.py of each folder of tests."""

import signal

import harness

alive = []

# A runner that ignores interrupts (`pytest &` in a script) or hangups (nohup) goes on doing so, by a
# handler: unlike SIG_IGN its children do not inherit that.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)


def start(folder, model, **options):
    server = harness.Server(folder / f"server-{len(list(folder.iterdir()))}.log", model, **options)
    alive.append(server)
    return server


def finish(server):
    try:
        server.stop()
    finally:
        alive.remove(server)


def factory(folder, model):
    """Yields create(model=…, **flags) -> harness.Server; ends them all afterwards."""
    started = []

    def create(model=model, **options):
        started.append(start(folder, model, **options))
        return started[-1]

    yield create
    for server in started:
        finish(server)


def tell(report):
    """The ends of the logs of the servers that are alive, where a test has failed."""
    for server in alive if report.failed else []:
        report.sections.append((f"log of {server.url} ({server.model_id})", server.tail()))
