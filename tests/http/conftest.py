# SPDX-License-Identifier: Apache-2.0
"""Fixtures: `server` runs the small golden model for a whole file of tests, `server_factory`
starts others with flags of the test's choice. Every server must end clean (harness.Server.stop);
when a test fails, the ends of the logs of the servers then alive are in its report."""

from importlib.util import find_spec

import pytest

import checkpoints
import contract
import harness

alive = []
# What a sanitizer finds is not in the shape of replies.
harness.CONTRACT = contract if harness.BUILD == "dev" else None
# What needs a GPU, or one that is emulated (tests/cuda/run.sh).
collect_ignore = [] if harness.BINARY.parent.name.startswith("cuda") else ["test_cuda.py"]
# Big clients: tests/clients/.venv has them.
if find_spec("lm_eval") is None:
    collect_ignore.append("clients")


def pytest_configure(config):
    config.addinivalue_line("markers", "builds(*names): the builds of regla that a test runs with, "
                            "of dev, asan and tsan; all of them without it (CONTRIBUTING.md)")
    # What a test's thread asserts counts.
    config.addinivalue_line("filterwarnings", "error::pytest.PytestUnhandledThreadExceptionWarning")


def pytest_collection_modifyitems(config, items):
    """Takes out what is not for this build; the closest mark of a test counts."""
    chosen = [item for item in items
              if harness.BUILD in getattr(item.get_closest_marker("builds"), "args",
                                          (harness.BUILD,))]
    if len(chosen) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = chosen


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.failed:
        for server in alive:
            report.sections.append((f"log of {server.url} ({server.model_id})", server.tail()))


def start(folder, **options):
    model = options.pop("model", harness.GOLDEN / "hybrid_regla")
    server = harness.Server(folder / f"server-{len(list(folder.iterdir()))}.log", model, **options)
    alive.append(server)
    return server


def finish(server):
    try:
        server.stop()
    finally:
        alive.remove(server)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The hybrid ReGLA golden model with default flags, shared by the tests of a file: each file
    begins with no sessions and nothing cached."""
    if not harness.BINARY.exists():
        pytest.exit(f"{harness.BINARY} is not built", returncode=2)
    running = start(tmp_path_factory.mktemp("server"))
    yield running
    finish(running)


@pytest.fixture(scope="session")
def text_server(tmp_path_factory):
    """The shipped model: real text."""
    model = harness.shipped_model()
    if model is None:
        pytest.skip("models/ holds no model yet")
    running = start(tmp_path_factory.mktemp("text-server"), model=model)
    yield running
    finish(running)


@pytest.fixture(scope="module")
def chat_server(tmp_path_factory):
    """The golden model with a template that tells all that clients of chats send."""
    template = harness.ROOT / "tests" / "clients" / "chat.jinja"
    running = start(tmp_path_factory.mktemp("chat-server"), chat_template=template)
    yield running
    finish(running)


@pytest.fixture
def server_factory(tmp_path):
    """server_factory(model=…, environment=…, wait=True, **flags) -> harness.Server"""
    started = []

    def create(**options):
        started.append(start(tmp_path, **options))
        return started[-1]

    yield create
    for running in started:
        finish(running)


@pytest.fixture(scope="session")
def big_model(tmp_path_factory):
    """A model of zeros, 250 MB in a file with holes: it takes a moment to load, and no disk."""
    folder = tmp_path_factory.mktemp("big") / "big"
    checkpoints.write_zeros(folder, hidden_size=1024, layers=4 if harness.SLOWNESS == 1 else 1)
    return folder
