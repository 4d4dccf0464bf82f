"""ReFrame check of the benchmarks of hpcai500: reads the lines documented in docs/harness.md.

    reframe -C settings.py -c hpcai500_check.py -t ic -S image=/apps/hpcai500.sif -S data=/data/imagenet -r

The reference values of each system are in `references.yaml` beside this file.
"""

import pathlib
import re
import shlex

import reframe as rfm
import reframe.utility.sanity as sn
import yaml
from reframe.core.builtins import parameter, run_after, run_before, sanity_function, variable
from reframe.core.exceptions import PerformanceError

FIGURE = re.compile(r"^HPCAI500 FOM (?P<name>\S+)=(?P<value>\S+) (?P<unit>\S+)$", re.MULTILINE)
VERDICTS = tuple(f"HPCAI500 RESULT {word}" for word in ("PASS", "FAIL", "INVALID", "UNDECIDED"))
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
EXIT_CODE = "exit_code"
RECORD = "record"


@rfm.simple_test
class Hpcai500Check(rfm.RunOnlyRegressionTest):
    """One run of a benchmark: checks its result, then compares every figure of merit with its reference."""

    descr = "HPC AI500: train to the target epochs, score, compare"
    num_tasks_per_node = 1

    benchmark = parameter(["ic", "ewa"])
    # The Apptainer image; empty runs the program below.
    image = variable(str, value="")
    # Without an image: the program to run, instead of hpcai500 on PATH.
    program = variable(str, value="hpcai500")
    # A TOML file or a name such as ic/lars-4096; empty: the default of `hpcai500 ic`.
    recipe = variable(str, value="")
    # Folder of the data set, the same path on every node; empty: the smoke run makes its own.
    data = variable(str, value="")
    # table.key=value …, separated by spaces, quoted as in a shell.
    settings = variable(str, value="")
    num_nodes = variable(int, value=1)
    # Options of the launcher, as in a shell: --mpi=pmix
    launcher_options = variable(str, value="")
    references = variable(str, value=str(pathlib.Path(__file__).resolve().parent / "references.yaml"))

    @run_after("init")
    def enable_on_all_systems(self):
        """Valid on all systems; `-t ic` and `-t ewa` choose the benchmark."""
        self.valid_systems = ["*"]
        self.valid_prog_environs = ["*"]
        self.tags = {"hpcai500", self.benchmark}
        self.num_tasks = self.num_nodes * self.num_tasks_per_node

    @run_after("init")
    def make_paths_absolute(self):
        """The job runs in another folder. A recipe may be a name instead of a path."""
        self.references = str(pathlib.Path(self.references).absolute())
        if self.data:
            self.data = str(pathlib.Path(self.data).absolute())
        if self.image:
            self.image = str(pathlib.Path(self.image).absolute())
        if pathlib.Path(self.recipe).is_file():
            self.recipe = str(pathlib.Path(self.recipe).absolute())

    @run_after("setup")
    def set_command(self):
        """In the image or outside; ranks by the partition's launcher, or by hpcai500 on one machine."""
        arguments = [self.benchmark, "--out", RECORD]
        if self.current_partition.launcher_type.registered_name == "local" and self.num_tasks > 1:
            if self.num_nodes > 1:
                raise ValueError("the partition's launcher is `local`: it reaches one node; set num_nodes=1")
            arguments += ["--procs", str(self.num_tasks)]
            self.num_tasks = 1
        if self.recipe:
            arguments += ["--recipe", self.recipe]
        if self.data:
            arguments += ["--data", self.data]
        for setting in shlex.split(self.settings):
            arguments += ["--set", setting]
        if self.image:
            self.run_in_image(arguments)
        else:
            self.executable = self.program
            self.executable_opts = [shlex.quote(word) for word in arguments]
        if self.num_gpus_per_node:
            self.extra_resources = {"gpu": {"num_gpus_per_node": self.num_gpus_per_node}}

    def run_in_image(self, arguments):
        """`apptainer exec`, with the files that the run reads mounted at the same paths."""
        self.container_platform = "Apptainer"
        self.container_platform.image = self.image
        self.container_platform.command = shlex.join(["hpcai500", *arguments])
        self.container_platform.with_cuda = bool(self.num_gpus_per_node)
        # So that the record can have the hash of the image.
        mounts = [(self.image, "/image.sif:ro")]
        if self.data:
            mounts.append((self.data, self.data))
        if self.recipe.startswith("/"):
            mounts.append((self.recipe, self.recipe))
        self.container_platform.mount_points = mounts

    @run_before("run")
    def keep_exit_code_and_record(self):
        """The job writes its exit code: Slurm without accounting does not report it."""
        if self.current_partition.launcher_type.registered_name == "srun":
            # Otherwise, after the failure of a rank, the others wait for ever.
            self.job.launcher.options += ["--kill-on-bad-exit=1"]
        self.job.launcher.options += shlex.split(self.launcher_options)
        self.postrun_cmds = [f"echo $? > {EXIT_CODE}"]
        self.keep_files = [EXIT_CODE, f"{RECORD}/*.json*", f"{RECORD}/recipe.toml"]

    @sanity_function
    def check_result(self):
        """Require exit code 0, and `HPCAI500 RESULT PASS` as the last line of stdout: one of them can be lost."""
        code = self.read(EXIT_CODE).strip() or "unknown (the job did not end normally)"
        lines = self.read(self.stdout).splitlines()
        last = lines[-1] if lines else ""
        verdict = last.removeprefix("HPCAI500 ") if last in VERDICTS else "no RESULT line"
        message = f"{verdict}, exit code {code}{error_text(lines, self.read(self.stderr).splitlines())}"
        return sn.assert_true((verdict, code) == ("RESULT PASS", "0"), msg=message)

    @run_before("performance")
    def compare_all_figures(self):
        """Each line `HPCAI500 FOM` is a performance variable, so new figures need no change here."""
        if self.is_dry_run():
            return
        figures = {match["name"]: match for match in FIGURE.finditer(self.read(self.stdout))}
        expected = self.references_here()
        missing = sorted(expected.keys() - figures.keys())
        if missing:
            raise PerformanceError(f"{self.references}: the run did not print {', '.join(missing)}")
        self.perf_variables = {
            name: sn.make_performance_function(sn.defer(float(match["value"])), match["unit"])
            for name, match in figures.items()
        }
        self.reference = {self.current_partition.fullname: expected}

    def references_here(self):
        """`name: (value, lower, upper, unit)` of this benchmark: for all systems, for this one, for its partition."""
        tables = yaml.safe_load(pathlib.Path(self.references).read_text(encoding="utf-8")) or {}
        known = tables.get(self.benchmark) or {}
        scopes = ("*", self.current_system.name, self.current_partition.fullname)
        return {name: tuple(row) for scope in scopes for name, row in (known.get(scope) or {}).items()}

    def read(self, name):
        """Text of a file of the job; empty if the job did not write it."""
        file = pathlib.Path(self.stagedir) / sn.evaluate(name)
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def error_text(stdout, stderr):
    """The line in which hpcai500, or the program that ended it, reports the error; appended to the verdict."""
    plain = [line for line in (COLOUR.sub("", line).strip() for line in stderr) if line]
    reasons = [line for line in stdout if line.startswith("FAILED: ")]
    reasons += [line for line in plain if "hpcai500: error: " in line]
    reasons += [line for line in plain if re.search(r"\b(error|fatal) *:", line, re.IGNORECASE)] or plain[-1:]
    return f": {reasons[0]}" if reasons else ""
