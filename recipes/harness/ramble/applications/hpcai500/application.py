"""Ramble's definition of the benchmarks of hpcai500: reads the lines documented in docs/harness.md."""

from ramble.appkit import (
    ExecutableApplication,
    executable,
    figure_of_merit,
    success_criteria,
    workload,
    workload_variable,
)

_FIGURES = {
    "vflops": "FLOPS",
    "flops": "FLOPS",
    "images_per_second": "images/s",
    "utilisation": "fraction",
    "top1": "fraction",
    "map50": "fraction",
    "map50_tropical_depression": "fraction",
    "map50_tropical_cyclone": "fraction",
    "map50_extratropical_cyclone": "fraction",
    "map50_atmospheric_river": "fraction",
    "seconds": "s",
    "time_to_quality_seconds": "s",
    "data_wait_fraction": "fraction",
    "compute_fraction": "fraction",
    "communication_fraction": "fraction",
    "gradient_bytes_per_step": "B",
    "sent_bytes_per_step": "B",
    "stragglers": "ranks",
    "energy_joules": "J",
    "watts": "W",
    "flops_per_watt": "FLOPS/W",
    "vflops_per_watt": "FLOPS/W",
    "goodput": "fraction",
    "wall_seconds": "s",
    "goodput_startup_seconds": "s",
    "goodput_input_seconds": "s",
    "goodput_steps_seconds": "s",
    "goodput_communication_seconds": "s",
    "goodput_evaluation_seconds": "s",
    "goodput_checkpoint_seconds": "s",
    "goodput_lost_seconds": "s",
    "goodput_downtime_seconds": "s",
    "goodput_queue_seconds": "s",
    "goodput_suspended_seconds": "s",
    "goodput_unknown_seconds": "s",
    "interruptions": "interruptions",
    "mean_between_interruptions_seconds": "s",
    "recovery_seconds": "s",
    "checkpoint_seconds": "s",
}


class Hpcai500(ExecutableApplication):
    """HPC AI500: train to the target epochs, score, compare."""

    name = "hpcai500"

    # The shell drops empty options.
    executable(
        "train",
        "{hpcai500} {workload_name} --out {experiment_run_dir}/record {options}",
        use_mpi=True,
    )
    workload("ic", executables=["train"])
    workload("ewa", executables=["train"])

    workload_variable(
        "hpcai500",
        default="hpcai500",
        description="The command; in the image: apptainer run /apps/hpcai500.sif",
        workloads=["ic", "ewa"],
    )
    workload_variable(
        "options",
        default="",
        description="Options of the command: --data /data/imagenet --recipe ic/lars-4096 --set os.threads=8",
        workloads=["ic", "ewa"],
    )

    for figure, unit in _FIGURES.items():
        figure_of_merit(figure, fom_regex=rf"HPCAI500 FOM {figure}=(?P<value>\S+) ", group_name="value", units=unit)

    # Printed only if the exit code is 0, which Ramble does not check.
    success_criteria("passed", mode="string", match=r"HPCAI500 RESULT PASS$")
