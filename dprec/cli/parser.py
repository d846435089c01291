"""Recipes and overrides to settings, and settings to objects, each once."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonargparse
import yaml

import dprec.sparsity  # noqa: F401  so that recipes can use bare names of strategies
from dprec.cli.arguments import CommandLine, short
from dprec.cli.classes import check, from_data, named_wrongly, parameters, resolve
from dprec.cli.recipe import GROUPS, flatten, normal, read_recipe
from dprec.data.sequences import Sequences
from dprec.errors import UserError
from dprec.lightning import LightningDataModule, is_left_out, with_own_names
from dprec.models import Learner, Transformer
from dprec.models.learning.kept import path_of
from dprec.sparsity.rows.kinds import Strategy
from dprec.training.callback import Privacy

DEFAULT_CLASSES: dict[str, type] = {"data": Sequences, "model": Transformer, "privacy": Privacy}
STRATEGIES = "privacy.sparsity"
BASES: dict[str, type] = {"data": LightningDataModule, "model": Learner, "privacy": Privacy}

# Defaults of a recipe: one device, a GPU where there is one, and no output of Lightning.
TRAINER_DEFAULTS: dict[str, Any] = {
    "accelerator": "auto",
    "devices": 1,
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "log_every_n_steps": 10,
}


class Length:
    """How long a run is: of the trainer's arguments, those that a plan needs."""

    def __init__(
        self, max_epochs: int | None = None, max_steps: int = -1, check_val_every_n_epoch: int | None = 1
    ) -> None:
        """Hold nothing: the parser alone asks for these."""


def trainer_class() -> type:
    """Lightning's Trainer, whose arguments a recipe may set; where Lightning is left out, only the length of a run."""
    if is_left_out():
        return Length
    from pytorch_lightning import Trainer

    return Trainer


def recipe_parser(classes: Mapping[str, type]) -> jsonargparse.ArgumentParser:
    """The parser of everything that a recipe for these classes may hold, except what the data decides of a model.

    It has no arguments for an optimizer, because replacing the model's would drop the noise.
    """
    parser = jsonargparse.ArgumentParser(prog="dprec fit", exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config", action=jsonargparse.ActionConfigFile, help="A recipe: YAML or JSON.")
    parser.add_argument(
        "--seed", type=int, default=0, help="Seed of initial weights; without privacy, of dropout, too."
    )
    parser.add_argument("--name", type=str | None, default=None, help="Name of the run.")
    parser.add_argument("--out", type=str | None, default=None, help="Run folder.")
    parser.add_argument(
        "--continue_from", type=str | None, default=None, help="Run whose model is trained further, or folder of runs."
    )
    parser.add_argument(
        "--checkpoint_every", type=int, default=50, help="Steps between two checkpoints; 0: only the last."
    )
    parser.add_argument(
        "--metrics", type=str | None, default=None, help="Metrics at the end; the verdict is about the first."
    )
    parser.add_argument(
        "--baselines", type=str | None, default=None, help="itemknn, ease or both beside popularity; NOT PRIVATE."
    )
    for group, cls in classes.items():
        skip = set(from_data(cls)) & set(parameters(cls))
        parser.add_class_arguments(cls, group, fail_untyped=False, instantiate=False, sub_configs=True, skip=skip)
    known = set(parameters(classes["trainer"]))
    parser.set_defaults({f"trainer.{key}": value for key, value in TRAINER_DEFAULTS.items() if key in known})
    return parser


@dataclass(frozen=True)
class Settings:
    """All settings of a run, in plain values, so that YAML and checkpoints can hold them."""

    tree: dict[str, Any]  # complete: defaults, recipes, overrides
    overrides: tuple[str, ...]  # flat keys of the command line
    parser: jsonargparse.ArgumentParser
    config: jsonargparse.Namespace  # the parsed arguments of each group, from which objects are made
    classes: Mapping[str, type]  # of each group; one that is null has none

    @property
    def flat(self) -> dict[str, Any]:
        return dict(flatten(self.tree))

    @property
    def name(self) -> str:
        return self.tree["name"]

    @property
    def out(self) -> str | None:
        return self.config["out"]

    def make(self, group: str, given: Mapping[str, Any] | None = None, kind: type | None = None) -> Any:
        """The object that a group describes, with the `given` arguments; None if the group is null.

        Its class is the named one, or another `kind` that takes the same arguments.
        """
        if group not in self.classes:
            return None
        arguments = self._arguments(group, self.config.get(group, jsonargparse.Namespace()).clone())
        return (kind or self.classes[group])(**arguments, **(given or {}))

    def trainer(self) -> dict[str, Any]:
        """The trainer's arguments, with objects in place of names."""
        return self._arguments("trainer", self.config["trainer"].clone())

    def _arguments(self, group: str, given: jsonargparse.Namespace) -> dict[str, Any]:
        """A group's arguments, with objects in place of names."""
        try:
            found = self.parser.instantiate_classes(jsonargparse.Namespace(**{group: given}))
            return dict(vars(found[group]))
        except ValueError as error:
            # Of a strategy that is no alternative of a union the parser keeps what it said, and no more.
            lines = [line.strip(" -") for line in str(error).splitlines()]
            said = [line for line in lines if line.startswith("privacy.sparsity:")]
            if not said:
                raise
            raise UserError(said[0]) from None

    def refuse_chain(self, command: str) -> None:
        if self.tree["continue_from"] is not None:
            raise UserError(f"{command} takes no run to go on from: leave continue_from out")

    def to_store(self) -> dict[str, Any]:
        """The tree as people write it, without default classes and the trainer's defaults."""
        tree = {key: value for key, value in self.tree.items() if key not in GROUPS}
        for group in ("data", "model", "privacy"):
            usual = self.classes.get(group) is DEFAULT_CLASSES[group]
            tree[group] = self.tree[group]["init_args"] if usual else self.tree[group]
        defaults = self.parser.get_defaults().trainer
        tree["trainer"] = {k: v for k, v in self.tree["trainer"].items() if v != defaults.get(k)}
        return tree

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_store(), sort_keys=False, allow_unicode=True)


