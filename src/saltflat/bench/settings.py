"""What a bench measures, and how much of it. No torch: the command line reads its defaults from here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from saltflat.errors import InputError, check_count, check_known

MODELS = (
    "cnn-selu", "dpnas-cifar", "dpnas-fmnist", "gn-resnet10", "wrn-16-4", "vit-tiny", "scatter-linear",
)  # fmt: skip
SECTIONS = {
    "engines": "the private step beside the ordinary one and beside other libraries",
    "step": "a whole DP-SGD step against its clipped gradient alone",
    "methods": "a step of each method against a step of DP-SGD",
    "memory": "peak memory, each in a fresh process",
    "growth": "time and memory against logical batch, parameters and micro-batch",
}
METHODS = ("dp-sat", "sai", "dp-sgd+ema", "dp-sgd+swa", "dp-sam")
LEAST_ROUNDS = 5  # fewer, and a median says little on a busy machine


@dataclass(frozen=True)
class Settings:
    """The sizes of everything that is measured. The defaults are those by which the goals are judged."""

    models: tuple[str, ...] = MODELS
    sections: tuple[str, ...] = tuple(SECTIONS)
    examples: int = 256
    rounds: int = LEAST_ROUNDS
    # the sections `step` and `methods`, and the growth against logical batch and micro-batch
    step_model: str = "cnn-selu"
    step_batch: int = 2048
    step_population: int = 50_000
    methods: tuple[str, ...] = METHODS
    method_rounds: int = 15
    method_rounds_most: int = 30  # where the machine is so restless that 15 say little
    # the section `memory`
    memory_examples: int = 128
    memory_micro_batch: int = 64
    memory_repeats: int = 3
    memory_batches: tuple[int, int] = (2048, 32_768)
    memory_pairs: int = 5
    memory_early: int = 32  # small batches before the logical batch: memory rises over a run's first steps
    # each peer is a fresh process more, and seconds of imports; growth heeds it too
    memory_peers: bool = True
    # the section `growth`
    growth_rounds: int = 3
    growth_batches: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192)
    growth_memory_batches: tuple[int, ...] = (256, 1024, 4096, 8192, 32_768)
    growth_widths: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    growth_width_examples: int = 64
    growth_micro_batches: tuple[int, ...] = (8, 16, 32, 64, 128, 256)

    def sizes(self) -> dict[str, object]:
        """All that decides a number, apart from which models and sections were asked for."""
        return {key: value for key, value in vars(self).items() if key not in ("models", "sections")}


FULL = Settings()
QUICK = replace(
    FULL,
    models=("cnn-selu", "dpnas-fmnist", "scatter-linear"),
    examples=64,
    rounds=3,
    step_batch=128,
    methods=("sai",),  # each is two fresh processes, and seconds of imports
    method_rounds=6,
    method_rounds_most=6,
    memory_repeats=1,
    # fewer would not fill a micro-batch in both lanes, and need less memory for it
    memory_batches=(256, 512),
    memory_pairs=1,
    memory_early=0,
    memory_peers=False,
    growth_batches=(64, 128),
    growth_memory_batches=(64, 128),
    growth_widths=(),
    growth_micro_batches=(),
)


def chosen(
    *,
    quick: bool = False,
    models: str | None = None,
    sections: str | None = None,
    examples: int | None = None,
    rounds: int | None = None,
) -> Settings:
    """The settings that the options ask for; what is None stays as `FULL` or `QUICK` has it.

    >>> chosen(models="mlp", rounds=7).rounds
    7
    >>> chosen(sections="engines,stap")
    Traceback (most recent call last):
    saltflat.errors.InputError: sections='stap' is not a section.
      Expected sections separated by commas. Did you mean 'step'? Known: engines, step, methods, memory, growth.
    """
    settings = QUICK if quick else FULL
    if models is not None:
        settings = replace(settings, models=_words("models", models))
    if sections is not None:
        names = _words("sections", sections)
        for name in names:
            expected = "sections separated by commas"
            check_known("sections", name, SECTIONS, expected, problem="is not a section")
        # in the order of the report, whatever the order on the command line
        settings = replace(settings, sections=tuple(name for name in SECTIONS if name in names))
    if examples is not None:
        check_count("examples", examples, cure="The goals are judged with 256.")
        settings = replace(settings, examples=examples)
    if rounds is not None:
        check_count("rounds", rounds, cure="The goals are judged with 5.")
        settings = replace(settings, rounds=rounds, method_rounds=max(3 * rounds, settings.method_rounds))
    return settings


def _words(argument: str, text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words:
        raise InputError(argument, text, f"at least one of the {argument}, separated by commas")
    return words


def left_out(settings: Settings) -> list[str]:
    """What a bench with these settings does not measure, or measures on less, as sentences.

    >>> left_out(FULL)
    []
    >>> left_out(replace(FULL, examples=64, sections=("engines",)))[:2]
    ['sections step, methods, memory, growth', 'examples: 64 instead of 256']
    """
    said = []
    if missing := [name for name in SECTIONS if name not in settings.sections]:
        said.append(f"section{'s' * (len(missing) > 1)} {', '.join(missing)}")
    if missing := [name for name in MODELS if name not in settings.models]:
        said.append(f"model{'s' * (len(missing) > 1)} {', '.join(missing)}")
    if missing := [name for name in METHODS if name not in settings.methods]:
        said.append(f"method{'s' * (len(missing) > 1)} {', '.join(missing)}")
    less = {
        "examples": "examples",
        "rounds": "rounds",
        "step_batch": "examples in a step of the sections step and methods",
        "method_rounds": "rounds of the methods",
        "memory_examples": "examples for the memory of a model",
        "memory_repeats": "fresh processes for each figure of memory that is judged",
        "memory_pairs": "pairs of fresh processes for the memory over the logical batch",
        "memory_early": "small batches before that",
        "growth_rounds": "rounds of the growth",
    }
    for key, what in less.items():
        here, whole = getattr(settings, key), getattr(FULL, key)
        if here < whole:
            said.append(f"{what}: {here} instead of {whole}")
    if settings.memory_batches != FULL.memory_batches:
        small, large = settings.memory_batches
        said.append(f"memory at logical batches {small:,} and {large:,} instead of 2,048 and 32,768")
    if not settings.memory_peers:
        said.append("memory of Opacus, and of the micro-batch that saltflat chooses itself")
    if settings.growth_batches != FULL.growth_batches:
        said.append("most points of the growth")
    axes = {"parameters": settings.growth_widths, "micro-batch": settings.growth_micro_batches}
    if missing := [f"the {axis}" for axis, points in axes.items() if not points]:
        said.append(f"growth against {' and '.join(missing)}")
    return said
