"""Contract files: what is in them, and what is said of a mistake."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from hpcai500.errors import UsageError
from hpcai500.results.acceptance.contract import (
    METRICS,
    Contract,
    CriterionTable,
    PartyTable,
    RequireTable,
    Spec,
    SystemTable,
    contracts_folder,
    find_contract,
    load_contract,
    shown,
    unit_factor,
    unit_names,
)

EXAMPLE = contracts_folder() / "example.toml"
TABLES: dict[str, type[BaseModel]] = {
    "": Spec,
    "[system]": SystemTable,
    "[[parties]]": PartyTable,
    "[require]": RequireTable,
    "[[criteria]]": CriterionTable,
}
HEAD = 'title = "t"\n'
CRITERION = '[[criteria]]\nmetric = "vflops"\nreference = 1.5\nunit = "PFLOPS"\nlower = -0.05\n'
VARIATION = '[[criteria]]\nmetric = "variation of vflops"\nreference = 2\nunit = "%"\nupper = 0.0\n'
WAIT = '[[criteria]]\nmetric = "data_wait_fraction"\nreference = {reference}\nunit = "{unit}"\nupper = {upper}\n'
EFFICIENCY = """[[criteria]]
metric = "parallel_efficiency"
reference = {reference}
unit = "%"
lower = -0.1
nodes = 2
"""


def contract(folder: Path, text: str) -> Contract:
    path = folder / "my.toml"
    path.write_text(text, encoding="utf-8")
    return load_contract(path)


@pytest.mark.parametrize(
    ("table", "key"),
    [
        (table, key)
        for table, kind in TABLES.items()
        for key in kind.model_fields
        if table or key in ("title", "contract")
    ],
)
def test_the_example_explains_every_field(table: str, key: str) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    body = (text.partition(f"\n{table}")[2] if table else text).partition("\n[")[0]
    # A field that another criterion could have is commented out.
    line = re.search(rf"^(# )?{key} = .*$", body, re.MULTILINE)
    assert line, f"{table} {key} is not in {EXAMPLE}"
    words = body[line.start() :].removeprefix("# ")
    here = words.partition("\n")[0] + "".join(re.findall(r"\n {10,}(#.*)", words.partition("\n\n")[0]))
    comment = here.partition("# ")[2]
    assert len(comment) > 15
    assert "default" in comment


def test_the_example_names_every_metric_and_every_unit() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    listed = text.partition("# Metrics of runs")[2]
    for name in METRICS:
        word = "variation of NAME" if name.startswith("variation of") else name.split(" ")[-1]
        assert word in listed, f"{name} is not listed"
    for metric in METRICS.values():
        for unit in unit_names(metric.unit):
            assert unit in listed or unit.endswith("FLOPS/W"), f"{unit} is not listed"


def test_an_efficiency_is_that_of_the_nodes_that_all_runs_must_have(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(
        HEAD + "[require]\nnodes = 16\n" + CRITERION.replace("vflops", "parallel_efficiency").replace("PFLOPS", "%")
    )
    contract = load_contract(tmp_path / "my.toml")
    assert (contract.spec.require.nodes, contract.spec.criteria[0].nodes) == (16, None)


def test_shipped_contract_files_are_good() -> None:
    for path in sorted(contracts_folder().glob("*.toml")):
        assert load_contract(path).spec.criteria


def test_the_defaults_are_what_the_example_says(tmp_path: Path) -> None:
    spec = contract(tmp_path, HEAD + CRITERION).spec
    (one,) = spec.criteria
    assert (spec.system.name, spec.parties, spec.contract) == ("not named", (), "")
    assert spec.require.model_dump() == {
        "rankable": True, "verified": False, "signed": False, "registered": None, "signers": None, "level": None,
        "edition": None, "runs": 1, "nodes": None, "confidence": None,
    }  # fmt: skip
    assert (one.over_runs, one.nodes, one.benchmark, one.clause) == ("mean", None, None, "")
    assert one.limits.reference == 1.5e15
    assert (one.limits.lowest, one.limits.highest) == (pytest.approx(1.425e15), None)


def test_an_efficiency_has_an_upper_limit_of_its_own_unless_the_contract_gives_one(tmp_path: Path) -> None:
    (one,) = contract(tmp_path, HEAD + EFFICIENCY.format(reference=90)).spec.criteria
    assert (one.limits.lowest, one.limits.highest) == (pytest.approx(0.81), pytest.approx(1.05))
    (other,) = contract(tmp_path, HEAD + EFFICIENCY.format(reference=110) + "upper = 0.2").spec.criteria
    assert other.limits.highest == pytest.approx(1.32)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CRITERION, r"my.toml: title: is missing"),
        (HEAD, r"my.toml: criteria: is missing"),
        (HEAD + "criteria = []", r"my.toml:2: criteria: expected \[\[criteria\]\], one table or more"),
        (
            HEAD + CRITERION.replace("vflops", "vflop"),
            r"my.toml:3: \[\[criteria\]\] 1 \(vflop\).metric: no metric is .*; did you mean vflops or flops\? "
            r"quality is the metric of the recipe, such as top1 or a loss; hpcai500 accept --example lists all names$",
        ),
        (HEAD + CRITERION.replace("vflops", "validation_loss"), r"called 'validation_loss'; quality is the metric of"),
        (HEAD + CRITERION.replace("vflops", "samples_per_second"), r"; did you mean images_per_second\? "),
        (HEAD + CRITERION.replace("vflops", "tokens_per_second"), r"measured in tokens/s; allowed: tokens/s; got"),
        (
            HEAD + CRITERION.replace("vflops", "quality").replace("PFLOPS", "nats"),
            r"quality is measured in fraction; allowed: fraction, %; got 'nats'; for a loss, add better = \"lower\"",
        ),
        (
            HEAD + CRITERION + "lowr = 0.0",
            r"my.toml:7: \[\[criteria\]\] 1 \(vflops\).lowr: unknown key; did you mean lower\? allowed: metric",
        ),
        (HEAD + CRITERION.replace("-0.05", "0.05"), r"expected a fraction of the reference from -0.5 to 0: "),
        (HEAD + CRITERION.replace("-0.05", "-5"), r"my.toml:6: .* 1 \(vflops\).lower: expected .* got -5"),
        (HEAD + CRITERION + "upper = 5", r"my.toml:7: .* 1 \(vflops\).upper: expected .* from 0 to 1: .*got 5"),
        (HEAD + CRITERION.replace("lower = -0.05", ""), "vflops: higher is better, so give lower = 0.0, or a"),
        (HEAD + CRITERION.replace("-0.05", "-0.999999"), r"expected .* -0.5 to 0: .* give a lower reference"),
        (HEAD + CRITERION.replace("-0.05", "-0.51") + "upper = 0.0", r"\.lower: expected .* -0.5 to 0: .*got -0.51"),
        (HEAD + CRITERION.replace("-0.05", "nan"), r"\.lower: expected a finite number"),
        (HEAD + CRITERION.replace("-0.05", "-inf"), r"\.lower: expected"),
        (HEAD + CRITERION + "upper = inf", r"\.upper: expected"),
        (HEAD + WAIT.format(reference=50, unit="%", upper=1.0), "up to 100 % is accepted, and it is never above 100 %"),
        (HEAD + WAIT.format(reference=5, unit="fraction", upper=0.0), 'give a lower reference; unit = "%" if'),
        (HEAD + VARIATION.replace("2", "100"), "variation of vflops: up to 100 % is accepted"),
        (HEAD + EFFICIENCY.format(reference=110), "a parallel_efficiency above 1.05 is not accepted without upper"),
        (
            HEAD + CRITERION.replace("vflops", "seconds").replace("PFLOPS", "h"),
            r"my.toml:2: \[\[criteria\]\] 1 \(seconds\): seconds: lower is better, so give upper = 0.0, or a tolerance",
        ),
        (
            HEAD + CRITERION.replace("PFLOPS", "Pflops"),
            r"unit: vflops is measured in FLOPS; allowed: FLOPS, EFLOPS, PFLOPS, .*; got 'Pflops'",
        ),
        (HEAD + CRITERION.replace("PFLOPS", "s"), "unit: vflops is measured in FLOPS; .* got 's'"),
        (HEAD + CRITERION.replace("1.5", "0"), r"\.reference: expected a value above 0 .*, got 0$"),
        (HEAD + CRITERION.replace("1.5", "inf"), r"\.reference: expected"),
        (HEAD + CRITERION.replace("1.5", '"1.5"'), r"\.reference: expected a valid number, got '1.5'"),
        (HEAD + CRITERION.replace("1.5", "nan"), r"\.reference: expected a finite number"),
        (HEAD + CRITERION + 'statistic = "best"', r"\.statistic: expected 'every', 'mean' or 'median', got 'best'"),
        (
            HEAD + CRITERION + 'benchmark = "score"',
            r"\.benchmark: expected the name of a benchmark: ic, ewa, or that of a plug-in, got 'score'",
        ),
        (HEAD + CRITERION + CRITERION, r"two criteria are vflops \(mean\): give one with lower and upper"),
        (
            HEAD + CRITERION.replace("vflops", "parallel_efficiency").replace("PFLOPS", "%"),
            "nodes: parallel_efficiency needs a number of nodes, such as nodes = 16",
        ),
        (HEAD + CRITERION.replace("vflops", "gemm bf16") + "nodes = 2", "gemm bf16: leave nodes and benchmark out"),
        (
            HEAD + VARIATION + 'statistic = "mean"',
            "variation of vflops: leave statistic out",
        ),
        (HEAD + '[require]\nlevel = "any"\n' + CRITERION, r"my.toml:3: \[require\] level: expected 'hardware',"),
        (HEAD + '[require]\nedition = "v1"\n' + CRITERION, r"\[require\] edition: expected one of the editions v2.0"),
        (HEAD + "[require]\nruns = 0\n" + CRITERION, r"my.toml:3: \[require\] runs: expected greater than"),
        (HEAD + "[require]\nsigners = 'a'\n" + CRITERION, r"signers has no effect alone: add verified = true"),
        (HEAD + "[require]\nregistered = 'a'\n" + CRITERION, r"registered: expected 64 hex digits, as .*'a'"),
        (
            HEAD + CRITERION + CRITERION.replace("vflops", "flops") + "lowr = 0.0",
            r"my.toml:12: \[\[criteria\]\] 2 \(flops\).lowr: unknown key",
        ),
        (HEAD + '[[parties]]\nrole = "Vendor"\n' + CRITERION, r"my.toml:2: \[\[parties\]\] 1.name: is missing"),
        ('title = "a\\u0000b"\n' + CRITERION, r"my.toml:1: title: expected one line of printable characters"),
        ("x y", "my.toml: not valid TOML"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_by_line_and_key_with_what_is_allowed(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        contract(tmp_path, text)


def test_a_misspelt_key_is_told_once_and_others_that_are_missing_too(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as told:
        contract(tmp_path, 'titel = "t"\n' + CRITERION.replace("reference", "referense").replace("unit =", "x ="))
    lines = [line.partition("; ")[0] for line in told.value.lines]
    assert [line.replace(f"{tmp_path}/", "") for line in lines] == [
        "my.toml:2: [[criteria]] 1 (vflops).unit: is missing",
        "my.toml:4: [[criteria]] 1 (vflops).referense: unknown key",
        "my.toml:5: [[criteria]] 1 (vflops).x: unknown key",
        "my.toml:1: titel: unknown table or key",
    ]


def test_a_missing_contract_is_told_with_the_line_to_type(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no such file; shipped: example, smoke; or write one: hpcai500 accept"):
        find_contract(tmp_path / "nothing.toml")
    with pytest.raises(UsageError, match="a folder, but the contract file must come first"):
        find_contract(tmp_path)
    assert find_contract(Path("smoke")) == contracts_folder() / "smoke.toml"


def test_every_unit_is_a_multiple_of_its_metrics_and_is_shown_with_its_name() -> None:
    for metric in METRICS.values():
        for unit in unit_names(metric.unit):
            factor = unit_factor(unit, metric.unit)
            assert factor is not None
            assert shown(3.5 * factor, metric.unit, unit) in (f"3.5 {unit}", "3.5")
        assert unit_factor("parsec", metric.unit) is None
    assert shown(58_900.0, "images/s", "images/s") == "58,900 images/s"
    assert shown(945e12, "FLOPS") == "945 TFLOPS"


def test_each_metric_of_runs_has_its_variation() -> None:
    kinds = {kind: {name for name, one in METRICS.items() if one.kind == kind} for kind in ("run", "variation")}
    assert kinds["variation"] == {f"variation of {name}" for name in kinds["run"]}
    assert set(get_args(CriterionTable.model_fields["statistic"].annotation)) >= {type(None)}
