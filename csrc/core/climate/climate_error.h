// Why an image could not be read, and where that was.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "climate_storage.h"
#include "core/failure.h"

namespace hpcai500 {

/// Where reading failed. A file that cannot even be opened has no image and no channel.
struct ClimatePlace {
    std::size_t file = 0;               ///< in the order given to the reader
    std::int64_t image = -1;            ///< in its file
    std::int64_t channel = -1;          ///< in its file
    std::optional<Extents> chunk = {};  ///< position in the grid of chunks; none where all is in one piece
};

class ClimateError : public std::runtime_error {
  public:
    ClimateError(FailureKind kind, const std::string& reason, ClimatePlace place)
        : std::runtime_error(reason), kind_(kind), place_(std::move(place)) {}
    FailureKind kind() const noexcept { return kind_; }
    const ClimatePlace& place() const noexcept { return place_; }

  private:
    FailureKind kind_;
    ClimatePlace place_;
};

}  // namespace hpcai500
