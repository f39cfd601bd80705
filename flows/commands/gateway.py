"""`ratchet gateway`: the standing gateway of an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def gateway(
    recipe: Annotated[Path, typer.Argument(help="The recipe of the agent that is served.", show_default=False)],
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe.")] = None,
    home: Annotated[Path, typer.Option("--home", help="Folder that keeps releases and the audit log.")] = Path("runs"),
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free one.")] = 8000,
) -> None:
    """Serve the champion, and a candidate on trial, as an OpenAI-compatible API until Ctrl-C."""
    from flows.gateway import serve_gateway
    from flows.recipe import load_recipe
    from flows.services import port_or_free

    serve_gateway(load_recipe(recipe, changes or []), home, port_or_free(port, "the gateway") if port else 0)
