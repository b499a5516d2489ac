"""``python -m estream.integrations.ray score|classify|rerank|embed``: the commands of these names, over actors."""

import inspect
import os
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from estream.cli import app, classify, embed, guard, rerank, score, signals, streams
from estream.cli.services import running_with
from estream.errors import OptionError

_NAME = "python -m estream.integrations.ray"
Actors = Annotated[int, typer.Option("--actors", min=1, max=4096, help="Processes that each have the package open.")]
BlockRows = Annotated[int, typer.Option("--block", min=1, help="Rows of a block, which is read by one actor and then kept.")]
Address = Annotated[str | None, typer.Option("--address", help="A running cluster, such as auto; else one of this machine.")]

commands = typer.Typer(
    help="Rows of a file over Ray's actors. Input, output and package lie where every node reads them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def over_actors(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of a cluster, whose rows are read there."""

    def run(actors: int, block: int, address: str | None, **given: Any) -> None:
        if given.get("text") is not None:
            raise OptionError("actors read rows: give --input; for one --text, the command estream")
        # Ray takes a second to import, which wrong usage need not wait for.
        from estream.integrations.ray.run import Cluster, run_on

        with running_with(partial(run_on, Cluster(actors, block, address))):
            command(**given)

    signature = inspect.signature(command)
    own = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind, default in (("actors", Actors, 2), ("block", BlockRows, 1000), ("address", Address, None))
    ]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *own])  # type: ignore[attr-defined]
    run.__annotations__ = command.__annotations__ | {each.name: each.annotation for each in own}
    run.__doc__ = command.__doc__
    return run


for _name, _command in (
    ("score", score.score_command),
    ("classify", classify.classify_command),
    ("rerank", rerank.rerank_command),
    ("embed", embed.embed_command),
):
    commands.command(_name)(over_actors(_command))


def _run() -> int:
    # What Ray says to those who develop it is in its own log files.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    with signals.as_interrupts():
        return app.run(commands, _NAME)


if __name__ == "__main__":
    streams.repair()
    guard.run(_run)
