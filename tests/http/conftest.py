# SPDX-License-Identifier: Apache-2.0
"""Fixtures: `server` runs the small golden model for a whole file of tests, `server_factory`
starts others with flags of the test's choice. Every server must end clean (harness.Server.stop);
when a test fails, the ends of the logs of the servers then alive are in its report."""

from importlib.util import find_spec

import pytest

import checkpoints
import contract
import harness
import redis_store
import running
from running import finish

# What a sanitizer finds is not in the shape of replies.
harness.CONTRACT = contract if harness.BUILD == "dev" else None
# What needs a GPU, or one that is emulated (tests/cuda/run.sh).
collect_ignore = [] if harness.BINARY.parent.name.startswith("cuda") else ["test_cuda.py"]
# Big clients: tests/clients/.venv and tests/agents/.venv have them.
collect_ignore += [folder for folder, package in (("clients", "lm_eval"), ("agents", "claude_agent_sdk"))
                   if find_spec(package) is None]


def pytest_configure(config):
    config.addinivalue_line("markers", "builds(*names): the builds of regla that a test runs with, "
                            "of dev, asan and tsan; all of them without it (CONTRIBUTING.md)")
    config.addinivalue_line("markers", "long: not in `make test`, but in `make test-all`")
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
    running.tell((yield).get_result())


def start(folder, **options):
    return running.start(folder, options.pop("model", harness.GOLDEN / "hybrid_regla"), **options)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The hybrid ReGLA golden model with default flags, shared by the tests of a file: each file
    begins with no sessions and nothing cached."""
    if not harness.BINARY.exists():
        pytest.exit(f"{harness.BINARY} is not built", returncode=2)
    begun = start(tmp_path_factory.mktemp("server"))
    yield begun
    finish(begun)


@pytest.fixture(scope="session")
def text_server(tmp_path_factory):
    """The shipped model: real text."""
    model = harness.shipped_model()
    if model is None:
        pytest.skip("models/ holds no model yet")
    begun = start(tmp_path_factory.mktemp("text-server"), model=model)
    yield begun
    finish(begun)


@pytest.fixture(scope="module")
def chat_server(tmp_path_factory):
    """The golden model with a template that tells all that clients of chats send."""
    template = harness.ROOT / "tests" / "clients" / "chat.jinja"
    begun = start(tmp_path_factory.mktemp("chat-server"), chat_template=template)
    yield begun
    finish(begun)


@pytest.fixture
def server_factory(tmp_path):
    """server_factory(model=…, environment=…, wait=True, **flags) -> harness.Server"""
    yield from running.factory(tmp_path, harness.GOLDEN / "hybrid_regla")


@pytest.fixture(scope="session")
def big_model(tmp_path_factory):
    """A model of zeros, 250 MB in a file with holes: it takes a moment to load, and no disk."""
    folder = tmp_path_factory.mktemp("big") / "big"
    checkpoints.write_zeros(folder, hidden_size=1024, layers=4 if harness.SLOWNESS == 1 else 1)
    return folder


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    """A store that servers share, for the tests of a file."""
    begun = redis_store.Redis(tmp_path_factory.mktemp("redis"))
    yield begun
    begun.stop()


@pytest.fixture
def own_redis(tmp_path):
    """One for a test that harms it."""
    begun = redis_store.Redis(tmp_path)
    yield begun
    begun.stop()


@pytest.fixture
def replicas(redis, server_factory):
    return [server_factory(store=redis.location, lease=redis_store.LEASE) for _ in range(2)]


@pytest.fixture
def own_replicas(own_redis, server_factory):
    return [server_factory(store=own_redis.location, lease=redis_store.LEASE) for _ in range(2)]
