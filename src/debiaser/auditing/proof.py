"""From an audit to a model: candidates are trained, one is chosen on validation rows and proven on held-out ones."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from debiaser.auditing.asking import swaps_of
from debiaser.auditing.audit import Examined
from debiaser.auditing.exchange import exchange
from debiaser.auditing.finetuned import WholeMaterial
from debiaser.auditing.jobs import Rows, answer_inputs, read_model
from debiaser.auditing.price import compared, price
from debiaser.auditing.repair import VANILLA, Trial, compete, report_trial, ways_of
from debiaser.auditing.selection import choose_model, plant_trial
from debiaser.auditing.shares import conflicting_share
from debiaser.auditing.swap import SwapTest


def prove(
    examined: Examined, train: Rows, valid: Rows, held_out: Rows, seeds: int, max_cost: float, field: Any
) -> tuple[Trial, dict[str, Any]]:
    """The trial on held-out rows, its model chosen on the validation rows, and what `debias` adds to an audit.

    Once the choice is made validation rows are rows to learn from like the others: everything is trained again.
    """
    own, desk = examined.subject.own, examined.desk
    view = examined.named
    ways = ways_of(examined, exchange(examined, view) if view else None)
    rehearsal = compete(desk, train, valid, ways, own.unit, seeds)
    choice = choose_model(rehearsal, plant_trial(examined, rehearsal, view) if view else None, max_cost, desk.seed)
    if isinstance(desk.material, WholeMaterial):  # what costs hours is trained again only where it is compared
        ways = {name: ways[name] for name in (VANILLA, choice.rival)}
    trial = compete(desk, np.union1d(train, valid), held_out, ways, own.unit, seeds)
    trial = replace(trial, chosen=choice.chosen)
    more = report_trial(trial, choice.rival, own, max_cost)
    paid = price(trial, choice.rival, desk.seed)
    if paid is not None:
        paid["sentence"] = compared(paid["sentence"], conflicting_share(examined).plain, field)
    after = [each.plain for each in reliances_after(examined, rehearsal, choice.rival)]
    more["repair"] |= {"selection": choice.plain, "price": paid, "views_after": after}
    more["selection"], more["price"] = choice.plain, paid
    return trial, more


def reliances_after(examined: Examined, rehearsal: Trial, name: str) -> Sequence[Any]:
    """How far this model's first seed follows each property, asked on validation rows."""
    if not isinstance(examined.swaps, SwapTest):
        return ()
    desk, contender = examined.desk, rehearsal.contenders[name]
    model = read_model(desk.material, desk.folder / contender.keys[0])
    answers = np.full(len(examined.pool), -1)
    answers[examined.place[rehearsal.rows]] = contender.answers[0]

    def answer(_: torch.Tensor, inputs: Any) -> torch.Tensor:
        return torch.from_numpy(answer_inputs(model, examined.subject.enter(inputs)).argmax(1))

    test = swaps_of(examined.subject, desk, examined.views, answers, answer, desk.listener)
    return test.reliances if isinstance(test, SwapTest) else ()