def parse(line: CommandLine) -> Settings:
    """Read recipes and overrides; every mistake is a UserError of one line that names the key."""
    recipe, classes, given_words = _layers(line)
    overrides = {normal(key): value for key, value in given_words}
    _refuse_missing({*recipe, *overrides}, classes)
    # The layers go in as one: from two files, the parser would give the first file's arguments to the second's class.
    args = ["--config", yaml.safe_dump(_as_tree(recipe))] if recipe else []
    args += [f"--{key.replace('.init_args.', '.')}={value}" for key, value in given_words if _is_argument(key, value)]
    parser = recipe_parser(classes)
    try:
        config = parser.parse_args(args)
    except jsonargparse.ArgumentError as error:
        meant = named_wrongly(Strategy, error) if STRATEGIES in str(error) else ""
        raise UserError(short(error, parser) + meant) from None
    tree = yaml.safe_load(parser.dump(config, skip_none=False))
    for key in ("config", "out"):
        tree.pop(key, None)
    for group in BASES:
        described = (
            {"class_path": path_of(classes[group]), "init_args": tree.get(group, {})} if group in classes else None
        )
        tree[group] = described
    tree["name"] = tree["name"] or "+".join(Path(path).stem for path in line.recipes)
    _refuse_nonsense(tree)
    _choose_length(tree["trainer"], overrides)
    return Settings(tree, tuple(overrides), parser, config, classes)


def full_help(line: CommandLine) -> str:
    """The help on every setting, including those of the trainer, for the classes that a line names."""
    return recipe_parser(DEFAULT_CLASSES | _layers(line)[1]).format_help()


