"""A plug-in for tests, as other people write one: a classifier of residual blocks, which can be sharded."""

from pathlib import Path

from hpcai500.layers import Recipe, ShardedProgramming
from hpcai500.layers.fields import Count, Layer, Name
from hpcai500.plugins import Plugin


class Blocks(Layer):
    width: Count
    depth: Count
    # What its workload does wrong, for tests: `none`, `whole`, `replicas`, `seed`, `counted`, `mode`.
    mistake: Name


class BlocksRecipe(Recipe):
    workload: Blocks
    programming: ShardedProgramming


PLUGIN = Plugin(
    recipe=BlocksRecipe,
    recipes=Path(__file__).parent / "recipes",
    workload="hpcai500_blocks.work:build",
    make_data="hpcai500_blocks.data:make",
)
