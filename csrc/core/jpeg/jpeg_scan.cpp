#include "jpeg_scan.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace hpcai500 {
namespace {

// libjpeg repeats chroma of fewer samples instead of interpolating it.
constexpr int fewest_chroma_samples = 3;

bool is_baseline(const jpeg_decompress_struct& d) {
    const bool whole =
        d.comps_in_scan == d.num_components && d.Ss == 0 && d.Se == 63 && d.Ah == 0 && d.Al == 0;
    return d.data_precision == 8 && d.progressive_mode == 0 && d.arith_code == 0 && whole;
}

bool has_sampling(const jpeg_component_info& component, int across, int down) {
    return component.h_samp_factor == across && component.v_samp_factor == down;
}

bool is_known_colour(const jpeg_decompress_struct& d) {
    const jpeg_component_info* c = d.comp_info;
    if (d.num_components == 1) return d.jpeg_color_space == JCS_GRAYSCALE && has_sampling(c[0], 1, 1);
    if (d.num_components != 3 || d.jpeg_color_space != JCS_YCbCr) return false;
    const bool luma = has_sampling(c[0], 1, 1) || has_sampling(c[0], 2, 1) || has_sampling(c[0], 2, 2);
    if (!luma || !has_sampling(c[1], 1, 1) || !has_sampling(c[2], 1, 1)) return false;
    return c[0].h_samp_factor == 1 ||
           d.image_width > static_cast<JDIMENSION>(2 * (fewest_chroma_samples - 1));
}

// Numbers of tables stand in the file as they are: libjpeg compares them with its four places when it starts
// to decode.
template <class Table>
const Table* table(Table* const (&tables)[NUM_HUFF_TBLS], int number) {
    static_assert(NUM_HUFF_TBLS == NUM_QUANT_TBLS);
    return number >= 0 && number < NUM_HUFF_TBLS ? tables[number] : nullptr;
}

bool copy(const JHUFF_TBL* from, baseline::HuffmanCode& to) {
    if (from == nullptr) return false;
    std::memcpy(to.counts, from->bits + 1, sizeof to.counts);
    std::memcpy(to.symbols, from->huffval, sizeof to.symbols);
    return true;
}

bool copy(const JQUANT_TBL* from, std::int16_t* to) {
    // Larger factors are for 12-bit images.
    constexpr UINT16 largest = 255;
    if (from == nullptr ||
        std::any_of(from->quantval, from->quantval + DCTSIZE2, [](UINT16 q) { return q > largest; }))
        return false;
    std::copy_n(from->quantval, DCTSIZE2, to);
    return true;
}

}  // namespace

std::optional<baseline::Scan> baseline_scan(const jpeg_decompress_struct& d) {
    if (!is_baseline(d) || !is_known_colour(d)) return std::nullopt;
    baseline::Scan scan;
    scan.width = static_cast<int>(d.image_width);
    scan.height = static_cast<int>(d.image_height);
    scan.component_count = d.num_components;
    scan.across = d.comp_info[0].h_samp_factor;
    scan.down = d.comp_info[0].v_samp_factor;
    scan.restart_interval = static_cast<int>(d.restart_interval);
    scan.data = {d.src->next_input_byte, d.src->bytes_in_buffer};
    for (int i = 0; i < d.num_components; ++i) {
        const jpeg_component_info& component = d.comp_info[i];
        if (d.cur_comp_info[i] != &component) return std::nullopt;
        baseline::ScanComponent& to = scan.components[i];
        const bool complete = copy(table(d.dc_huff_tbl_ptrs, component.dc_tbl_no), to.dc) &&
                              copy(table(d.ac_huff_tbl_ptrs, component.ac_tbl_no), to.ac) &&
                              copy(table(d.quant_tbl_ptrs, component.quant_tbl_no), to.quantisation);
        if (!complete) return std::nullopt;
    }
    return scan;
}

}  // namespace hpcai500
