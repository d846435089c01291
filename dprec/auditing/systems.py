"""The systems that an audit compares: a recipe, the same without privacy, and requested variants."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import yaml

from dprec.auditing.planted import WITH_CONTEXT, CanariedSequences, Canaries
from dprec.cli.arguments import CommandLine
from dprec.cli.classes import resolve
from dprec.cli.parser import Settings, parse
from dprec.data.sequences import Sequences
from dprec.errors import UserError
from dprec.models import Learner, Recommender
from dprec.models.learning.kept import path_of
from dprec.run.saved.folder import replace_file
from dprec.sparsity.rows.kinds import RowChoice, Strategy

NO_PRIVACY = "no privacy"
NOISE = "0.01,0.001"


@dataclass(frozen=True)
class System:
    """One way to train: the recipe with these overrides."""

    name: str
    overrides: tuple[tuple[str, str], ...] = ()

    @classmethod
    def read(cls, text: str) -> System:
        """
        >>> System.read("half = --privacy.epsilon 4")
        System(name='half', overrides=(('privacy.epsilon', '4'),))
        """
        name, equals, options = (part.strip() for part in text.partition("="))
        if not name or not equals or "/" in name:
            raise UserError(f"--beside is {text!r}: give a name and overrides, such as 'half = --privacy.epsilon 4'")
        try:
            words = shlex.split(options)
        except ValueError as error:
            raise UserError(f"--beside {name}: {error}: close it") from None
        line = CommandLine.read(words)
        if line.recipes or not line.overrides:
            raise UserError(f"--beside {name}: give overrides of the recipe, such as --privacy.epsilon 4")
        return cls(name, tuple(line.overrides))

    @classmethod
    def without_privacy(cls) -> System:
        return cls(NO_PRIVACY, (("privacy", "null"),))

    @classmethod
    def with_noise(cls, multiplier: float) -> System:
        """Return DP-SGD with this noise and no budget."""
        noise = (("privacy.epsilon", "null"), ("privacy.noise_multiplier", f"{multiplier:g}"))
        return cls(f"DP-SGD {multiplier:g}", noise)

    @classmethod
    def with_strategy(cls, strategy: str, multiplier: float) -> System:
        """Return the same noise with a strategy of `dprec.sparsity` with its defaults."""
        path = f"dprec.sparsity.{strategy}"
        made = resolve(Strategy, path, "--strategies")()
        if isinstance(made, RowChoice) and made.releases():
            raise UserError(
                f"--strategies: {strategy} takes a share of privacy.epsilon, which --noise does not have: "
                f"name {strategy} in --beside, with an epsilon"
            )
        plain = cls.with_noise(multiplier)
        sparsity = ("privacy.sparsity", json.dumps({"class_path": path}))
        return cls(f"{strategy} {multiplier:g}", (*plain.overrides, sparsity))

    @property
    def folder(self) -> str:
        return self.name.replace(" ", "-")


def asked_canaries(line: CommandLine) -> Canaries:
    """Return the canaries to plant, from the command's options."""
    given = line.options
    try:
        occurrences = tuple(int(part) for part in given.canaries.split(","))
    except ValueError:
        raise UserError(f"--canaries is {given.canaries!r}: give numbers of users, such as 1,10,100") from None
    numbers = {name: given[name] for name in ("each", "references", "length", "coins")}
    return Canaries(occurrences, **numbers, seed=given.seed_of_canaries)


def asked_systems(line: CommandLine) -> list[System]:
    """Return the systems: without privacy, those of `--noise`, `--strategies`, `--beside`, and the recipe last."""
    beside, noise = line.options.beside, line.options.noise
    strategies = line.options.strategies.split(",") if line.options.strategies else []
    settings = parse(line)
    settings.refuse_chain("audit")
    tree = settings.tree
    if tree["data"]["init_args"].get("context") is not None:  # before a folder is taken or a log is read
        raise UserError(WITH_CONTEXT)
    privacy = tree["privacy"]
    if noise is None:  # releases before training take a share of the budget, so they need one
        model: Any = resolve(Learner, tree["model"]["class_path"], "model.class_path")
        noise = NOISE if model.releases is Learner.releases else "none"
    systems = [System.without_privacy(), *_noises(noise, strategies, privacy is not None), *map(System.read, beside)]
    if privacy is not None:
        given = privacy["init_args"]
        named = f"epsilon {given['epsilon']:g}" if given.get("epsilon") else "the recipe"
        systems.append(System(named))
    names = [system.folder for system in systems]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated:
        raise UserError(f"--beside: there are two systems {repeated!r}: give each a name of its own")
    return systems


def _noises(text: str, strategies: Sequence[str], private: bool) -> list[System]:
    if not private or text == "none":  # without a privacy block there is no clipping, so noise would bound nothing
        if strategies:
            raise UserError("--strategies needs noise to place: give --noise, and a recipe with a privacy block")
        return []
    try:
        multipliers = [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--noise is {text!r}: give noise multipliers, such as 0.01,0.001, or none") from None
    placed = [System.with_strategy(strategy, multiplier) for strategy in strategies for multiplier in multipliers]
    return [*map(System.with_noise, multipliers), *placed]


def canaried(line: CommandLine, system: System, canaries: Canaries, folder: Path, seconds: float) -> Settings:
    """Return the settings of a run of this system, with canaries among its users and a time limit."""
    overrides = [*line.overrides, *system.overrides]
    settings = parse(CommandLine(recipes=line.recipes, overrides=overrides))
    for key in ("devices", "num_nodes"):
        if (value := settings.tree["trainer"][key]) not in (1, "1", "auto"):
            raise UserError(f"trainer.{key} cannot be {value}: an audit trains in one process")
    for base, wanted, group in ((pl.LightningDataModule, Sequences, "data"), (Learner, Recommender, "model")):
        found = resolve(base, settings.tree[group]["class_path"], group)
        if not (found is Sequences or (wanted is Recommender and issubclass(found, Recommender))):
            raise UserError(
                f"{group}.class_path is {path_of(found)}: canaries are users with histories, so give the audit a "
                "recipe of a recommender on dprec.data.Sequences"
            )
    tree = settings.to_store()
    data = dict(settings.tree["data"]["init_args"])
    tree["data"] = {"class_path": path_of(CanariedSequences), "init_args": {**data, "canaries": canaries.settings()}}
    minutes, rest = divmod(max(1, round(seconds)), 60)
    limit = {"limit_val_batches": 0, "max_time": f"00:{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}"}
    tree["trainer"] = tree.get("trainer", {}) | limit
    written = folder / "recipe.yaml"
    replace_file(written, lambda path: path.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8"))
    return parse(CommandLine(recipes=[str(written)], overrides=[("out", str(folder / "run"))]))


def recorded(systems: Sequence[System]) -> list[dict[str, Any]]:
    """Return each system's overrides, for the result."""
    return [{"system": system.name, "overrides": dict(system.overrides)} for system in systems]
