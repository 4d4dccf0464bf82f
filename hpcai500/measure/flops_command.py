"""`hpcai500 flops BENCHMARK`: the operations of its model, operator by operator."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from hpcai500.errors import ExitCode, HpcAi500Error
from hpcai500.files import scratch
from hpcai500.job_options import FlopsOptions, read_options
from hpcai500.recipe import load_recipe
from hpcai500.stopping import ending_by_signals, leave
from hpcai500.streams import prepare_streams, print_error, show
from hpcai500.text import prefix_of, scaled

if TYPE_CHECKING:
    from hpcai500.measure.flops import FlopsCount, Operator

_GIGA = 1e9


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the count; returns the exit code."""
    prepare_streams()
    try:
        options = read_options(FlopsOptions, arguments)
        with ending_by_signals(leave):
            count, shape = _count(options)
    except HpcAi500Error as error:
        print_error(error)
        return error.exit_code
    show({**_document(count), "input": shape} if options.as_json else _lines(count, shape))
    return ExitCode.PASS


def _count(options: FlopsOptions) -> tuple[FlopsCount, list[int]]:
    """The operations, and the shape of a sample."""
    # torch is imported here, once signals are handled.
    from hpcai500.measure.flops import count_flops
    from hpcai500.workloads import model_of

    recipe = load_recipe(options.recipe, options.overrides)
    model, example = model_of(recipe, options.classes)
    with scratch(os.environ, Path.cwd()):
        return count_flops(model, *example), list(example[0].shape[1:])


def _document(count: FlopsCount) -> dict[str, object]:
    from hpcai500.measure.flops import CONVENTION

    return {
        "convention": CONVENTION,
        "parameters": count.parameters,
        "forward_flops": _plain(count.forward_flops),
        "training_flops": _plain(count.training_flops),
        "parts": [_entry(operator) for operator in count.operators],
        "sums": [_entry(part) for part in count.parts],
    }


def _entry(operator: Operator) -> dict[str, object]:
    return {
        "name": operator.name,
        "kind": operator.kind,
        "forward_flops": _plain(operator.forward_flops),
        "training_flops": _plain(operator.training_flops),
    }


def _plain(flops: float) -> int | float:
    """A count as an integer where it is one; per sample it may not be."""
    return int(flops) if flops.is_integer() else flops


def _lines(count: FlopsCount, shape: list[int]) -> list[str]:
    from hpcai500.measure.flops import CONVENTION, Operator

    operators = _folded(count.operators)
    width = max(len(operator.name) for operator in operators)
    # One unit for all rows, in which those of a small model are not 0.
    unit, prefix = min(prefix_of(count.training_flops), (_GIGA, "G"))
    unit_name = f"({prefix}FLOP a sample)"
    rows = [f"{'operator':{width}}  {'kind':14}  {'forward':>10}  {'backward':>10}  {'training':>10}   {unit_name}"]
    rows += [_row(operator, width, unit) for operator in operators]
    rows.append("part by part:")
    rows += [_row(part, width, unit) for part in count.parts]
    rows.append(_row(Operator("total", CONVENTION, count.forward_flops, count.training_flops), width, unit))
    parameters = scaled(count.parameters, "", digits=5).strip()
    rows.append(f"parameters: {parameters}; a sample is {' x '.join(map(str, shape)) or 1} numbers")
    return rows


def _folded(operators: Iterable[Operator]) -> list[Operator]:
    """The operators; those of equal blocks that follow each other, such as layer3.1 to layer3.5, as one, their sum."""
    blocks = [(*block, list(inside)) for block, inside in groupby(operators, lambda one: _block(one.name)[:2])]

    def form(numbered: tuple[int, tuple[str, int, list[Operator]]]) -> object:
        place, (head, number, inside) = numbered
        sizes = [(_block(one.name)[2], one.kind, one.forward_flops, one.training_flops) for one in inside]
        return head, number - place, sizes

    rows: list[Operator] = []
    for _, group in groupby(enumerate(blocks), form):
        equal = [block for _, block in group]
        head, first, inside = equal[0]
        times = len(equal)
        rows += [
            replace(
                one,
                name=f"{head}{first}-{equal[-1][1]}{_block(one.name)[2]} x {times}" if times > 1 else one.name,
                forward_flops=times * one.forward_flops,
                training_flops=times * one.training_flops,
            )
            for one in inside
        ]
    return rows


def _block(name: str) -> tuple[str, int, str]:
    """What is before and after the first number in the name of a module: layer3.1.conv2 -> layer3. 1 .conv2"""
    number = re.search(r"(?:(?<=\.)|^)\d+(?=\.|$)", name)
    return (name[: number.start()], int(number[0]), name[number.end() :]) if number else (name, -1, "")


def _row(operator: Operator, width: int, unit: float) -> str:
    forward, training = operator.forward_flops / unit, operator.training_flops / unit
    return f"{operator.name:{width}}  {operator.kind:14}  {forward:10.4f}  {training - forward:10.4f}  {training:10.4f}"


if __name__ == "__main__":
    sys.exit(main())
