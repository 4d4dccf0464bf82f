// The decoder's kernel. A translation unit defines inverse_dct() and clear_block() for one instruction set,
// in its own unnamed namespace, and then includes this file: names with external linkage would clash between
// the kernels.

#include "entropy.inl"

// All samples of a block without AC coefficients have one value.
inline void fill_block(int coefficient, int factor, std::uint8_t* samples, std::ptrdiff_t stride) {
    // As inverse_dct() rounds: once, after both passes.
    const int level = ((static_cast<std::int16_t>(coefficient * factor) + 4) >> 3) + 128;
    const int cut = level < 0 ? 0 : level > 255 ? 255 : level;
    const std::uint64_t eight = 0x0101010101010101ULL * static_cast<std::uint64_t>(cut);
    for (int row = 0; row < 8; ++row) __builtin_memcpy(samples + row * stride, &eight, sizeof eight);
}

// Two blocks, double buffered: while the codes of one are read, the other waits, and its samples are made
// afterwards. Reading codes is one wait after the other, in whose gaps the processor transforms what waits
// for nothing; a block whose coefficients were stored just now, one by one, it cannot load by vectors before
// the last of them has arrived.
class BlockBuffers {
  public:
    // The one that is to be read: all zeros.
    HPCAI500_INLINE std::int16_t* next() { return blocks_[turn_]; }

    // Makes samples of the one that waits.
    HPCAI500_INLINE void finish() {
        if (samples_ == nullptr) return;
        std::int16_t* const block = blocks_[1 - turn_];
        inverse_dct(block, component_->quantisation, samples_, component_->stride);
        clear_block(block);
        samples_ = nullptr;
    }

    // Finishes the one that waits, and lets the one that was read wait.
    HPCAI500_INLINE void wait(const Component& component, std::uint8_t* samples) {
        finish();
        component_ = &component;
        samples_ = samples;
        turn_ = 1 - turn_;
    }

  private:
    alignas(64) std::int16_t blocks_[2][block_room] = {};
    int turn_ = 0;
    std::uint8_t* samples_ = nullptr;
    const Component* component_ = nullptr;
};

inline bool decode_mcus(ScanState& scan, int column, int count) {
    BitReader reader(scan.bits);
    BlockBuffers blocks;
    for (int mcu = column; mcu < column + count; ++mcu) {
        for (int c = 0; c < scan.component_count; ++c) {
            Component& component = scan.components[c];
            for (int y = 0; y < component.down; ++y) {
                std::uint8_t* samples =
                    component.samples + y * 8 * component.stride + mcu * component.across * 8;
                for (int x = 0; x < component.across; ++x, samples += 8) {
                    std::int16_t* const block = blocks.next();
                    const int coded = decode_block(reader, component, component.predictor, block);
                    if (coded == 0) return false;
                    if (coded == 1) {
                        fill_block(block[0], component.quantisation[0], samples, component.stride);
                        block[0] = 0;
                    } else {
                        blocks.wait(component, samples);
                    }
                }
            }
        }
        if (reader.beyond(scan.end)) return false;
    }
    blocks.finish();
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
