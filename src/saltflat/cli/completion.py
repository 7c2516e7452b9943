"""``saltflat completion``: a script with which the shell completes commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog="""\b
Examples:
  saltflat completion bash
  source <(saltflat completion bash)

\b
To install it, type once:
  bash  mkdir -p ~/.local/share/bash-completion/completions
        saltflat completion bash > ~/.local/share/bash-completion/completions/saltflat
  zsh   mkdir -p ~/.zfunc && saltflat completion zsh > ~/.zfunc/_saltflat
        and put into ~/.zshrc, before compinit: fpath+=~/.zfunc
  fish  mkdir -p ~/.config/fish/completions
        saltflat completion fish > ~/.config/fish/completions/saltflat.fish

It takes effect in the next shell. In bash without the package bash-completion, put
eval "$(saltflat completion bash)" into ~/.bashrc instead.
"""
)
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the script that lets SHELL complete what you type.

    It completes commands, options and their choices, methods with their suffixes, data sets, models, accounts
    and run folders.
    """
    from saltflat.cli.app import app

    kind = get_completion_class(shell)
    assert kind is not None, f"click has no completion for {shell}"
    click.echo(kind(app, {}, "saltflat", "_SALTFLAT_COMPLETE").source(), nl=False)
