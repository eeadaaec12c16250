"""Tests that `pytest -m "not slow"` leaves out, so that the others take less than a minute of processor time.

Measured in November 2026, child processes included: a file or a test is here if it takes more than about half a second,
unless it says much about the structure of the package. `-m "not slow"` runs the rest; plain `pytest` runs everything.
"""

from __future__ import annotations

from pathlib import PurePosixPath

FOLDERS = (
    "tests/benchmarks",
    "tests/conformance",
    "tests/docs",
    "tests/train",
)
"""Comparisons with other tools, every claim of the op table, the code in the docs, and Keras."""

FILES = (
    "tests/bench/test_bench.py",
    "tests/bench/test_latency.py",
    "tests/bench/test_memory_bound.py",
    "tests/bench/test_verdict.py",
    "tests/calibration/test_collect.py",
    "tests/calibration/test_command.py",
    "tests/calibration/test_histogram.py",
    "tests/calibration/test_loud_samples.py",
    "tests/calibration/test_range_methods.py",
    "tests/calibration/test_shapes.py",
    "tests/calibration/test_state.py",
    "tests/calibration/test_stats.py",
    "tests/comparison/test_compare.py",
    "tests/comparison/test_kernels.py",
    "tests/diagnosis/test_doctor.py",
    "tests/improve/test_accuracy.py",
    "tests/improve/test_clamped_fit.py",
    "tests/improve/test_coordinate_descent.py",
    "tests/improve/test_gated_weights.py",
    "tests/improve/test_loud_ranges.py",
    "tests/improve/test_measured_target.py",
    "tests/improve/test_scale_search.py",
    "tests/improve/test_wide_islands.py",
    "tests/improve/test_without_data.py",
    "tests/plan/test_edges.py",
    "tests/plan/test_float_parts.py",
    "tests/plan/test_interface.py",
    "tests/plan/test_kernel_limits.py",
    "tests/plan/test_packed_files.py",
    "tests/plan/test_solver.py",
    "tests/plan/test_tensorflow_parity.py",
    "tests/plan/test_weight_only.py",
    "tests/report/test_page.py",
    "tests/report/test_page_script.py",
    "tests/report/test_page_train.py",
    "tests/runtime/test_child.py",
    "tests/runtime/test_tflm.py",
    "tests/same_bytes/test_trees.py",
    "tests/soak/test_graphs.py",
    "tests/soak/test_mutations.py",
    "tests/soak/test_workers.py",
    "tests/sources/test_models.py",
    "tests/sources/test_sequence.py",
    "tests/targets/test_device_commands.py",
    "tests/targets/test_ethos_u.py",
    "tests/targets/test_tflm.py",
    "tests/test_affine.py",
    "tests/test_c_export.py",
    "tests/test_cli.py",
    "tests/test_cli_habits.py",
    "tests/test_cli_injection.py",
    "tests/test_cli_names.py",
    "tests/test_cli_quantize.py",
    "tests/test_cli_signals.py",
    "tests/test_cli_tune.py",
    "tests/test_cli_verify.py",
    "tests/test_converter.py",
    "tests/test_errors.py",
    "tests/test_fixedpoint.py",
    "tests/test_json_values.py",
    "tests/test_quantization.py",
    "tests/test_release.py",
    "tests/tflite/test_builder.py",
    "tests/tflite/test_fuzz.py",
    "tests/tuning/test_budget.py",
    "tests/tuning/test_executor.py",
    "tests/tuning/test_tree.py",
    "tests/tuning/test_tune.py",
)

TESTS = (
    "tests/bench/test_measure.py::test_parts_are_between_0_and_1_and_0_only_for_equal_values",
    "tests/bench/test_sample_checks.py::test_many_classes",
    "tests/calibration/test_batches.py::test_samples_never_touch_each_other",
    "tests/improve/test_mixed_precision.py::test_the_layer_that_four_bits_cost_most_is_found_on_data",
    "tests/improve/test_refinement_work.py::test_small_layers_are_searched_and_large_ones_compensated",
    "tests/improve/test_search.py::test_high_effort_goes_on_from_what_standard_effort_finds",
    "tests/plan/test_decompose.py::test_integers_come_near",
    "tests/plan/test_in_place.py::test_ops_overwrite_what_the_table_says_and_nothing_else",
    "tests/plan/test_in_place.py::test_what_would_be_overwritten_is_copied",
    "tests/plan/test_masks.py::test_a_mask_before_a_softmax_costs_no_resolution",
    "tests/plan/test_origins.py::test_the_report_tells_it_beside_each_tensor",
    "tests/plan/test_qdq.py::test_a_trained_model_needs_no_samples_at_the_front_door",
    "tests/plan/test_qdq.py::test_outputs_are_those_of_tensorflow",
    "tests/plan/test_target_rewrites.py::test_biases_are_as_large_as_the_target_takes",
    "tests/plan/test_target_rewrites.py::test_layers_that_are_integers_in_the_file_stay_as_they_are",
    "tests/plan/test_weight_bits.py::test_weights_use_the_integers_of_their_bits_only",
    "tests/report/test_inspect.py::test_a_terminal_gets_80_columns",
    "tests/targets/test_cpu.py::test_floats",
    "tests/targets/test_cpu.py::test_integers",
    "tests/test_cli_trace.py::test_a_dynamic_model_shows_what_it_made_of_its_data",
    "tests/test_import.py::test_every_public_name_is_there",
    "tests/test_import.py::test_help_on_a_public_function_fits_on_a_few_screens",
    "tests/test_import.py::test_quantizing_imports_no_modules_that_it_does_not_need",
    "tests/test_layers.py::test_no_module_hides_a_public_function",
    "tests/test_ops_argument.py::test_quantization_computes_it_in_integers",
    "tests/test_ops_argument.py::test_training_rounds_it_and_deploys_it",
    "tests/test_packing.py::test_values_come_back",
    "tests/tflite/test_packed_files.py::test_a_damaged_archive_is_no_crash",
)
"""Single ones in files that are quick without them."""

SLOW = frozenset((*FOLDERS, *FILES, *TESTS))


def is_slow(place: str) -> bool:
    """Whether a folder, a file or a test, as pytest calls it, is one of these or in one of these."""
    file, _, test = place.partition("::")
    parents = (file, *map(str, PurePosixPath(file).parents), f"{file}::{test.partition('[')[0]}")
    return not SLOW.isdisjoint(parents)
