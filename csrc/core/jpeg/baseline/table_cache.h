// Tables of the codes that were seen last: most encoders give all their files the same ones.
#pragma once

#include <cstdint>
#include <cstring>

#include "huffman_table.h"

namespace hpcai500::baseline {

/// Table is DifferenceTable or CoefficientTable.
template <class Table>
class TableCache {
  public:
    /// The tables of `code`, valid until as many other codes were asked for as an image can have components;
    /// null where build() refuses it.
    const Table* find(const HuffmanCode& code) {
        Entry* longest_unused = entries_;
        for (Entry& entry : entries_) {
            if (entry.valid && std::memcmp(&entry.code, &code, sizeof code) == 0) {
                entry.last_use = ++uses_;
                return &entry.table;
            }
            if (entry.last_use < longest_unused->last_use) longest_unused = &entry;
        }
        Entry& entry = *longest_unused;
        entry.valid = build(entry.table, code);
        if (!entry.valid) return nullptr;
        entry.code = code;
        entry.last_use = ++uses_;
        return &entry.table;
    }

  private:
    // One more than an image has components: the one that was not used for longest is not the image's.
    static constexpr int places = 4;
    struct Entry {
        HuffmanCode code;
        Table table;
        std::uint64_t last_use = 0;
        bool valid = false;
    };
    Entry entries_[places];
    std::uint64_t uses_ = 0;
};

}  // namespace hpcai500::baseline
