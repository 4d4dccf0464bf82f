// The decoder's kernel. A translation unit defines inverse_dct() and clear_block() for one instruction set,
// in its own unnamed namespace, and then includes this file: names with external linkage would clash between
// the kernels.

// Each uses what the one before it has.
#include "symbols.inl"

#include "block_decoder.inl"

#include "block_skipper.inl"

// All samples of a block without AC coefficients have one value.
inline void fill_block(int coefficient, int factor, std::uint8_t* samples, std::ptrdiff_t stride) {
    // As inverse_dct() rounds: once, after both passes.
    const int level = ((static_cast<std::int16_t>(coefficient * factor) + 4) >> 3) + 128;
    const int cut = level < 0 ? 0 : level > 255 ? 255 : level;
    const std::uint64_t eight = 0x0101010101010101ULL * static_cast<std::uint64_t>(cut);
    for (int row = 0; row < 8; ++row) __builtin_memcpy(samples + row * stride, &eight, sizeof eight);
}

inline bool decode_mcus(ScanState& scan, int column, int count) {
    BitReader reader(scan.bits);
    alignas(64) std::int16_t block[block_room] = {};
    for (int mcu = column; mcu < column + count; ++mcu) {
        for (int c = 0; c < scan.component_count; ++c) {
            Component& component = scan.components[c];
            for (int y = 0; y < component.down; ++y) {
                std::uint8_t* samples =
                    component.samples + y * 8 * component.stride + mcu * component.across * 8;
                for (int x = 0; x < component.across; ++x, samples += 8) {
                    const int coded = decode_block(reader, component, component.predictor, block);
                    if (coded == 0) return false;
                    if (coded == 1) {
                        fill_block(block[0], component.quantisation[0], samples, component.stride);
                        block[0] = 0;
                    } else {
                        inverse_dct(block, component.quantisation, samples, component.stride);
                        clear_block(block);
                    }
                }
            }
        }
        if (reader.beyond(scan.end)) return false;
    }
    scan.bits = reader.state();
    return true;
}

inline bool skip_mcus(ScanState& scan, int count) {
    BitReader reader(scan.bits);
    for (int mcu = 0; mcu < count; ++mcu) {
        for (int c = 0; c < scan.component_count; ++c) {
            Component& component = scan.components[c];
            for (int block = component.across * component.down; block > 0; --block)
                if (!skip_block(reader, component, component.predictor)) return false;
        }
        if (reader.beyond(scan.end)) return false;
    }
    scan.bits = reader.state();
    return true;
}
