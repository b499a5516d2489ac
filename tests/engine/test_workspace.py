"""Locking the arena into memory."""

import json
import subprocess

from cgroup import estream_command

import estream
from estream.package.package import Package


def test_the_limit_on_locked_memory_is_obeyed(demo_package: Package):
    unprivileged = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"]
    command = estream_command("run", demo_package.path, "--tokens", "64", "--memory", "200MiB", "--json")
    limited = ["sh", "-c", 'ulimit -l 64; exec "$@"', "sh"]
    for wrapper, locked in (([*unprivileged, *limited], False), ([], True)):
        run = subprocess.run([*wrapper, *map(str, command)], capture_output=True, text=True, check=True)
        assert json.loads(run.stdout)["config"]["arena_locked"] is locked


def test_only_a_budget_of_the_user_is_locked(demo_package: Package):
    with estream.load(demo_package.path) as model:
        assert not model.prefill([1]).stats.config["arena_locked"]
