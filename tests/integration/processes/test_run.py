"""How `federator run` ends by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import yaml

from federator.testing import FakeApiServer
from tests.programs import run_module


async def test_where_no_context_can_be_followed_it_ends_and_says_why(tmp_path: Path) -> None:
    async with FakeApiServer() as server:
        path = server.kubeconfig(tmp_path / "kubeconfig")
        config = yaml.safe_load(path.read_text())
        (context,) = config["contexts"]
        config["contexts"].append(context | {"name": "twin"})
        path.write_text(yaml.safe_dump(config))
        listen = ("--listen=127.0.0.1:0", "--http-listen=", f"--state-directory={tmp_path / 'state'}")
        done = await asyncio.to_thread(
            run_module, "federator", "run", f"--kubeconfig={path}", "--resource=podz", *listen
        )
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.count("context left out") == 2
    assert done.stderr.splitlines()[-1].startswith("Error: no member cluster serves a resource type 'podz'")
