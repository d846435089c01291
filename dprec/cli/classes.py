"""From a name in a recipe to what is meant: keys, classes, and the objects that settings describe."""

from __future__ import annotations

import difflib
import importlib
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import jsonargparse

from dprec.cli.arguments import short
from dprec.cli.recipe import GROUPS, TOP_LEVEL, is_own, named, normal, within, without_gone
from dprec.errors import UserError
from dprec.lightning import kinds
from dprec.models.adapted import adapted, fits
from dprec.models.learning.kept import path_of
from dprec.models.learning.learner import Learner


def refuse_foreign(settings: Any, where: str, trusted: Sequence[str] = ()) -> None:
    """Refuse a file's classes from outside of dprec before any of them is imported, because an import runs code.

    `trusted` names the modules that the person who runs the command allows. dprec's models and data take only plain
    values, which cannot name a class.

    >>> refuse_foreign({"class_path": "dprec.models.GRU", "init_args": {"dim": 8}}, "last.ckpt")
    >>> refuse_foreign({"class_path": "my_model.MyModel"}, "last.ckpt", trusted=["my_model"])
    >>> refuse_foreign({"class_path": "my_model.MyModel"}, "last.ckpt")
    Traceback (most recent call last):
    dprec.errors.UserError: last.ckpt names my_model.MyModel, which is not dprec's: add --trust my_model to run it
    """
    for name in named(settings):
        if not is_own(name) and not within(name, trusted):
            refuse_name(name, where)


def refuse_name(name: str, where: str) -> NoReturn:
    module = name.rpartition(".")[0] or name
    raise UserError(f"{where} names {name}, which is not dprec's: add --trust {module} to run it")


def resolve(base: type, name: str, where: str) -> type:
    """The subclass of ``base`` with this dotted path, or an imported one with this bare name."""
    if "." in name:
        found = _import(name, where)
        if base is Learner and fits(found):
            found = adapted(found)
    else:
        known = {subclass.__name__: subclass for subclass in _subclasses(base)}
        if name not in known:
            lower = {key.lower(): key for key in known}
            close = difflib.get_close_matches(name.lower(), lower, n=1)
            hint = f"did you mean {lower[close[0]]}?" if close else "give its dotted path, such as my_module.MyModel"
            raise UserError(f"{where}: unknown class {name!r}; {hint}")
        found = known[name]
    if not isinstance(found, type) or not issubclass(found, base):
        module = ", or a torch.nn.Module that has losses and scores" if base is Learner else ""
        raise UserError(
            f"{where}: {name} is not a {base.__name__}; give a class that subclasses {path_of(base)}{module}"
        )
    missing = unwritten(found)
    if missing and "." in name and not _ours(found):
        raise UserError(f"{where}: {name} lacks {' and '.join(missing)}: write it, as in docs/bring_your_model.md")
    return found


def named_wrongly(base: type, error: Exception) -> str:
    """Return a hint by a parser's message: what is almost the name of a subclass of ``base``, or of its argument.

    >>> from dprec.sparsity.rows.kinds import Strategy
    >>> named_wrongly(Strategy, ValueError("Expected a dot import path string: FESTT"))
    '; did you mean FEST?'
    """
    kinds = {cls.__name__: cls for cls in _subclasses(base) if not unwritten(cls)}
    names = {*kinds, *(name for cls in kinds.values() for name in parameters(cls))}
    words = [word for word in str(error).replace("'", " ").split() if word not in names]
    close = [match for word in words for match in difflib.get_close_matches(word, names, n=1, cutoff=0.8)]
    return f"; did you mean {close[0]}?" if close else f"; give one of {', '.join(sorted(kinds))}"


def _import(name: str, where: str) -> Any:
    module_name, _, attribute = name.rpartition(".")
    if not all(name.split(".")):
        raise UserError(f"{where} is {name!r}, which is not the name of a class: remove the extra dot")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # If the named module is missing, the recipe is wrong; if an import inside it fails, that is a bug.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise UserError(
            f"{where}: no module {error.name!r} for the class {name}; run from the folder that holds it"
        ) from None
    if not hasattr(module, attribute):
        close = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f"did you mean {close[0]}?" if close else "look for a typo"
        raise UserError(f"{where}: {module_name} has no class {attribute!r}; {hint}")
    return getattr(module, attribute)


def _subclasses(base: type) -> Iterator[type]:
    direct: list[type] = base.__subclasses__()
    for cls in direct:
        yield cls
        yield from _subclasses(cls)


