"""Plans a run before it starts, from settings and data: items, batch, steps, sizes of the model, guarantee."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from dprec.accounting.composition import COARSE_GRID
from dprec.accounting.ledger import Ledger
from dprec.accounting.private_catalogue import PrivateCatalogue
from dprec.accounting.release import Release
from dprec.cli.classes import from_data, parameters, required, resolve
from dprec.cli.parser import Settings
from dprec.data.draws.length import planned_steps
from dprec.data.draws.poisson import UserBatches, batch_of, user_batches, usual_batch
from dprec.data.logs.histories import visits
from dprec.data.module import SampledData
from dprec.data.sequences import PRIVATE
from dprec.errors import UserError
from dprec.models import Learner
from dprec.models.learning.kept import path_of
from dprec.notices import say
from dprec.run.console import notice_box, warning_of_delta
from dprec.run.rows_read import rows_with_noise
from dprec.run.saved.earlier import EarlierRun
from dprec.run.tasks import task_of
from dprec.sparsity import AdaFEST
from dprec.training.callback import Privacy


def batch_for(settings: Settings, users: int, unit: str) -> int:
    """Return the batch size of a run. If a recipe's is larger than the data, the default is used instead.

    Both depend on the number of users, which is public. A value from the command line is not changed.
    """
    given: float | None = settings.tree["data"]["init_args"]["batch_size"]
    if given is None or given <= users or "data.batch_size" in settings.overrides:
        return batch_of(given, users)
    taken = usual_batch(users)
    say(f"data.batch_size {given:,} is more than the {users:,} {unit}s: a step takes {taken:,}")
    return taken


def fit_batch(settings: Settings, data: Any) -> None:
    """Give data the batch size of the run, before it draws."""
    given = settings.tree["data"]["init_args"]
    if isinstance(data, SampledData) and "batch_size" in given and given.get("period_days") is None:
        data.batch_size = batch_for(settings, data.users, data.unit)


def total_steps(settings: Settings, batches: Any) -> int:
    """Return the steps of a run."""
    steps, epochs = settings.tree["trainer"]["max_steps"], settings.tree["trainer"]["max_epochs"]
    if steps < -1:
        raise UserError(f"trainer.max_steps is {steps}: give a number of at least 1, or -1 to use trainer.max_epochs")
    return planned_steps(steps or -1, (epochs or None) if steps else None, batches)


def sizes_for(model: type, data: Any) -> dict[str, Any]:
    """Return the model's arguments that the data decides; refuse data that does not have them."""
    wanted = [name for name in from_data(model) if name in parameters(model)]
    given = data.sizes
    if "context_rows" in given and "context_rows" not in wanted:
        raise UserError(
            f"model {path_of(model)} reads no context: leave data.context out, or train a model of sequences such as "
            "dprec.models.Transformer"
        )
    missing = [name for name in wanted if name not in given and name in required(model)]
    if missing:
        raise UserError(
            f"model {path_of(model)} takes {' and '.join(missing)} from the data, which {path_of(type(data))} "
            "does not have: give data and a model of the same kind"
        )
    return {name: given[name] for name in wanted if name in given}


