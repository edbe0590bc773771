"""Processes that are killed at any operation on a file."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nnr_codec.sync import Publisher, Subscriber

from .support import has, model

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="SIGKILL")]

#: Start of a program that is killed when a file is opened, renamed, linked or deleted for the n-th time.
KILL = """
import os, signal, sys, threading
from nnr_codec.sync import Publisher, Subscriber
from tests.sync.support import has, model

left = int(sys.argv[2])

def kill(event, _):
    global left
    if event in ("open", "os.rename", "os.link", "os.remove", "os.mkdir"):
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
"""
PUBLISH = (
    KILL
    + """
sys.addaudithook(kill)
while True:
    publisher = Publisher(sys.argv[1], anchor_every=3, keep=1)
    for _ in range(7):
        publisher.publish(model(publisher.version))
"""
)
SUBSCRIBE = (
    KILL
    + """
sys.addaudithook(kill)
while True:
    subscriber = Subscriber(sys.argv[1])
    assert has(subscriber, model(subscriber.poll() - 1))
"""
)
STREAM = (
    KILL
    + """
import random, time
file = open(sys.argv[1], "ab", buffering=0)
threading.Timer(0.3 + random.random() * 0.7, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
publisher = Publisher(file, anchor_every=3)
while True:
    publisher.publish(model(publisher.version))
"""
)


def killed(program: str, path: Path, calls: int) -> None:
    """Run a program until it is killed."""
    done = subprocess.run([sys.executable, "-c", program, str(path), str(calls)], check=False, timeout=100)
    assert done.returncode == -signal.SIGKILL


def test_killed_publisher_leaves_a_folder_that_can_be_followed_and_continued(tmp_path: Path) -> None:
    follower, rng = Subscriber(tmp_path / "s"), random.Random(os.getpid())
    for _ in range(8):
        calls = rng.randrange(1, 200)
        killed(PUBLISH, tmp_path / "s", calls)
        follower.poll()
        late = Subscriber(tmp_path / "s")
        late.poll()
        assert late.version == follower.version, calls
        for subscriber in (follower, late):
            assert not subscriber.version or has(subscriber, model(subscriber.version - 1)), calls
    publisher = Publisher(tmp_path / "s", anchor_every=3, keep=1)
    for _ in range(4):
        publisher.publish(model(publisher.version))
    assert follower.poll() == publisher.version and has(follower, model(publisher.version - 1))
    oldest = min(int(path.stem) for path in (tmp_path / "s" / "versions").glob("*.json"))
    left = [path.name for path in (tmp_path / "s" / "payloads").glob("*.nnr") if int(path.name.split("-")[0]) < oldest]
    assert not left and publisher.version - oldest < 3


def test_killed_subscriber_changes_nothing(tmp_path: Path) -> None:
    publisher, rng = Publisher(tmp_path / "s", anchor_every=3), random.Random(os.getpid())
    for step in range(4):
        publisher.publish(model(step))
        before = {path: path.read_bytes() for path in (tmp_path / "s").rglob("*") if path.is_file()}
        killed(SUBSCRIBE, tmp_path / "s", rng.randrange(1, 60))
        assert before == {path: path.read_bytes() for path in (tmp_path / "s").rglob("*") if path.is_file()}


def test_killed_publisher_of_a_file_is_followed_after_its_restart(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    path.touch()
    with open(path, "rb") as file:
        subscriber = Subscriber(file)
        for _ in range(5):
            killed(STREAM, path, 0)
            while version := subscriber.poll():
                assert has(subscriber, model(version - 1))
        with open(path, "ab") as end:
            Publisher(end).publish(model(7))
        assert subscriber.poll() == 1 and has(subscriber, model(7))
