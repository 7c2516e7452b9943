"""What a shell may complete: names of methods, data sets, models, accounts and run folders, without torch.

Importing torch takes seconds, and a completion must not. So the names of models stand here once more; a
test compares them with what `saltflat.models` knows. The catalogue of data sets needs no torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from click import Context, Parameter
from click.shell_completion import CompletionItem

MODELS = (
    "centred-linear", "cnn-selu", "cnn-tanh", "dpnas-cifar", "dpnas-fmnist", "dpnas-mnist", "fed-cnn", "gn-resnet10",
    "linear", "logistic", "mlp", "resnet18-gn", "scatter-cnn", "scatter-linear", "vit-tiny", "wrn-16-4",
)  # fmt: skip
OPTIMIZERS = ("sgd", "adam", "adam-bc", "adamw", "rmsprop", "adagrad")
DEPTH, MOST = 3, 2000  # how far below a folder runs are looked for, and in how many folders

Items = list[CompletionItem]
Completion = Callable[[Context, Parameter, str], Items]
Words = Callable[[str], Iterable[str]]  # what may stand for a word that begins so


def method_names(incomplete: str) -> list[str]:
    """Methods, and with a method written out also its suffixes.

    >>> method_names("dp-sat")
    ['dp-sat', 'dp-sat-early-stop', 'dp-sat+ema', 'dp-sat+swa', ...]
    >>> method_names("sai+swa+ad")
    ['sai+swa+adam', 'sai+swa+adam-bc', 'sai+swa+ada']
    """
    from saltflat.plans import METHODS, SUFFIXES

    found = [name for name in METHODS if name.startswith(incomplete)]
    whole, plus, _ = incomplete.rpartition("+")
    base = whole if plus else incomplete
    if base.split("+")[0] in METHODS:
        used = base.split("+")[1:]
        found += [f"{base}+{suffix}" for suffix in SUFFIXES if suffix not in used]
    return [name for name in found if name.startswith(incomplete)]


def one_of(words: Words) -> Completion:
    """Completes a word to one of these."""
    return lambda ctx, param, incomplete: _items(_starting(words(incomplete), incomplete))


def some_of(words: Words) -> Completion:
    """Completes the last word of a list with commas, to one that is not in the list yet."""

    def complete(ctx: Context, param: Parameter, incomplete: str) -> Items:
        before, comma, last = incomplete.rpartition(",")
        chosen = before.split(",")
        return _items(before + comma + word for word in _starting(words(last), last) if word not in chosen)

    return complete


def _sections(_: str) -> Iterable[str]:
    from saltflat.bench.settings import SECTIONS

    return SECTIONS


def _augmentations(_: str) -> Iterable[str]:
    from saltflat.plan.parts import AUGMENTATIONS

    return AUGMENTATIONS


def _data_names(_: str) -> Iterable[str]:
    from saltflat.data.catalogue import names

    return names()


complete_data_name = one_of(_data_names)
complete_model = one_of(lambda _: MODELS)
complete_models = some_of(lambda _: MODELS)
complete_optimizer = one_of(lambda _: OPTIMIZERS)
complete_method = one_of(method_names)
complete_methods = some_of(method_names)
complete_sections = some_of(_sections)
complete_augmentations = some_of(_augmentations)


def complete_data(ctx: Context, param: Parameter, incomplete: str) -> Items:
    """For ``--data``: names, or else files."""
    return complete_data_name(ctx, param, incomplete) or [CompletionItem(incomplete, type="file")]


def complete_account(ctx: Context, param: Parameter, incomplete: str) -> Items:
    """For ``--account``: the accounts in the folder of ``--budgets``, if that was typed before."""
    from saltflat.record.account import names

    return _items(_starting(names(ctx.params.get("budgets")), incomplete))


def complete_run(ctx: Context, param: Parameter, incomplete: str, otherwise: str = "dir") -> Items:
    """For run folders: those that lie below what was typed, or else any folder."""
    found = _items(_starting(run_folders(incomplete), incomplete))
    return found or [CompletionItem(incomplete, type=otherwise)]


def complete_run_or_file(ctx: Context, param: Parameter, incomplete: str) -> Items:
    """For a run folder or a run file."""
    return complete_run(ctx, param, incomplete, otherwise="file")


def run_folders(incomplete: str) -> list[str]:
    """The run folders at most three folders below the one that ``incomplete`` names the beginning of."""
    start = incomplete[: incomplete.rfind("/") + 1]
    found = []
    for number, folder in enumerate(_below(Path(start or "."), DEPTH)):
        if number >= MOST:
            break
        if (folder / "plan.json").exists():
            found.append(start + str(folder.relative_to(start or ".")))
    return sorted(found)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    try:
        inside = sorted(entry.path for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != ".")
    except OSError:
        return
    for path in inside:
        yield Path(path)
        if depth > 1:
            yield from _below(Path(path), depth - 1)


def _starting(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _items(words: Iterable[str]) -> Items:
    return [CompletionItem(word) for word in words]