def planned_run(settings: Settings, users: int | None = None, items: int | None = None) -> dict[str, Any]:
    """Return noise, sampling, and ε after parts of a run that has not started, in plain values.

    Users and items are counted in the data, unless the number of users is given.
    """
    tree = settings.tree
    if tree["privacy"] is None:
        raise UserError("the recipe has no privacy block, so there is no ε to plan: add --privacy.epsilon 8")
    privacy: Privacy = settings.make("privacy")
    if privacy.strategies.broken:
        raise UserError(f"there is no ε to plan: {privacy.strategies.broken}")
    if (named := tree["continue_from"]) is not None:
        privacy.continue_from(EarlierRun.read(named).promise, named)
    model = resolve(Learner, tree["model"]["class_path"], "model.class_path")
    notice, data = None, None
    if users is None:
        data = settings.make("data")
        if getattr(data, "awaits_catalogue", False):
            raise UserError("only the run chooses a private catalogue, once: plan without the data, with --users N")
        data.setup("fit")
        fit_batch(settings, data)
        batches, items = data.batches, task_of(model).describe(data).get("items")
        notice = data.notice
        _say_what_is_left_out(getattr(data, "summary", {}))
    else:
        batches = _batches(settings, users)
        given = tree["data"]["init_args"]
        if given.get("catalogue") == PRIVATE:
            privacy.begin_with(privacy.private_catalogue(users, given["catalogue_share"]).events)
    steps = total_steps(settings, batches)
    privacy.plan(batches, steps, _releases(settings, model, data))
    tenths = sorted({max(1, round(steps * tenth / 10)) for tenth in range(1, 11)})
    # Intermediate figures use a coarse grid, ten times as fast; their last decimal may be 1 too high.
    after = [{"steps": done, "epsilon": privacy.planned.epsilon_after(done, COARSE_GRID)} for done in tenths[:-1]]
    after.append({"steps": tenths[-1], "epsilon": privacy.epsilon_after(tenths[-1])})
    one, most = privacy.planned.ledger_after(1), privacy.epsilon or math.inf
    if one.epsilon(privacy.delta, COARSE_GRID) > most and one.epsilon(privacy.delta) > most:
        raise privacy.planned.too_dear()
    releases = (*privacy.planned.before[:1], *privacy.planned.releases.values())
    return {
        "run": settings.name,
        "users": batches.users,
        "items": items,  # V, None if it was not counted or the data has none
        "batch_size": batches.expected_batch,
        "sampling": batches.kind,
        "sampling_rate": batches.rate,
        "steps": steps,
        "noise_multiplier": privacy.sigma,
        "noise_to_batch": privacy.sigma / batches.expected_batch,  # in units of the clipping norm
        "delta": privacy.delta,
        "epsilon": after[-1]["epsilon"],
        "after": after,
        # Noisy sums before the first step, over all users or those of a period.
        "releases": [
            {"what": event.what, "noise_multiplier": event.noise_multiplier, "period": event.period}
            for event in releases
        ],
        "stand_in": notice is not None,
        "notice": notice,
        "unit": batches.unit,
        "share_by_noise": _share_by_noise(privacy),  # of the rows that no user reads, with AdaFEST
        **(_rows_with_noise(settings, privacy, model, data, steps) or {}),  # if there is data
        "periods": len(privacy.sampling.periods),  # in order; the sampling rate is then their largest
    }


def show_plan(plan: Mapping[str, Any], console: Console) -> None:
    """Print the result of `planned_run` as tables."""
    notice_box(console, plan["notice"])
    facts = Table(title=plan["run"], title_justify="left", title_style="bold", show_header=False)
    rate = f"q = {plan['sampling_rate']:.4f}" + (f" at most, {plan['periods']} periods" if plan["periods"] else "")
    items = "" if plan["items"] is None else f", {plan['items']:,} items"
    share = plan["share_by_noise"]
    for name, value in (
        ("data", f"{plan['users']:,} {plan['unit']}s{items}"),
        ("batch", f"{plan['batch_size']:,} {plan['unit']}s, {plan['sampling']} sampling, {rate}"),
        ("steps", f"{plan['steps']:,}"),
        *_released(plan["releases"]),
        ("noise multiplier σ", f"{plan['noise_multiplier']:.4f}"),
        ("noise to batch σ/B", f"{plan['noise_to_batch']:.2e}"),
        *(() if share is None else (("noise in unread rows", f"{share:.3g} of them"),)),
        *(() if "rows" not in plan else _of_rows(plan)),
        ("δ", f"{plan['delta']:.3g}"),
        ("ε", f"{plan['epsilon']:.3f}"),
    ):
        facts.add_row(name, value)
    console.print(facts)
    along = Table()
    along.add_column("after step", justify="right")
    along.add_column("ε", justify="right")
    for point in plan["after"]:
        along.add_row(f"{point['steps']:,}", f"{point['epsilon']:.3f}")
    console.print(along)
    if (warning := warning_of_delta(plan["delta"])) is not None:
        console.print(warning, soft_wrap=True)


def _share_by_noise(privacy: Privacy) -> float | None:
    """Return the share of rows that get noise in a step although no user reads them, with a run's last AdaFEST."""
    found = [strategy for strategy in privacy.strategies.in_order if isinstance(strategy, AdaFEST)]
    own = privacy.sigma * privacy.strategies.gradient_noise_factor
    return found[-1].share_by_noise(own * found[-1].noise_ratio) if found else None


def _rows_with_noise(settings: Settings, privacy: Privacy, model: Any, data: Any, steps: int) -> Any:
    """Return `rows_with_noise` of a model made for this data; None without data or AdaFEST."""
    if data is None or len(privacy.sampling.periods) or _share_by_noise(privacy) is None:
        return None
    made = settings.make("model", sizes_for(model, data))
    return rows_with_noise(privacy, made, data, steps)