def build(
    base: type,
    settings: Mapping[str, Any],
    where: str,
    given: Mapping[str, Any] | None = None,
    overrides: Sequence[tuple[str, str]] = (),
) -> Any:
    """The object that ``{"class_path": ..., "init_args": ...}`` describes.

    ``given`` holds arguments that do not come from the recipe; the class gets those that it names. ``overrides`` are
    ``--key value`` pairs as typed. Raises UserError for an unknown class, an unknown argument, or a wrong type.
    """
    class_key = f"{where}.class_path"
    given_class = [value for key, value in overrides if normal(key) == class_key]
    cls = resolve(base, (given_class or [settings["class_path"]])[-1], class_key)
    for key, _ in overrides:
        check(normal(key), {where: cls}, "command line")
    arguments = {} if given_class else _arguments(settings, cls, where)
    arguments |= {key: value for key, value in (given or {}).items() if key in parameters(cls)}
    parser = _parser(cls, where)
    typed = [f"--{key.replace('.init_args.', '.')}={value}" for key, value in overrides]
    try:
        parser.set_defaults({where: arguments})
        config = parser.parse_args([word for word in typed if normal(word[2:].partition("=")[0]) != class_key])
    except jsonargparse.ArgumentError as error:
        raise UserError(short(error, parser)) from None
    try:
        return parser.instantiate_classes(config)[where]
    except UserError:
        raise
    except Exception as error:
        if not _ours(cls):
            raise  # a mistake in the class of a user
        reason = textwrap.shorten(str(error), 120, placeholder=" ...")
        raise UserError(f"{where}: no {cls.__name__} can be made of its settings ({reason})") from None


def _arguments(settings: Mapping[str, Any], cls: type, where: str) -> dict[str, Any]:
    """What a file gives a class, which of ours must have each of these arguments."""
    arguments = settings.get("init_args") or {}
    arguments = without_gone(arguments) if isinstance(arguments, Mapping) else arguments
    unknown = [key for key in arguments if _ours(cls) and key not in parameters(cls)]
    if not isinstance(arguments, Mapping) or unknown:
        what = f"an argument {unknown[0]!r}" if isinstance(arguments, Mapping) else f"arguments {arguments!r:.40}"
        raise UserError(f"{where}: {cls.__name__} has no {what}: use the dprec that wrote it")
    return dict(arguments)


def _ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "dprec"


def _parser(cls: type, where: str) -> jsonargparse.ArgumentParser:
    """A parser of the arguments of exactly this class, so that an error in its __init__ is raised unchanged."""
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(cls, where, fail_untyped=False, sub_configs=True)
    return parser


# Names that other tools use for the same setting, to suggest the right key for them.
SYNONYMS = {
    "lr": "learning_rate",
    "eps": "epsilon",
    "sigma": "noise_multiplier",
    "epochs": "max_epochs",
    "steps": "max_steps",
    "hidden_size": "dim",
    "embedding_dim": "dim",
    "max_grad_norm": "max_norm",
    "output": "out",
    "seed_everything": "seed",
}


def parameters(cls: type) -> tuple[str, ...]:
    """Names of the arguments of a class, including those that it passes to its bases."""
    return _parameters(cls)


@lru_cache(maxsize=64)
def _parameters(cls: Any) -> tuple[str, ...]:  # separate, because mypy thinks that a class is unhashable
    if issubclass(cls, kinds("Trainer")):
        return tuple(name for name in inspect.signature(cls).parameters if name != "self")
    return tuple(_parser(cls, "it").get_defaults().get("it", jsonargparse.Namespace()).as_dict())


def required(cls: type) -> set[str]:
    """Names of the arguments of a class without a default, as far as they have a type."""
    return {action.dest.removeprefix("it.") for action in _parser(cls, "it")._actions if action.required}


def unwritten(cls: type) -> list[str]:
    """The abstract methods of a class."""
    return [name for name in dir(cls) if getattr(getattr(cls, name, None), "__isabstractmethod__", False)]


def from_data(cls: type) -> Mapping[str, str]:
    """The arguments of a class that the data decides, and for each, what to set instead."""
    return getattr(cls, "from_data", {})


def known(classes: Mapping[str, type]) -> list[str]:
    """Every key that may be set, given the class in each group."""
    keys = list(TOP_LEVEL)
    for group, cls in classes.items():
        keys += [f"{group}.{name}" for name in parameters(cls) if name not in from_data(cls)]
    return keys


def check(key: str, classes: Mapping[str, type], where: str) -> None:
    """Refuse an unknown key, in one line that names it and suggests another."""
    group, _, name = key.partition(".")
    if key in (*TOP_LEVEL, *GROUPS):  # a whole group: `privacy: null`
        return
    if group in GROUPS and name in ("class_path", "help"):
        return
    if group in classes and name in from_data(classes[group]):
        raise UserError(f"{where}: {key} comes from the data; {from_data(classes[group])[name]}")
    options = known(classes)
    if key in options:
        return
    meant = _meant(key, [*options, *GROUPS])
    hint = f"did you mean {meant}?" if meant else "python -m dprec.fit --help-all lists the keys"
    raise UserError(f"{where}: unknown key {key!r}; {hint}")


def _meant(key: str, options: list[str]) -> str | None:
    """The option that is closest as a whole, or by its last name, and of several of this name the closest."""
    name = key.rpartition(".")[2]
    name = SYNONYMS.get(name, name)
    names = {option.rpartition(".")[2] for option in options}
    whole = [] if name in names else difflib.get_close_matches(key, options, n=1, cutoff=0.7)
    close = whole or difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    found = whole or [option for option in options if option.rpartition(".")[2] in close]
    return next(iter(difflib.get_close_matches(key, found, n=1, cutoff=0.0)), None)