def _layers(line: CommandLine) -> tuple[dict[str, Any], dict[str, type], list[tuple[str, str]]]:
    """Return what the recipes give, by flat key, less what the overrides replace; the classes; the overrides."""
    classes: dict[str, type] = {**DEFAULT_CLASSES, "trainer": trainer_class()}
    recipe: dict[str, Any] = {}
    for path in line.recipes:
        layer = dict(flatten(read_recipe(path)))
        recipe = _layer(layer, recipe, classes, path) | layer
    given = [(key, with_own_names(value)) for key, value in line.overrides]
    last = max((place for place, (key, value) in enumerate(given) if _is_null(key, {key: value})), default=0)
    given = [pair for place, pair in enumerate(given) if place >= last or not pair[0].startswith("privacy.")]
    overrides = {normal(key): value for key, value in given}
    recipe = _layer(overrides, recipe, classes, "command line")
    asked = {key.partition(".")[0] for key in (*recipe, *overrides) if not _is_null(key, {**recipe, **overrides})}
    if "privacy" not in asked:
        del classes["privacy"]
    return recipe, classes, given


def _is_null(key: str, flat: Mapping[str, Any]) -> bool:
    return key == "privacy" and flat[key] in (None, "null")


def _is_argument(key: str, value: str) -> bool:
    """Whether an override is an argument of a class, and no class, and no group that is null."""
    return not normal(key).endswith(".class_path") and not _is_null(key, {key: value})


def _choose_length(trainer: dict[str, Any], overrides: Collection[str]) -> None:
    """Let a length of training from the command line stand in place of the recipe's, also of the other kind."""
    own = {key.removeprefix("trainer.") for key in overrides} & {"max_steps", "max_epochs"}
    if own == {"max_epochs"}:
        trainer["max_steps"] = -1
    elif own == {"max_steps"} and trainer["max_steps"] >= 0:
        trainer["max_epochs"] = None


def _refuse_nonsense(tree: Mapping[str, Any]) -> None:
    if not 0 <= tree["seed"] < 2**32:
        raise UserError(f"seed is {tree['seed']}: give a whole number from 0 to {2**32 - 1}")
    if tree["checkpoint_every"] < 0:
        raise UserError(
            f"checkpoint_every is {tree['checkpoint_every']}: give a number of steps, or 0 for only the last"
        )
    if tree["name"] in (".", "..") or set("/\\\0") & set(tree["name"]):
        raise UserError(f"name is {tree['name']!r}: give a name without / and \\, or a folder with --out")


def _refuse_missing(given: Collection[str], classes: Mapping[str, type]) -> None:
    """Refuse arguments without a default that are not given; of one without a type the parser would make null."""
    for group in classes.keys() & BASES.keys():
        for name, own in inspect.signature(classes[group]).parameters.items():
            needed = own.default is own.empty and own.kind not in (own.VAR_POSITIONAL, own.VAR_KEYWORD)
            if needed and name not in from_data(classes[group]) and f"{group}.{name}" not in given:
                raise UserError(f"{group}.{name} is not given: add --{group}.{name}")


def _layer(layer: Mapping[str, Any], below: Mapping[str, Any], classes: dict[str, type], where: str) -> dict[str, Any]:
    """Check the keys of a layer, update ``classes``, and return the values of the layers below that stay.

    If a layer replaces a class or sets a group to null, the group's earlier arguments are dropped.
    """
    kept = dict(below)
    for group in GROUPS:
        if isinstance(layer.get(group), (bool, int, float, list)):
            raise UserError(f"{where}: {group} is {layer[group]!r}: give its settings, one a line, indented")
        if group in layer:
            kept = {key: value for key, value in kept.items() if not key.startswith(f"{group}.")}
        elif any(key.startswith(f"{group}.") for key in layer):
            kept.pop(group, None)
    for group, base in BASES.items():
        named = layer.get(f"{group}.class_path")
        if isinstance(named, str):
            cls = resolve(base, named, f"{where}: {group}.class_path")
            if cls is not classes[group]:
                kept = {key: value for key, value in kept.items() if not key.startswith(f"{group}.")}
            classes[group] = cls
    for key in layer:
        check(key, classes, where)
    return kept


def _as_tree(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of each group, by name, without its class."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        group, dot, name = key.partition(".")
        if not dot:
            tree |= {} if _is_null(key, flat) else {group: value}
        elif name != "class_path":
            tree.setdefault(group, {})[name] = value
    return tree
