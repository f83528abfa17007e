# SPDX-License-Identifier: Apache-2.0
"""Coding agents, unmodified, against the server: programs out of packages, run as their users run them.
They, the server and the relay between them are in a network that has loopback only."""

import pytest

import harness
import network
import running
from agent import SERVED, Talk

network.leave()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    begun = running.start(tmp_path_factory.mktemp("server"), harness.shipped_model(), **SERVED)
    yield begun
    running.finish(begun)


@pytest.fixture
def server_factory(tmp_path):
    yield from running.factory(tmp_path, harness.shipped_model())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("agent")


@pytest.fixture
def talk(request, server):
    """Requests pass through it to the server; the agent leaves nothing behind that runs."""
    before = network.processes()
    with Talk(server, request.module.ARGUMENTS).relayed() as begun:
        yield begun
    server.wait_idle()
    harness.wait_until(lambda: network.processes() <= before, "the agent's processes end")
