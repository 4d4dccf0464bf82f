// What libFuzzer and run_corpus.cpp call of the target that they are linked with.
#include "fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    hpcai500::run_input({data, size});
    return 0;
}
