"""Which of the eight kinds of V2.0 Fig. 10 a kernel is, told by its name; and what a device did at each moment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.methodology.kernel_classes import (
    ALL_REDUCE,
    CLASSES,
    CONVOLUTION,
    ELEMENT_WISE,
    GEMM,
    HOST,
    KERNEL_RULES,
    KINDS,
    MEMCPY,
    NORMALISATION,
    OPERATOR_RULES,
    POOLING,
    TRANSFORMATION,
    Layout,
    Rule,
    Stretch,
    changes_layout,
    copy_class,
    gaps,
    kernel_class,
    operator_class,
    seconds_of,
    shares_over_time,
    stem,
    timeline,
)

# Demangled names from traces of PyTorch, cuDNN, cuBLAS, CUTLASS and NCCL on Volta to Blackwell, and of our own kernels.
KERNELS = {
    CONVOLUTION: [
        "volta_scudnn_128x64_relu_interior_nn_v1",
        "volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1",
        "turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu_f2f_exp_interior_nhwc_tn_v1",
        "void cudnn::detail::dgrad2d_alg1_1<float, 0, 6, 7, 5, 4, 5, true, true>(int, int, int, float const*, int)",
        "void cudnn::detail::implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, true, false, true>(int)",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::winograd_nonfused::Params)",
        "void cudnn::cnn::wgrad2d_grouped_direct_kernel<__half, __half, __half, float, float, 0>(cudnnTensorStruct)",
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage3_warpsize2x2x1",
        "sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize256x128x64_warpgroupsize2x1x1",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_f16_s16816wgrad_optimized_f16_256x128_32x3_nhwc>(Params)",
        "void cutlass_cudnn_infer::Kernel<cutlass_80_tensorop_s1688fprop_optimized_tf32_128x64_16x6_nhwc>(Params)",
        "cudnn::gemm::computeWgradOffsetsKernel(cudnn::gemm::ComputeOffsetsParams)",
        "void fft2d_r2c_32x32<float, false, 1u, false>(float2*, float const*, int, int, int, int)",
        "void at::native::im2col_kernel<float>(long, float const*, long, long, long, long, long, float*)",
        "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float>(at::GenericPacked)",
        "triton_tem_fused_convolution_12",
    ],
    GEMM: [
        "volta_sgemm_128x64_nn",
        "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
        "ampere_sgemm_32x128_tn",
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
        "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_execute_kernel__5x_cublas",
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT",
        "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_256x128_32x3_nn_align8>(Params)",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true>(cublasSplitKParams<float>)",
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(cublasGemvParamsEx)",
        "void gemmSN_NN_kernel<float, 256, 4, 2, 8, 2, 4, false, cublasGemvTensorStridedBatched<float const>>(Params)",
        "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const>>>(cublasDotParams)",
        "triton_tem_fused_addmm_3",
    ],
    NORMALISATION: [
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct, float const*)",
        "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float, float, float, float)",
        "void cudnn::ops::batchnorm_bwtr_nhwc_semiPersist<__half2, 3, 512, 1, 2>(cudnnTensorStruct)",
        "void at::native::batch_norm_collect_statistics_channels_last_kernel<at::native::Var, float, float, 4>(float)",
        "void at::native::batch_norm_backward_reduce_kernel<float, float, float, int>(at::GenericPackedTensorAccessor)",
        "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float>(long, float, float const*, float*)",
        "void at::native::(anonymous namespace)::ComputeInternalGradientsCUDAKernel<float>(long, float const*)",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float)",
        "triton_per_fused__native_batch_norm_legit_functional_relu_2",
    ],
    ELEMENT_WISE: [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>",
        "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::threshold_kernel>>",
        "void at::native::unrolled_elementwise_kernel<at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)>",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>>>",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*, float const*)",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*)",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<3>>(Params)",
        "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<...>>(long, int)",
        "void at::native::mbtopk::radixFindKthValues<float, unsigned int, unsigned int, 1>(float const*)",
        "void cub::CUB_200200_750_NS::DeviceRadixSortOnesweepKernel<Policy800, false, float, long, int>(int*)",
        "void cudnn::ops::scalePackedTensor_kernel<__half, float>(long, __half*, float)",
        "void hpcai500::(anonymous namespace)::sum_tiles<512>(hpcai500::TensorTable<512>, hpcai500::NormSums)",
        "void hpcai500::(anonymous namespace)::mark_overlaps<float>(hpcai500::Box<float> const*, long const*, long)",
        "triton_poi_fused_add_relu_4",
    ],
    POOLING: [
        "void at::native::(anonymous namespace)::max_pool_forward_nhwc<float, int>(float const*, int, long, long)",
        "void at::native::(anonymous namespace)::max_pool_backward_nchw<float, float>(float const*, long const*, int)",
        "void at::native::(anonymous namespace)::adaptive_average_pool<float>(float const*, float*, int, int)",
        "void cudnn::pooling_fw_4d_kernel<float, float, cudnn::maxpooling_func<float>, 0, false>(cudnnTensorStruct)",
        "void at::native::(anonymous namespace)::upsample_nearest2d_nhwc_out_frame<float>(float const*, float*)",
        "void hpcai500::(anonymous namespace)::pool<float, float>(hpcai500::Maps, long, float const*, float const*)",
        "void hpcai500::(anonymous namespace)::spread<c10::Half, float>(hpcai500::Maps, long, c10::Half const*)",
    ],
    MEMCPY: [
        "Memcpy HtoD (Pinned -> Device)",
        "Memcpy DtoH (Device -> Pageable)",
        "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
        "[CUDA memcpy HtoD]",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<float, unsigned int, 1, 128, 1>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>",
        "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>",
        "void hpcai500::(anonymous namespace)::cast_tiles<hpcai500::ToWire<__half>, 512>(hpcai500::TensorTable<512>)",
        "void hpcai500::(anonymous namespace)::dequantise_chunks<true, 512>(hpcai500::TensorTable<512>)",
    ],
    ALL_REDUCE: [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_ReduceScatter_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllReduce_TREE_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
        "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32(ncclSymkDevWorkArgs4K)",
    ],
    TRANSFORMATION: [
        "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, 0>(cudnn::ops::nchw2nhwc_params_t)",
        "void nhwcToNchwKernel<__half, __half, float, true, false>(int, int, int, int, __half const*, __half*)",
        "void cudnn::ops::nhwcAddPaddingKernel<__half, __half, float, true, 1>(int, int, int, int)",
        "void transpose_readWrite_alignment_kernel<float, float, 1, true, 6, 5, 4>(cublasTransposeParams<float>)",
    ],
}  # fmt: skip

OPERATORS = {
    CONVOLUTION: ["aten::conv2d", "aten::mkldnn_convolution", "aten::cudnn_convolution", "ConvolutionBackward0"],
    GEMM: ["aten::mm", "aten::addmm", "aten::linear", "autograd::engine::evaluate_function: AddmmBackward0"],
    NORMALISATION: ["aten::native_batch_norm", "NativeGroupNormBackward0",
                    "graph_0_cpp_fused__native_batch_norm_legit_functional_convolution_relu_3",
                    "aten::cudnn_batch_norm_backward"],
    ELEMENT_WISE: ["aten::add_", "aten::_foreach_addcmul_", "ReluBackward0", "aten::_log_softmax_backward_data",
                   "aten::nll_loss_forward", "aten::index_put_", "aten::sort", "aten::topk", "hpcai500::nms",
                   "SmoothL1LossBackward0", "Optimizer.step#LARS.step", "aten::__and__", "aten::sum.dim_IntList"],
    POOLING: ["aten::max_pool2d_with_indices", "AvgPool2DBackward0", "aten::_adaptive_avg_pool2d_backward",
              "UpsampleNearest2DBackward0", "hpcai500::roi_align", "hpcai500::roi_align_backward"],
    MEMCPY: ["aten::copy_", "aten::cat", "aten::zero_", "aten::fill_", "hpcai500:pack", "hpcai500:unpack"],
    ALL_REDUCE: ["c10d::allreduce_", "nccl:all_reduce", "hpcai500:all_reduce", "hpcai500:reduce_scatter"],
    TRANSFORMATION: ["aten::to_mkldnn", "aten::mkldnn_reorder_conv2d_weight", "aten::pixel_shuffle"],
    HOST: ["aten::view", "aten::t", "aten::empty_strided", "ViewBackward0", "torch::autograd::AccumulateGrad",
           "Optimizer.step#SGD.step", "hpcai500:step", "aten::detach_", "CompiledFunctionBackward",
           "## Call CompiledFxGraph fvxpwqlmpegces6cysljz6ya5huyep672vngnybwnh36v6r4a7gl ##",
           "TorchDynamo Cache Lookup", "Torch-Compiled Region: 0/0"],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in KERNELS.items() for name in names])
def test_a_kernel_of_a_device_is_told_by_its_name(kind: str, name: str) -> None:
    assert kernel_class(name) == kind


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in OPERATORS.items() for name in names])
def test_an_operator_of_the_host_is_told_by_its_name(kind: str, name: str) -> None:
    assert operator_class(name) == kind


def test_names_that_no_rule_knows_are_unclassified() -> None:
    assert operator_class("aten::frobnicate") is None
    assert kernel_class("void somebody::frobnicate<float>(float*)") is None
    assert set(KERNELS) == set(CLASSES)


_NAMES = st.sampled_from([name for names in [*KERNELS.values(), *OPERATORS.values()] for name in names])


@given(st.one_of(_NAMES, st.text(max_size=40), st.builds(str.__add__, _NAMES, _NAMES)))
def test_the_first_rule_that_matches_decides_and_there_is_one_class_at_most(name: str) -> None:
    def first(rules: tuple[Rule, ...], text: str) -> str | None:
        matching = [rule.kind for rule in rules if rule.pattern.search(text)]
        return matching[0] if matching else None

    assert kernel_class(name) == first(KERNEL_RULES, name)
    assert operator_class(name) == first(OPERATOR_RULES, stem(name))
    assert {kernel_class(name)} <= {*CLASSES, None}
    assert {operator_class(name)} <= {*CLASSES, HOST, None}


def test_forward_and_backward_come_to_one_word() -> None:
    assert stem("aten::native_batch_norm") == stem("NativeBatchNormBackward0") == "native_batch_norm"
    assert stem("autograd::engine::evaluate_function: MulBackward0") == stem("aten::mul_") == "mul"


NCHW = Layout((8, 16, 4, 4), (256, 16, 4, 1), "float")
NHWC = Layout((8, 16, 4, 4), (256, 1, 64, 16), "float")


@pytest.mark.parametrize(
    ("target", "source", "kind"),
    [
        (NHWC, NCHW, TRANSFORMATION),
        (NCHW, NHWC, TRANSFORMATION),
        (NCHW, NCHW, MEMCPY),
        (NCHW, Layout(NCHW.shape, NCHW.strides, "c10::Half"), ELEMENT_WISE),
        (NHWC, Layout(NCHW.shape, NCHW.strides, "c10::Half"), TRANSFORMATION),
        # A transposed matrix, a row out of a larger one, one value spread over many.
        (Layout((3, 5), (5, 1), "float"), Layout((3, 5), (1, 3), "float"), TRANSFORMATION),
        (Layout((3, 5), (5, 1), "float"), Layout((3, 5), (20, 1), "float"), MEMCPY),
        (Layout((3, 5), (5, 1), "float"), Layout((3, 5), (0, 1), "float"), MEMCPY),
        # With one channel or one pixel, first and last are the same order.
        (Layout((8, 1, 4, 4), (16, 1, 4, 1), "float"), Layout((8, 1, 4, 4), (16, 16, 4, 1), "float"), MEMCPY),
        (Layout((8, 16, 1, 1), (16, 1, 16, 16), "float"), Layout((8, 16, 1, 1), (16, 1, 1, 1), "float"), MEMCPY),
    ],
)
def test_a_copy_is_what_it_does_to_order_and_type(target: Layout, source: Layout, kind: str) -> None:
    assert copy_class(target, source) == kind
    assert changes_layout(target, source) == (kind == TRANSFORMATION)


# --- Every kernel and operator of ours is of a class: a profile of our own run must not have unknown time in it.


ROOT = Path(__file__).resolve().parents[2]
_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(")
_OPERATOR = re.compile(r"custom_op\(\s*\"(hpcai500::\w+)\"")


def _found(pattern: re.Pattern[str], folder: str, *suffixes: str) -> list[str]:
    files = (path for suffix in suffixes for path in (ROOT / folder).rglob(f"*{suffix}"))
    return sorted({name for path in files for name in pattern.findall(path.read_text(encoding="utf-8"))})


OUR_KERNELS = _found(_KERNEL, "csrc/core", ".cu", ".cuh")
OUR_OPERATORS = _found(_OPERATOR, "hpcai500", ".py")


def test_all_of_them_were_found() -> None:
    declared = sum(
        path.read_text(encoding="utf-8").count("__global__")
        for suffix in ("cu", "cuh")
        for path in (ROOT / "csrc" / "core").rglob(f"*.{suffix}")
    )
    assert len(OUR_KERNELS) == declared > 10
    assert {"hpcai500::nms", "hpcai500::roi_align"} <= set(OUR_OPERATORS)


@pytest.mark.parametrize("name", OUR_KERNELS)
def test_a_cuda_kernel_of_ours_has_a_class(name: str) -> None:
    assert kernel_class(f"void hpcai500::(anonymous namespace)::{name}<float, 192>(hpcai500::Table<192>, float*)")


@pytest.mark.parametrize("name", OUR_OPERATORS)
def test_an_operator_of_ours_has_a_class(name: str) -> None:
    assert operator_class(name)


# --- Nothing counts twice, and all of the time is something or idle.


WORKS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 9), st.sampled_from(KINDS)).map(
        lambda one: Stretch(one[0], one[0] + one[1], one[2])
    ),
    min_size=1,
    max_size=25,
)


@given(WORKS)
def test_every_moment_is_the_first_kind_of_what_ran_in_it(works: list[Stretch]) -> None:
    found = timeline(works)
    for moment in (number + 0.5 for number in range(50)):
        running = {work.kind for work in works if work.start < moment < work.end}
        expected = next((kind for kind in KINDS if kind in running), None)
        now = [one.kind for one in found if one.start < moment < one.end]
        assert now == ([expected] if expected else [])


@given(WORKS)
def test_busy_and_idle_are_all_of_the_time(works: list[Stretch]) -> None:
    found = timeline(works)
    if not found:
        assert all(work.seconds == 0 for work in works)
        return
    busy, idle = sum(seconds_of(found).values()), sum(end - start for start, end in gaps(found))
    assert busy + idle == found[-1].end - found[0].start
    rows = shares_over_time(found, found[0].start, found[-1].end, 7)
    length = (found[-1].end - found[0].start) / 7
    for column, kind in enumerate(KINDS, 1):
        assert sum(row[column] for row in rows) * length == pytest.approx(seconds_of(found)[kind], abs=1e-3)


def test_gaps_of_less_than_the_clocks_rounding_are_none() -> None:
    found = timeline([Stretch(0, 1, "compute"), Stretch(1.001, 2, "compute"), Stretch(3, 4, "copy")])
    assert gaps(found, 0.01) == [(2, 3)]
    assert gaps(found) == [(1, 1.001), (2, 3)]
    assert timeline([]) == []
