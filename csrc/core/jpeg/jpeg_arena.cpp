#include "jpeg_arena.h"

#include <jerror.h>

#include <algorithm>

namespace hpcai500 {
namespace {

// libjpeg-turbo's vector code writes whole registers: it asks for aligned rows, padded to twice the
// alignment.
constexpr std::size_t alignment = 64;
constexpr std::size_t round_up(std::size_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
}

JpegArena& arena_of(j_common_ptr common) {
    return *static_cast<JpegArena*>(common->client_data);
}

void* allocate_small(j_common_ptr common, int pool, std::size_t bytes) {
    // What is permanent and small is made when the decompressor is, before this takes over; later, only an
    // image's tables are.
    static_cast<void>(pool);
    return arena_of(common).allocate(common, bytes);
}

void* allocate_large(j_common_ptr common, int pool, std::size_t bytes) {
    JpegArena& arena = arena_of(common);
    if (pool != JPOOL_IMAGE) return arena.original().alloc_large(common, pool, bytes);
    return arena.allocate(common, bytes);
}

template <class Row>
Row* allocate_rows(j_common_ptr common, std::size_t row_bytes, JDIMENSION rows) {
    JpegArena& arena = arena_of(common);
    const std::size_t stride = round_up(row_bytes);
    auto** table = static_cast<Row*>(arena.allocate(common, rows * sizeof(Row)));
    auto* memory = static_cast<unsigned char*>(arena.allocate(common, stride * rows));
    for (JDIMENSION row = 0; row < rows; ++row) table[row] = reinterpret_cast<Row>(memory + stride * row);
    return table;
}

JSAMPARRAY allocate_samples(j_common_ptr common, int pool, JDIMENSION samples, JDIMENSION rows) {
    if (pool != JPOOL_IMAGE) return arena_of(common).original().alloc_sarray(common, pool, samples, rows);
    return allocate_rows<JSAMPROW>(common, samples * sizeof(JSAMPLE), rows);
}

JBLOCKARRAY allocate_blocks(j_common_ptr common, int pool, JDIMENSION blocks, JDIMENSION rows) {
    if (pool != JPOOL_IMAGE) return arena_of(common).original().alloc_barray(common, pool, blocks, rows);
    return allocate_rows<JBLOCKROW>(common, blocks * sizeof(JBLOCK), rows);
}

void free_pool(j_common_ptr common, int pool) {
    JpegArena& arena = arena_of(common);
    arena.original().free_pool(common, pool);
    if (pool == JPOOL_IMAGE) arena.reset();
}

}  // namespace

void JpegArena::install(jpeg_decompress_struct& decompressor) {
    original_ = *decompressor.mem;
    decompressor.client_data = this;
    decompressor.mem->alloc_small = allocate_small;
    decompressor.mem->alloc_large = allocate_large;
    decompressor.mem->alloc_sarray = allocate_samples;
    decompressor.mem->alloc_barray = allocate_blocks;
    decompressor.mem->free_pool = free_pool;
}

void* JpegArena::allocate(j_common_ptr common, std::size_t bytes) {
    bytes = round_up(bytes);
    total_ += bytes;
    if (bytes > most_bytes || total_ > most_bytes) ERREXIT1(common, JERR_OUT_OF_MEMORY, 0);
    while (current_ < blocks_.size() && used_ + bytes > blocks_[current_]->size) {
        ++current_;
        used_ = 0;
    }
    if (current_ == blocks_.size()) {
        // libjpeg's error exit skips destructors, so an exception must not pass through its frames and
        // nothing here may own memory when it is taken.
        bool made = false;
        try {
            auto block = std::make_unique<Block>();
            block->size = std::max(bytes, block_bytes);
            block->memory.reserve(block->size);
            blocks_.push_back(std::move(block));
            made = true;
        } catch (const std::bad_alloc&) {
            made = false;
        }
        if (!made) ERREXIT1(common, JERR_OUT_OF_MEMORY, 0);
        used_ = 0;
    }
    void* const memory = blocks_[current_]->memory.data() + used_;
    used_ += bytes;
    return memory;
}

void JpegArena::reset() {
    current_ = 0;
    used_ = 0;
    total_ = 0;
}

}  // namespace hpcai500