def _of_rows(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return lines about the number of rows with noise, in a draw of these users, and the paper's Equation 2."""
    counted = f"about {plan['rows_with_noise']:,.0f} of {plan['rows']:,} a step (one draw; not private)"
    most = plan["most_removed"]
    better = (
        f"better than DP-SGD if choosing removes less than {most:.2g} of a gradient" if most else "DP-SGD is better"
    )
    return [("rows with noise", counted), ("Equation 2", better)]


def _batches(settings: Settings, users: int) -> UserBatches:
    data = settings.tree["data"]
    given = data["init_args"]
    if "sampling" not in given or "batch_size" not in given:
        raise UserError(f"--users: {data['class_path']} has no sampling and batch_size to plan with; leave --users out")
    if given.get("period_days") is not None:
        raise UserError("--users: data.period_days needs the number of records of each period; leave --users out")
    module = settings.make("data")  # this reads no data
    return user_batches(given["sampling"], users, batch_for(settings, users, module.unit), unit=module.unit)


def _say_what_is_left_out(summary: Mapping[str, Any]) -> None:
    users, items = (summary.get(key, 0) for key in ("users_with_few_events", "items_left_out"))
    if users or items:
        say(f"data.min_events or data.catalogue leave out {users:,} users and {items:,} items (exact, not private)")


def _releases(settings: Settings, model: type[Learner], data: Any) -> tuple[Release, ...]:
    """Return the model's releases before training: from its class if that defines them, otherwise from a model."""
    if model.releases is Learner.releases:
        return ()
    if _place(model, "releases_of") <= min(_place(model, "releases"), _place(model, "__init__")):
        return model.releases_of(settings.tree["model"]["init_args"])
    if data is None:
        raise UserError(
            f"--users: the class {path_of(model)} does not say which releases it needs before training: "
            "write its releases_of, or leave --users out"
        )
    learner: Learner = settings.make("model", sizes_for(model, data))
    return learner.releases


def _place(cls: type, name: str) -> int:
    """Return the position, among a class and its bases, of the one that defines this name."""
    return next(place for place, base in enumerate(cls.__mro__) if name in vars(base))


def _released(releases: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return lines about releases: one for those of all users and one for those of periods, without repeats."""
    told: dict[str, list[str]] = {}
    for one in releases:
        when = "released before" if one["period"] is None else "released by period"
        told.setdefault(when, []).append(f"{one['what']} (σ {one['noise_multiplier']:.3g})")
    return [(when, ", ".join(dict.fromkeys(sums))) for when, sums in told.items()]


def settle_catalogue(data: Any, privacy: Privacy | None, checkpoint: Mapping[str, Any] | None = None) -> None:
    """Choose the items if the data needs it, and record the choice in the ledger; a resumed run keeps its items.

    `checkpoint` is what torch.load returns for the run's checkpoint, by `dprec.fit` or by your own trainer.
    """
    if not getattr(data, "awaits_catalogue", False):
        return
    if checkpoint is not None:
        items, spent = _kept(checkpoint, type(data).__qualname__, privacy)
        data.choose(items)
        if privacy is not None:
            ledger = Ledger()
            ledger.load_state_dict(spent)
            privacy.begin_with(PrivateCatalogue.recorded(ledger.events), on_record=True)
        return
    if privacy is None:
        raise UserError("data.catalogue is private, but no privacy block pays for it: leave it out, or add one")
    found = data.found
    users = len(found.offsets) - 1
    choice = privacy.private_catalogue(int(np.count_nonzero(found.lengths)), data.catalogue_share)
    privacy.begin_with(choice.events)
    chosen = choice.choose(visits(found), users, len(found.item_ids), privacy.noise)
    data.choose([found.item_ids[place] for place in chosen])


def _kept(checkpoint: Mapping[str, Any], data: str, privacy: Privacy | None) -> tuple[list[str], Mapping[str, Any]]:
    """Return the items that a run chose, and its ledger."""
    if (ours := checkpoint.get("dprec")) is not None and ours["identity"]:  # as dprec.fit wrote it
        return ours["catalogue"], ours["guarantee"]
    try:
        own = {} if privacy is None else checkpoint["callbacks"][privacy.state_key]["ledger"]
        return checkpoint[data]["catalogue"], own
    except (KeyError, TypeError):
        raise UserError("the checkpoint's run has chosen no items: give the checkpoint of one that did") from None
